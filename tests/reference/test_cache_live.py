"""The cache beside llama.cpp's: logits after shifts, and with other types of keys and values, to the bit."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minillama import gguf
from minillama.model.model import Model
from minillama.verify import LlamaCpp
from tests.reference.build_llama_cpp import ensure
from tests.reference.live_cache import LlamaCppError, logits_after
from tests.tiny_families import FAMILIES

pytestmark = pytest.mark.llama_cpp
RNG = np.random.default_rng(5)
IDS, MORE = RNG.integers(0, 256, 92), RNG.integers(0, 256, 9)


@functools.cache
def baseline() -> LlamaCpp:
    llama = LlamaCpp(ensure("baseline"))
    assert llama.is_baseline
    return llama


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache_live")


def written(folder: Path, name: str) -> Path:
    path = folder / f"{name}.gguf"
    return path if path.exists() else FAMILIES[name].write(path, "f16")


def ours(path: Path, shifts: list[tuple[int, int]], ids: np.ndarray = IDS, **options: Any) -> np.ndarray:
    model = Model(gguf.open(path), **options)
    cache = model.new_cache()
    logits = [model.forward(ids, cache, logits="all")]
    for n_keep, n_discard in shifts:
        cache.shift(n_discard, n_keep=n_keep)
    logits += [model.forward(part, cache, logits="all") for part in (MORE[:8], MORE[8:])]
    return np.concatenate(logits)


# Neighbours and halves, frequency factors, linear scaling, YaRN (whose factor llama.cpp applies once more), LongRoPE,
# partial rotation, norms of keys.
SHIFTED = ["llama", "llama-3.1", "llama-linear", "llama-yarn", "qwen2", "qwen3", "phi3", "gptneox", "stablelm"]


@pytest.mark.parametrize("name", SHIFTED)
@pytest.mark.parametrize("kv_type", ["f32", "f16"])
def test_a_shifted_cache(folder: Path, name: str, kv_type: str) -> None:
    """Twice, so that what was rotated is rotated again; numbers that are no multiples of anything."""
    path, shifts = written(folder, name), [(5, 23), (0, 11)]
    want = logits_after(baseline(), path, IDS, MORE, parts=[8, 1], shifts=shifts, kv_type=kv_type)
    np.testing.assert_array_equal(ours(path, shifts, kv_type=kv_type), want)


@pytest.mark.parametrize("name", ["gemma2", "gemma3", "gpt-oss", "llama", "olmo3"])
@pytest.mark.parametrize("kv_type", ["f32", "f16"])
def test_a_shifted_cache_as_it_lies(folder: Path, name: str, kv_type: str) -> None:
    """llama.cpp puts new tokens into the hole that a shift leaves, and adds exponentials up in fours of its cells.

    With multiples of four these are our fours; saved and restored, windows would lose cells and fours their places.
    """
    path, shifts = written(folder, name), [(8, 24)]
    want = logits_after(baseline(), path, IDS, MORE, parts=[8, 1], shifts=shifts, kv_type=kv_type, repack=False)
    np.testing.assert_array_equal(ours(path, shifts, kv_type=kv_type), want)


@pytest.mark.parametrize("name", ["smollm3", "cohere2"])
def test_where_llama_cpp_rotates_what_it_should_not(folder: Path, name: str) -> None:
    """It rotates all layers alike, those that do not rotate too; known differences."""
    path, shifts = written(folder, name), [(8, 24)]
    want = logits_after(baseline(), path, IDS, MORE, parts=[8, 1], shifts=shifts, repack=False)
    got = ours(path, shifts)
    np.testing.assert_array_equal(got[: len(IDS)], want[: len(IDS)])
    assert not np.array_equal(got[len(IDS) :], want[len(IDS) :])


def test_beyond_the_trained_context(folder: Path) -> None:
    ids = np.random.default_rng(6).integers(0, 256, 600)
    path = written(folder, "llama-yarn")
    want = logits_after(baseline(), path, ids, MORE, parts=[8, 1])
    np.testing.assert_array_equal(ours(path, [], ids, n_ctx=700, extend_context=True), want)


# Heads of 64 and 128 values, neighbours and halves, norms, windows with caps, sinks.
TYPED = ["llama", "llama-3.1", "qwen2", "qwen3", "gemma2", "gemma3", "gpt-oss"]


@pytest.mark.parametrize("name", TYPED)
@pytest.mark.parametrize("kv_type", ["bf16", "q8_0,f32", "q8_0,f16", "q4_0,f32", "q4_0,bf16", "f16,bf16"])
def test_types_of_keys_and_values(folder: Path, name: str, kv_type: str) -> None:
    path = written(folder, name)
    want = logits_after(baseline(), path, IDS, MORE, parts=[8, 1], kv_type=kv_type)
    np.testing.assert_array_equal(ours(path, [], kv_type=kv_type), want)


@pytest.mark.parametrize("name", ["llama", "qwen2"])
@pytest.mark.parametrize("kv_type", ["q8_0,f32", "q4_0,f16"])
def test_a_shifted_cache_of_packed_keys(folder: Path, name: str, kv_type: str) -> None:
    path, shifts = written(folder, name), [(5, 23), (0, 11)]
    want = logits_after(baseline(), path, IDS, MORE, parts=[8, 1], shifts=shifts, kv_type=kv_type)
    np.testing.assert_array_equal(ours(path, shifts, kv_type=kv_type), want)


def test_packed_values_have_no_counterpart(folder: Path) -> None:
    """llama.cpp refuses them without flash attention, whose order is another: our rule is our own (ADR 8)."""
    with pytest.raises(LlamaCppError, match="cannot make a context"):
        logits_after(baseline(), written(folder, "llama"), IDS, kv_type="f32,q8_0")
