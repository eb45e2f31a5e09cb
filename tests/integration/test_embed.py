"""Embeddings: texts together or alone, poolings, normalization, what encoders cannot do."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import minillama as ml
from minillama.errors import ContextFullError, InvalidInputError, UnsupportedError
from minillama.generate.embedding import normalized, pool
from tests.tiny_adapters import write_adapter
from tests.tiny_families import ENCODERS, FAMILIES

IDS = np.random.default_rng(3).integers(0, 256, 900).tolist()
TEXTS = [IDS[:n] for n in (5, 1, 130, 64, 300, 2, 400)]  # more than one pass


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("embed")
    for name, tiny in {**ENCODERS, "qwen2": FAMILIES["qwen2"]}.items():
        tiny.write(made / f"{name}.gguf", "quantized")
    return made


@pytest.mark.parametrize("name", ["bert", "nomic-bert", "qwen2"])
@pytest.mark.parametrize("pooling", ["mean", "cls", "last", "none"])
def test_texts_together_have_the_bits_of_each_alone(folder: Path, name: str, pooling: str) -> None:
    model = ml.load(folder / f"{name}.gguf", driver="eager", threads=1)
    alone = [model.embed(text, pooling=pooling) for text in TEXTS]
    for options in ({}, {"threads": 3}, {"driver": "eager"}):
        other = ml.load(folder / f"{name}.gguf", **options)
        for order in (TEXTS, TEXTS[::-1]):
            together = other.embed(order, pooling=pooling)
            assert isinstance(together, list) == (pooling == "none")
            for ours, expected in zip(together, alone[:: 1 if order is TEXTS else -1], strict=True):
                np.testing.assert_array_equal(ours, expected)


@pytest.mark.parametrize("name", ENCODERS)
def test_every_token_of_an_encoder_sees_every_other(folder: Path, name: str) -> None:
    model = ml.load(folder / f"{name}.gguf")
    vectors = model.embed(IDS[:20], pooling="none")
    for place in (0, 19):
        changed = list(IDS[:20])
        changed[place] = (changed[place] + 1) % 256
        assert (model.embed(changed, pooling="none") != vectors).any(axis=1).all()


@pytest.mark.parametrize("name", ENCODERS)
def test_traced_and_stepped_encoders_give_the_same_bits(folder: Path, name: str) -> None:
    model = ml.load(folder / f"{name}.gguf")
    (expected,) = model.hidden([IDS[:37]], [model.new_cache()])
    trace = model.trace(IDS[:37], "blk.*.kq_soft_max")
    np.testing.assert_array_equal(trace.logits, expected)
    np.testing.assert_array_equal(model.step(IDS[:37]).finish(), expected)
    pattern = trace["blk.0.kq_soft_max"]
    assert pattern.shape == (37, 4, 37)
    assert (pattern > 0).all(), "tokens see those after them"
    np.testing.assert_allclose(pattern.sum(-1), 1, rtol=1e-6)  # 37 float32 weights, each rounded once
    np.testing.assert_array_equal(model.forward(IDS[:37], model.new_cache()), expected[-1])


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_poolings_against_double(folder: Path, pooling: str) -> None:
    model = ml.load(folder / "bert.gguf")
    vectors = model.embed(IDS[:30], pooling="none", normalize=False).astype(np.float64)
    found = model.embed(IDS[:30], pooling=pooling, normalize=False)
    expected = {"mean": vectors.mean(0), "cls": vectors[0], "last": vectors[-1]}[pooling]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)  # products are rounded to float32


def test_the_mean_adds_up_in_order() -> None:
    vectors = np.array([[1e8], [1.0], [-1e8]], np.float32)
    third, total = np.float32(1) / np.float32(3), 0.0
    for value in vectors[:, 0]:
        total += float(np.float32(value * third))
    assert pool(vectors, "mean").tolist() == [np.float32(total)]


def test_normalized_vectors_have_length_1_and_zeros_stay() -> None:
    rng = np.random.default_rng(0)
    for scale in (1e-30, 1.0, 1e10):
        vector = (rng.standard_normal(384) * scale).astype(np.float32)
        total = 0.0
        for value in vector:
            total += float(value * value)
        expected = vector * np.float32(1 / math.sqrt(total)) if total > 0 else vector * np.float32(0)
        np.testing.assert_array_equal(normalized(vector), expected)
    np.testing.assert_array_equal(normalized(np.zeros((2, 3), np.float32)), np.zeros((2, 3)))


def test_shapes_and_texts(folder: Path) -> None:
    model = ml.load(folder / "bert.gguf")
    one, several = model.embed("the cat"), model.embed(["the cat", "a dog", IDS[:3]])
    assert (one.shape, several.shape, one.dtype) == ((256,), (3, 256), np.float32)
    np.testing.assert_array_equal(one, several[0])
    np.testing.assert_array_equal(model.embed(["the cat"]), one[None])
    np.testing.assert_array_equal(model.embed(model.tokenizer.encode("the cat")), one)
    done = []
    model.embed(TEXTS, progress=lambda i, n: done.append((i, n)))
    assert done[-1] == (len(TEXTS), len(TEXTS))
    assert len(done) > 1


def test_what_cannot_be_embedded(folder: Path, tmp_path: Path) -> None:
    model, decoder = ml.load(folder / "bert.gguf"), ml.load(folder / "qwen2.gguf")
    with pytest.raises(InvalidInputError, match="does not state how it pools"):
        decoder.embed("text")
    for texts, message in ((["a", []], "empty"), ([], "no texts"), ([[999999]], "not in the vocabulary")):
        with pytest.raises(InvalidInputError, match=message):
            model.embed(texts)
    with pytest.raises(InvalidInputError, match="pooling is 'max', there are none, mean, cls, last"):
        model.embed("text", pooling="max")
    with pytest.raises(ContextFullError, match=r"text 1 has 513 tokens, the context is 512"):
        model.embed(["a", IDS[:513]])
    reranker = replace(ENCODERS["bert"], metadata={**ENCODERS["bert"].metadata, "pooling_type": 4})
    with pytest.raises(UnsupportedError, match="reranker"):
        ml.load(reranker.write(tmp_path / "rank.gguf", "f16")).embed("text")


def test_what_an_encoder_cannot_do(folder: Path) -> None:
    model = ml.load(folder / "bert.gguf")
    for call in (lambda: model.generate("text"), lambda: model.logits(IDS[:3]), lambda: next(model.stream("text"))):
        with pytest.raises(UnsupportedError, match="bert is an encoder: it makes no text, but embeddings"):
            call()
    cache = model.new_cache()
    model.forward(IDS[:5], cache)
    with pytest.raises(InvalidInputError, match="cannot be continued"):
        model.forward(IDS[5:7], cache)
    with pytest.raises(InvalidInputError, match="keeps no cache"):
        ml.load(folder / "bert.gguf", kv_type="f16")


@pytest.mark.parametrize(("name", "causal"), [("llama", False), ("bert", True)])
def test_who_sees_whom_is_not_a_matter_of_the_file(tmp_path: Path, name: str, causal: bool) -> None:
    tiny = {**ENCODERS, **FAMILIES}[name]
    path = replace(tiny, metadata={**tiny.metadata, "attention.causal": causal}).write(tmp_path / "tiny.gguf", "f16")
    with pytest.raises(UnsupportedError, match=r"attention\.causal is"):
        ml.load(path)


def test_adapters_change_embeddings(folder: Path, tmp_path: Path) -> None:
    model = ml.load(folder / "nomic-bert.gguf")
    names = [f"blk.{i}.{part}.weight" for i in range(2) for part in ("attn_qkv", "ffn_up")]
    adapter = model.load_adapter(write_adapter(tmp_path / "a.gguf", folder / "nomic-bert.gguf", names=names))
    plain, adapted = model.embed(IDS[:9]), model.embed(IDS[:9], adapters=[adapter])
    assert (plain != adapted).any()
    np.testing.assert_array_equal(model.embed(IDS[:9], adapters=[(adapter, 0.0)]), plain)
