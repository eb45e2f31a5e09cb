"""Files of the families that are incomplete or contradict themselves are refused with a message that names why."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minillama import gguf
from minillama.errors import GGUFError, MinillamaError, UnsupportedError
from minillama.model.model import Model
from tests.tiny_families import FAMILIES, TinyFamily


def load(folder: Path, tiny: TinyFamily) -> Model:
    return Model(gguf.open(tiny.write(folder / "tiny.gguf", tiny.types[0])))


def without(name: str, *tensors: str) -> TinyFamily:
    tiny = FAMILIES[name]
    return replace(tiny, layer={tensor: shape for tensor, shape in tiny.layer.items() if tensor not in tensors})


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("qwen3", "attn_q_norm"),
        ("gemma2", "post_ffw_norm"),
        ("gpt-oss", "attn_sinks"),
        ("gpt-oss", "ffn_up_exps.bias"),
        ("gpt2", "attn_qkv"),
        ("starcoder2", "attn_k"),
        ("llama-moe", "ffn_gate_inp"),
        ("granitemoe", "ffn_down_shexp"),
    ],
)
def test_a_tensor_that_the_family_needs_is_named(tmp_path: Path, name: str, tensor: str) -> None:
    full = tensor if tensor.endswith(".bias") else f"{tensor}.weight"
    with pytest.raises(GGUFError, match=f"'blk.0.{full}'.*missing"):
        load(tmp_path, without(name, tensor))


def test_a_tensor_of_another_family_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tiny = FAMILIES["mistral"]
    with caplog.at_level(logging.WARNING, "minillama.model"):
        load(tmp_path, replace(tiny, layer={**tiny.layer, "attn_q_norm": (64,)}))
    assert "blk.0.attn_q_norm.weight" in caplog.text


@pytest.mark.parametrize(
    ("name", "key", "value", "error", "message"),
    [
        ("llama-moe", "expert_used_count", 5, GGUFError, "expert_used_count 5 is more than 4 experts"),
        ("olmo3", "attention.sliding_window_pattern", [True], GGUFError, "has 1 values, 3 are wanted"),
        ("gemma3", "attention.sliding_window", -1, GGUFError, "sliding_window is -1"),
        ("granite", "logit_scale", 0.0, GGUFError, "logit_scale is 0.0"),
        ("phi3", "rope.scaling.type", "dynamic", UnsupportedError, "supported are none, linear, yarn, longrope"),
        ("qwen3moe", "expert_feed_forward_length", 512, GGUFError, "shape .* the configuration wants"),
    ],
)
def test_wrong_metadata(
    tmp_path: Path, name: str, key: str, value: Any, error: type[MinillamaError], message: str
) -> None:
    tiny = FAMILIES[name]
    with pytest.raises(error, match=message):
        load(tmp_path, replace(tiny, metadata={**tiny.metadata, key: value}))


@pytest.mark.parametrize(
    ("name", "key"),
    [("cohere2", "attention.sliding_window"), ("granite", "logit_scale"), ("gptneox", "use_parallel_residual")],
)
def test_a_key_that_the_family_needs_is_named(tmp_path: Path, name: str, key: str) -> None:
    tiny = FAMILIES[name]
    with pytest.raises(GGUFError, match=f"{tiny.architecture}.{key}' is missing"):
        load(tmp_path, replace(tiny, metadata={k: v for k, v in tiny.metadata.items() if k != key}))


@pytest.mark.parametrize("name", ["gemma2", "gemma3", "gpt-oss", "gpt2", "qwen2moe"])
def test_sequences_side_by_side_equal_each_alone(tmp_path: Path, name: str) -> None:
    model = load(tmp_path, FAMILIES[name])
    texts = [np.random.default_rng(n).integers(0, 256, n) for n in (3, 66, 1, 17)]
    together = model.forward_batch(texts, [model.new_cache() for _ in texts], logits="all")
    assert together is not None
    for text, logits in zip(texts, together, strict=True):
        np.testing.assert_array_equal(logits, model.logits(text))
