"""A packed weight as a matrix: products, rows, decoding."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from minillama import gguf
from minillama.errors import InvalidInputError
from minillama.gguf import GGMLType
from minillama.model.model import Model
from tests.tiny_models import TinyModel

NAME = "blk.0.ffn_up.weight"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    tiny = TinyModel(n_layer=1, matrix_type=GGMLType.Q4_K, embedding_type=GGMLType.Q8_0)
    return Model(gguf.open(tiny.write(tmp_path_factory.mktemp("tiny") / "tiny.gguf")))


def test_product_is_the_forward_pass_own(model: Model) -> None:
    seen: dict[str, np.ndarray] = {}
    model.forward([1, 2, 3], model.new_cache(), watch=lambda name, value: seen.update({name: value.copy()}))
    product = seen["blk.0.ffn_norm"] @ model.weights[NAME].T
    np.testing.assert_array_equal(product, seen["blk.0.ffn_up"])


def test_product_is_close_to_the_decoded_one(model: Model) -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 256)).astype(np.float32)
    w = model.weights[NAME]
    product = x @ w.T
    assert product.shape == (2, 3, 512)
    exact = x.astype(np.float64) @ w.dequantize().astype(np.float64).T
    # x is rounded to 8 bits a value before the product: an error of about 1/256 of each term, averaged over 256 terms
    assert np.abs(product - exact).max() < 0.02 * np.abs(exact).max()


def test_rows_are_packed_slices(model: Model) -> None:
    w = model.weights[NAME]
    whole = w.dequantize()
    assert (w.shape, w.quant, len(w), w.ndim) == ((512, 256), "Q4_K", 512, 2)
    np.testing.assert_array_equal(w[3:5].dequantize(), whole[3:5])
    np.testing.assert_array_equal(w[-1].dequantize(), whole[-1:])
    np.testing.assert_array_equal(w[np.array([9, 2, 2])].dequantize(), whole[[9, 2, 2]])
    np.testing.assert_array_equal(np.asarray(w), whole)
    assert w[3:5].nbytes == 2 * 144


def test_weights_are_read_only_views(model: Model) -> None:
    assert not model.weights[NAME].packed.flags.writeable
    assert not model.weights[NAME].packed.flags.owndata


def test_vectors_decode(model: Model) -> None:
    norm = model.weights["output_norm.weight"]
    assert norm.shape == (256,)
    assert norm.dequantize().shape == (256,)
    with pytest.raises(InvalidInputError, match="only rows of a matrix"):
        norm[0]


def test_repr_says_what_it_is(model: Model) -> None:
    assert repr(model.weights[NAME]) == "<Weight blk.0.ffn_up.weight (512, 256) Q4_K, 0.1 MB>"
    assert "transpose" in repr(model.weights[NAME].T)
    assert model.weights[NAME].T.shape == (256, 512)
    assert model.weights[NAME].T.T is not None


def test_wrong_operands(model: Model) -> None:
    w = model.weights[NAME]
    with pytest.raises(InvalidInputError, match=r"x has shape \(255,\), w .* has \(512, 256\)"):
        np.zeros(255, np.float32) @ w.T
    with pytest.raises(InvalidInputError, match="x is float64, float32 is wanted"):
        np.zeros(256) @ w.T
    with pytest.raises(IndexError, match="row 512"):
        w[512]
    with pytest.raises(InvalidInputError, match="rows of"):
        w["a"]  # type: ignore[index]
    with pytest.raises(KeyError, match="there is no tensor"):
        model.weights["blk.9.ffn_up.weight"]


def test_all_tensors_are_listed(model: Model, tmp_path: Path) -> None:
    assert NAME in model.weights
    assert len(model.weights) == len(list(model.weights)) == 12
