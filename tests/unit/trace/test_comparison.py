"""Two runs side by side, values in words, and where to stop."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from minillama import gguf
from minillama.errors import InvalidInputError
from minillama.generate import LanguageModel
from minillama.gguf import GGMLType
from minillama.trace import compare, difference, edits, kl_divergence, layer_errors, log_softmax
from minillama.trace.conditions import above, differs_from, not_finite
from minillama.trace.inspection import summary
from tests.tiny_models import TinyModel

IDS = [5, 77, 200, 13, 13, 90]


def test_equal_runs(model: LanguageModel) -> None:
    found = compare(model.trace(IDS, ["*", "blk.*.kq"]), model.trace(IDS, ["*", "blk.*.kq"]))
    assert found.equal
    assert found.first_difference is None
    assert (found.mean_kl, found.max_kl, found.n_same_top, found.n_positions) == (0, 0, 6, 6)
    assert all((point.cosine, point.relative, point.largest) == (pytest.approx(1), 0, 0) for point in found.points)


def test_the_first_difference(model: LanguageModel) -> None:
    plain = model.trace(IDS, "*")
    changed = model.trace(IDS, "*", edits={"blk.1.ffn_up": edits.add(np.ones(512), positions=4)})
    found = compare(changed, plain)
    assert found.first_difference == "blk.1.ffn_up"
    by_name = {point.name: point for point in found.points}
    assert by_name["blk.1.ffn_gate"].equal
    assert by_name["blk.1.ffn_up"].first == (4, 0)
    assert by_name["blk.1.ffn_up"].n_different == 512
    assert by_name["blk.1.ffn_up"].largest == pytest.approx(1, abs=1e-6)
    delta = changed["blk.1.l_out"].astype(np.float64) - plain["blk.1.l_out"]
    assert by_name["blk.1.l_out"].relative == pytest.approx(
        np.linalg.norm(delta) / np.linalg.norm(plain["blk.1.l_out"])
    )
    assert found.max_kl == pytest.approx(kl_divergence(changed.logits, plain.logits).max())
    assert found.max_kl > 0


def test_what_cannot_be_compared(model: LanguageModel) -> None:
    with pytest.raises(InvalidInputError, match="the runs are of different texts: 6 and 5 tokens"):
        compare(model.trace(IDS, "*"), model.trace(IDS[:5], "*"))
    with pytest.raises(InvalidInputError, match="no point in common"):
        compare(model.trace(IDS, "token_embd"), model.trace(IDS, "blk.0.q"))
    with pytest.raises(InvalidInputError, match="cannot be compared"):
        difference("q", np.zeros(3, np.float32), np.zeros(4, np.float32))
    some = compare(model.trace(IDS, ["blk.0.q", "blk.1.q"]), model.trace(IDS, ["blk.0.q", "token_embd"]))
    assert some.only_one == ("blk.1.q", "token_embd")
    assert some.mean_kl is None


def test_kl_and_softmax() -> None:
    logits = np.log(np.array([[0.5, 0.25, 0.25], [0.2, 0.3, 0.5]])).astype(np.float32) + np.float32(3)
    np.testing.assert_allclose(np.exp(log_softmax(logits)), [[0.5, 0.25, 0.25], [0.2, 0.3, 0.5]], rtol=1e-6)
    want = 0.2 * np.log(0.2 / 0.5) + 0.3 * np.log(0.3 / 0.25) + 0.5 * np.log(0.5 / 0.25)
    np.testing.assert_allclose(kl_divergence(logits[:1], logits[1:]), [want], rtol=1e-5)


def test_zeros_and_nan() -> None:
    zero, one = np.zeros((2, 2), np.float32), np.ones((2, 2), np.float32)
    assert difference("x", zero, zero).cosine == 1
    assert (difference("x", zero, one).cosine, difference("x", one, zero).relative) == (0, float("inf"))
    broken = one.copy()
    broken[1, 0] = np.nan
    found = difference("x", broken, one)
    assert found.first == (1, 0)
    assert np.isnan(found.relative)


def test_layer_errors(tmp_path: Path, model: LanguageModel) -> None:
    reference = model.trace(IDS, "*")
    assert set(layer_errors(model, reference).values()) == {0.0}
    model_with_other_layer = TinyModel(n_layer=3, n_ctx=600, matrix_type=GGMLType.Q8_0, embedding_type=GGMLType.Q8_0)
    path = model_with_other_layer.write(tmp_path / "other.gguf")
    with gguf.open(path) as file:
        tensor = file.tensors["blk.1.ffn_down.weight"]
        place = tensor.offset
    with path.open("r+b") as raw:
        raw.seek(place + 2)
        raw.write(bytes(range(32)))
    errors = layer_errors(LanguageModel(gguf.open(path)), reference)
    assert errors["blk.1"] > 0
    assert errors["blk.0"] == errors["blk.2"] == 0  # the error of layer 1 is not carried on


def test_summary() -> None:
    found = summary(np.array([[1, -3, np.nan], [np.inf, 2, 0]], np.float32))
    assert (found.low, found.high, found.mean, found.norm) == (-3, 2, 0, pytest.approx(np.sqrt(14)))
    assert (found.n_nan, found.n_inf, len(found.histogram)) == (1, 1, 16)
    assert "1 NaN, 1 infinite" in str(found)
    assert summary(np.full(3, np.nan, np.float32)).histogram == ""
    assert str(summary(np.zeros((0, 4), np.float32))) == "float32 [0, 4]  empty"
    assert summary(np.full(3, 7, np.float32)).deviation == 0


def test_conditions(model: LanguageModel) -> None:
    masked = np.array([1, -np.inf], np.float32)
    assert not_finite("blk.0.q", masked)
    assert not not_finite("blk.0.kq", masked)
    assert not_finite("blk.0.kq", np.array([np.inf], np.float32))
    assert above(0.5)("x", masked)
    assert not above(1)("x", masked)
    plain = model.trace(IDS, "blk.*.l_out")
    assert not differs_from(plain)("blk.0.q", masked)
    assert not differs_from(plain)("blk.0.l_out", plain["blk.0.l_out"])
    assert differs_from(plain)("blk.0.l_out", plain["blk.1.l_out"])
