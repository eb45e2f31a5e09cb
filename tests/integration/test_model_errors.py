"""Files and arguments that are wrong: one clear, typed error each."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minillama import gguf
from minillama.errors import GGUFError, InvalidInputError, TokenizerError, UnsupportedError
from minillama.generate import LanguageModel
from minillama.gguf import GGMLType
from minillama.model.model import Model
from tests.tiny_families import FAMILIES
from tests.tiny_models import TinyModel


def load(folder: Path, **changes: Any) -> Model:
    return Model(gguf.open(TinyModel(**{"n_layer": 1, **changes}).write(folder / "tiny.gguf")))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load(tmp_path_factory.mktemp("tiny"))


def test_unknown_architecture_lists_the_known(tmp_path: Path) -> None:
    with pytest.raises(
        UnsupportedError, match="architecture 'mamba' is not supported, supported are llama, deci, qwen2"
    ):
        load(tmp_path, architecture="mamba")


def test_missing_tensors_are_all_named(tmp_path: Path) -> None:
    with pytest.raises(GGUFError, match=r"2 tensors \('blk.0.attn_k.weight', 'output_norm.weight'\) missing"):
        load(tmp_path, without=("output_norm.weight", "blk.0.attn_k.weight"))


def test_missing_embedding(tmp_path: Path) -> None:
    with pytest.raises(GGUFError, match=r"'token_embd.weight' is missing"):
        load(tmp_path, without=("token_embd.weight",))


def test_extra_tensors_are_a_warning_that_names_them(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "minillama.model"):
        model = load(tmp_path, extra=("blk.7.mystery.weight",))
    assert "blk.7.mystery.weight" in caplog.text
    assert np.isfinite(model.logits([1, 2])).all()


@pytest.mark.parametrize(
    ("key", "value", "error", "message"),
    [
        ("llama.attention.head_count_kv", [2, 2], GGUFError, "head_count_kv has 2 values, 1 are wanted"),
        ("llama.attention.head_count_kv", [0], GGUFError, r"head_count_kv\[0\] is 0"),
        ("llama.attention.head_count_kv", [-2], GGUFError, r"head_count_kv\[0\] is -2"),
        ("llama.attention.head_count_kv", [2.0], GGUFError, "head_count_kv is an array of float32, whole numbers"),
        ("llama.attention.head_count_kv", [True], GGUFError, "head_count_kv is an array of bool, whole numbers"),
        ("llama.attention.head_count", 4.0, GGUFError, "head_count': float 4.0 found, int wanted"),
        ("llama.attention.head_count", True, GGUFError, "head_count': bool True found, int wanted"),
        ("llama.attention.head_count", -4, GGUFError, "head_count is -4"),
        ("llama.feed_forward_length", 2**32, GGUFError, "feed_forward_length is 4294967296"),
        ("llama.rope.freq_base", -10000, GGUFError, "freq_base is -10000.0"),
        ("llama.rope.freq_base", True, GGUFError, "freq_base': bool True found, float wanted"),
        ("llama.attention.head_count_kv", 3, GGUFError, "head_count 4 is not a multiple of head_count_kv 3"),
        ("llama.attention.head_count", 0, GGUFError, "llama.attention.head_count is 0"),
        ("llama.block_count", 2**32 - 1, GGUFError, "llama.block_count is 4294967295"),
        ("llama.block_count", "one", GGUFError, "llama.block_count"),
        ("llama.expert_count", 8, GGUFError, "expert_used_count' is missing"),
        ("llama.rope.scaling.type", "dynamic", UnsupportedError, "rotary scaling 'dynamic'"),
        ("llama.rope.dimension_count", 63, GGUFError, "rope.dimension_count is 63"),
        ("llama.rope.dimension_count", 66, GGUFError, "rope.dimension_count is 66"),
        ("llama.attention.layer_norm_rms_epsilon", float("nan"), GGUFError, "rms_epsilon is nan"),
        ("llama.feed_forward_length", 256, GGUFError, r"'blk.0.ffn_gate.weight' has shape \(512, 256\)"),
    ],
)
def test_wrong_metadata(tmp_path: Path, key: str, value: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        load(tmp_path, metadata={key: value})


def test_missing_metadata_is_named(tmp_path: Path) -> None:
    path = tmp_path / "empty.gguf"
    with gguf.Writer(path, "llama") as writer:
        writer.add_tensor("token_embd.weight", np.zeros((4, 32), np.float32))
    with pytest.raises(GGUFError, match=r"llama.embedding_length.*missing"):
        Model(gguf.open(path))


def test_unsupported_tensor_type_names_type_and_tensor(tmp_path: Path) -> None:
    path = tmp_path / "integers.gguf"
    tiny = TinyModel(n_layer=1)
    with gguf.Writer(path, "llama") as writer:
        for key, value in tiny._metadata().items():
            writer.add(key, value)
        writer.add_tensor("token_embd.weight", np.zeros((266, 256), np.int8), GGMLType.I8, (266, 256))
    with pytest.raises(UnsupportedError, match=r"'token_embd.weight' has type I8, supported are F32, F16"):
        Model(gguf.open(path))


def test_a_file_without_vocabulary_works_on_ids(tmp_path: Path) -> None:
    path = TinyModel(n_layer=1, vocabulary=False).write(tmp_path / "ids.gguf")
    model = LanguageModel(gguf.open(path))
    assert model.logits([1, 2, 3]).shape == (3, model.config.n_vocab)
    assert model.trace([1, 2, 3], "blk.0.l_out").logits.shape == (3, model.config.n_vocab)
    for use in (
        lambda: model.generate("text"),
        lambda: model.stream("text"),
        lambda: model.chat([{"role": "user", "content": "Hi"}]),
        lambda: model.trace("text"),
        lambda: model.perplexity("text"),
        lambda: model.tokenizer,
    ):
        with pytest.raises(TokenizerError, match=r"no vocabulary: tokenizer\.ggml\.model is missing"):
            use()


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([], "at least one token id"),
        ([[1, 2]], r"shape \(1, 2\)"),
        ([0.5], "ids are float64"),
        ([1, -1], "id -1 at index 1"),
        ([10**6], "id 1000000 at index 0 is not in the vocabulary of 266"),
    ],
)
def test_wrong_ids(model: Model, ids: Any, message: str) -> None:
    cache = model.new_cache()
    with pytest.raises(InvalidInputError, match=message):
        model.forward(ids, cache)
    assert len(cache) == 0


@pytest.mark.parametrize("n_ctx", [0, 2.5, True])
@pytest.mark.parametrize("extend_context", [False, True])
def test_wrong_context(tmp_path: Path, n_ctx: Any, extend_context: bool) -> None:
    file = gguf.open(TinyModel(n_layer=1).write(tmp_path / "tiny.gguf"))
    with pytest.raises(InvalidInputError, match="a whole number from 1"):
        Model(file, n_ctx=n_ctx, extend_context=extend_context)


def test_more_than_the_trained_context_is_a_choice(tmp_path: Path) -> None:
    path = TinyModel(n_layer=1, n_ctx=70).write(tmp_path / "tiny.gguf")
    with pytest.raises(InvalidInputError, match=r"n_ctx is 71, the model was trained for 70: .* extend_context"):
        Model(gguf.open(path), n_ctx=71)
    model = Model(gguf.open(path), n_ctx=71, extend_context=True)
    assert model.n_ctx == 71
    assert len(model.logits([1] * 71)) == 71
    assert Model(gguf.open(path), extend_context=True).n_ctx == 70


def test_learned_positions_have_no_more_than_there_are(tmp_path: Path) -> None:
    path = FAMILIES["gpt2"].write(tmp_path / "gpt2.gguf", "f16")
    with pytest.raises(InvalidInputError, match="n_ctx is 513, the model has embeddings of 512 positions"):
        Model(gguf.open(path), n_ctx=513, extend_context=True)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("threads", 0, "threads is 0"),
        ("backend", "gpu", "backend 'gpu' does not exist, there are cpu, reference"),
        ("kv_type", "q5_0", "kv_type is 'q5_0', there are f32, f16"),
    ],
)
def test_wrong_options(tmp_path: Path, option: str, value: Any, message: str) -> None:
    file = gguf.open(TinyModel(n_layer=1).write(tmp_path / "tiny.gguf"))
    with pytest.raises(InvalidInputError, match=message):
        Model(file, **{option: value})


def test_wrong_logits_option(model: Model) -> None:
    with pytest.raises(InvalidInputError, match="'all', 'last' or None"):
        model.forward([1], model.new_cache(), logits="first")
