"""Logits of real and tiny models, bit-equal to llama.cpp's baseline build at every position.

``real``: against the committed recording (logits.json), as one prompt, in chunks and token by token.
``llama_cpp``: live against the build itself, for real models and for tiny ones of every kind.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minillama import gguf
from minillama.gguf import GGMLType
from minillama.hub import pull
from minillama.kernels.layouts import WEIGHT_TYPES
from minillama.model.model import Model
from minillama.verify import LlamaCpp
from minillama.verify.logits import first_difference
from tests.reference.build_llama_cpp import ensure
from tests.reference.record_logits import PATH, wanted
from tests.reference.texts import TEXTS
from tests.tiny_models import TinyModel

RECORDING = json.loads(PATH.read_text())
# The whole prompt at once; chunks that straddle the cache's blocks of 64; every token alone.
CHUNKINGS = {"whole": 10**6, "chunks": 7, "single": 1}


def position_hashes(logits: np.ndarray) -> list[str]:
    return [hashlib.sha256(np.ascontiguousarray(row).tobytes()).hexdigest()[:16] for row in logits]


def hashes_in_chunks(model: Model, ids: Sequence[int], size: int) -> list[str]:
    cache, hashes = model.new_cache(), []
    for first in range(0, len(ids), size):
        logits = model.forward(ids[first : first + size], cache, logits="all")
        assert logits is not None
        hashes += position_hashes(logits)
    return hashes


@functools.cache
def model_of(name: str, kv_type: str) -> Model:
    return Model(gguf.open(pull(name)), kv_type=kv_type)


def assert_same_positions(ours: list[str], theirs: list[str], what: str) -> None:
    different = [i for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b]
    first = different[0] if different else None
    assert not different, f"{what}: {len(different)} of {len(theirs)} positions differ, the first is {first}"


@functools.cache
def baseline() -> LlamaCpp:
    llama = LlamaCpp(ensure("baseline"))
    assert llama.is_baseline
    return llama


def recorded_runs() -> list[Any]:
    return [pytest.param(run, id=f"{run['model']}-{run['kv_type']}-{run['text']}") for run in RECORDING["runs"]]


@pytest.mark.real
@pytest.mark.parametrize("run", recorded_runs())
@pytest.mark.parametrize("chunking", CHUNKINGS)
def test_recorded(run: dict[str, Any], chunking: str) -> None:
    size = CHUNKINGS[chunking]
    hashes = hashes_in_chunks(model_of(run["model"], run["kv_type"]), run["ids"], size)
    assert_same_positions(hashes, run["sha"], f"{run['model']} {run['kv_type']} {run['text']} {chunking}")


def test_the_recording_is_complete() -> None:
    assert [(run["model"], run["kv_type"], run["text"]) for run in RECORDING["runs"]] == wanted()
    for run in RECORDING["runs"]:
        assert len(run["sha"]) == len(run["ids"]) == run["n_prompt"] + 48


# Live, on fewer texts for the larger models: the build computes 2 to 30 tokens a second.
LIVE = {
    ("smollm2-135m", "f32"): tuple(TEXTS),
    ("smollm2-135m", "f16"): ("english", "chat"),
    ("qwen2.5-coder-0.5b", "f32"): ("english", "code", "chinese", "letter"),
    ("qwen2.5-coder-1.5b", "f32"): ("english", "letter"),
    ("gemma3-270m", "f32"): ("english", "code", "letter"),
}


@pytest.mark.llama_cpp
@pytest.mark.real
@pytest.mark.parametrize(("name", "kv_type"), LIVE)
def test_live(name: str, kv_type: str) -> None:
    texts = LIVE[name, kv_type]
    model = model_of(name, kv_type)
    recorded = {run["text"]: run for run in RECORDING["runs"] if (run["model"], run["kv_type"]) == (name, kv_type)}
    for text, answer in zip(
        texts, baseline().evaluate(pull(name), [TEXTS[t] for t in texts], kv_type=kv_type), strict=True
    ):
        assert answer["sha"] == recorded[text]["sha"], f"{text}: the build no longer computes what was recorded"
        assert_same_positions(hashes_in_chunks(model, answer["ids"], 10**6), answer["sha"], f"{name} {text}")


TINY = {
    "grouped": TinyModel(),
    "multi_head": TinyModel(n_head=4, n_head_kv=4),
    "tied": TinyModel(tied=True, embedding_type=GGMLType.Q8_0),
    "qwen2_bias": TinyModel(architecture="qwen2", bias=True, matrix_type=GGMLType.Q5_0),
    "llama_bias": TinyModel(bias=True),
    "linear_rope": TinyModel(
        metadata={"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0, "llama.rope.freq_base": 5e5}
    ),
    **{f"type_{type_.name}": TinyModel(matrix_type=type_, embedding_type=type_) for type_ in WEIGHT_TYPES},
}


@pytest.mark.llama_cpp
@pytest.mark.parametrize("kv_type", ["f32", "f16"])
@pytest.mark.parametrize("kind", TINY)
def test_live_tiny(tmp_path: Path, kind: str, kv_type: str) -> None:
    path = TINY[kind].write(tmp_path / "tiny.gguf")
    model = Model(gguf.open(path), kv_type=kv_type)
    text = "the cat and the dog, in the end. " * 3
    (answer,) = baseline().evaluate(path, [text], n_predict=8, kv_type=kv_type)
    for size in CHUNKINGS.values():
        assert_same_positions(hashes_in_chunks(model, answer["ids"], size), answer["sha"], f"{kind} {size}")


@pytest.mark.llama_cpp
@pytest.mark.real
@pytest.mark.parametrize("name", ["smollm2-135m", "qwen2.5-coder-0.5b", "gemma3-270m"])
def test_live_named_tensors(name: str) -> None:
    """Layer by layer, so that a fault in the logits has a place."""
    (run,) = [r for r in RECORDING["runs"] if (r["model"], r["kv_type"], r["text"]) == (name, "f32", "english")]
    prompt = run["ids"][: run["n_prompt"]]
    model = model_of(name, "f32")
    first, compared = first_difference(model, prompt, baseline().tensors(pull(name), prompt))
    assert first is None
    assert compared > 12 * model.config.n_layer
