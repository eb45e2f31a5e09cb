"""LoRA adapters, bit-equal to llama.cpp's baseline build: as recorded, and live on every family (``llama_cpp``)."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import numpy as np
import pytest

from minillama import gguf
from minillama.model.model import Model
from minillama.verify import LlamaCpp
from tests.reference.adapters import IDS, PATH, TYPES, written
from tests.reference.build_llama_cpp import ensure
from tests.reference.test_logits import assert_same_positions, position_hashes
from tests.tiny_adapters import updatable, write_adapter
from tests.tiny_families import FAMILIES, file_hash

RECORDED = json.loads(PATH.read_text())["runs"]


@functools.cache
def baseline() -> LlamaCpp:
    return LlamaCpp(ensure("baseline"))


def assert_equal(model: Path, adapters: list[tuple[Path, float]]) -> None:
    (expected,) = baseline().logits(model, [IDS], adapters=adapters)
    ours = Model(gguf.open(model))
    plain = ours.logits(IDS)
    ours.adapters = [(ours.load_adapter(path), scale) for path, scale in adapters]
    logits = ours.logits(IDS)
    np.testing.assert_array_equal(logits, expected)
    assert (logits != plain).any(axis=1).all(), "an adapter that changes nothing proves nothing"


@pytest.mark.parametrize("run", RECORDED, ids=lambda run: f"{run['family']}-{run['types']}")
@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_recorded_adapters(tmp_path: Path, run: dict, backend: str) -> None:
    path, adapters = written(tmp_path, run["family"], run["types"])
    assert [file_hash(file) for file in (path, *(file for file, _ in adapters))] == run["files"]
    model = Model(gguf.open(path), backend=backend)
    model.adapters = [(model.load_adapter(file), scale) for file, scale in adapters]
    assert_same_positions(position_hashes(model.logits(IDS)), run["sha"], f"{run['family']} {run['types']}")


@pytest.mark.llama_cpp
@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("types", TYPES)
def test_one_adapter(tmp_path: Path, name: str, types: str) -> None:
    """Of all weights that llama.cpp updates, experts, routers, the head and the embedding among them."""
    family = FAMILIES[name]
    model = family.write(tmp_path / "model.gguf", family.types[-1] if types == "f32" else family.types[0])
    adapter = write_adapter(tmp_path / "adapter.gguf", model, types=TYPES[types])
    assert len(updatable(model)) == len(Model(gguf.open(model)).load_adapter(adapter))
    assert_equal(model, [(adapter, 0.7)])


@pytest.mark.llama_cpp
@pytest.mark.parametrize("name", ["llama", "gemma2", "olmoe"])
@pytest.mark.parametrize("scales", [(1.0, 0.3), (0.3, 1.0), (0.0, 1.0), (-0.5, 0.5)])
def test_two_adapters(tmp_path: Path, name: str, scales: tuple[float, float]) -> None:
    model = FAMILIES[name].write(tmp_path / "model.gguf", "f16")
    first = write_adapter(tmp_path / "first.gguf", model, seed=1)
    second = write_adapter(tmp_path / "second.gguf", model, seed=2, alpha=None, rank=5)
    assert_equal(model, [(first, scales[0]), (second, scales[1])])


@pytest.mark.llama_cpp
@pytest.mark.parametrize("rank", [1, 3, 8])
def test_small_ranks(tmp_path: Path, rank: int) -> None:
    model = FAMILIES["qwen2"].write(tmp_path / "model.gguf", "quantized")
    assert_equal(model, [(write_adapter(tmp_path / "adapter.gguf", model, rank=rank, types=TYPES["f16"]), 1.0)])
