"""Models with caches of every type: the same bits however they are computed, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from minillama import gguf
from minillama.errors import InvalidInputError
from minillama.model.model import Model
from minillama.trace import Trace
from tests.tiny_families import FAMILIES
from tests.tiny_models import TinyModel

IDS = np.random.default_rng(8).integers(0, 256, 100)
TYPES = pytest.mark.parametrize("kv_type", ["bf16", "q8_0", "q4_0", "q8_0,f16", ("f32", "q4_0")])


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return TinyModel(n_ctx=200).write(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest.fixture(scope="module")
def logits_f32(path: Path) -> np.ndarray:
    return Model(gguf.open(path)).logits(IDS)


@TYPES
def test_however_it_is_computed(path: Path, kv_type: str | tuple[str, str], logits_f32: np.ndarray) -> None:
    model = Model(gguf.open(path), kv_type=kv_type)
    whole = model.logits(IDS)
    cache = model.new_cache()
    parts = [model.forward(IDS[a:b], cache, logits="all") for a, b in ((0, 1), (1, 70), (70, 99), (99, 100))]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    for options in ({"driver": "eager"}, {"backend": "reference"}, {"threads": 1}):
        other = Model(gguf.open(path), kv_type=kv_type, **options)
        np.testing.assert_array_equal(other.logits(IDS[:40]), whole[:40])
    # Another type is another result, and not far from it: 4 bits are coarse, but no garbage.
    assert not np.array_equal(whole, logits_f32)
    assert np.abs(whole - logits_f32).max() < 0.5 * np.abs(logits_f32).max()


@TYPES
def test_forks_files_and_shifts(path: Path, tmp_path: Path, kv_type: str | tuple[str, str]) -> None:
    model = Model(gguf.open(path), kv_type=kv_type)
    cache = model.new_cache()
    model.forward(IDS, cache, logits=None)
    twin = cache.fork()
    twin.truncate(90)
    want = model.logits([*IDS[:90], 5])[-1]
    np.testing.assert_array_equal(model.forward([5], twin), want)
    cache.shift(20, n_keep=3)
    cache.save(tmp_path / "cache.kv")
    loaded = model.load_cache(tmp_path / "cache.kv")
    np.testing.assert_array_equal(model.forward([5], loaded), model.forward([5], cache))
    assert cache.kv_type in repr(cache)


@TYPES
def test_attention_in_parts(path: Path, kv_type: str | tuple[str, str]) -> None:
    model = Model(gguf.open(path), kv_type=kv_type)
    trace = Trace(model, ["blk.1.kq_soft_max", "blk.1.kqv"]).run(IDS[:30], model, model.new_cache())
    np.testing.assert_array_equal(trace.logits, model.logits(IDS[:30]))
    plain = Trace(model, "blk.1.kqv").run(IDS[:30], model, model.new_cache())
    np.testing.assert_array_equal(trace["blk.1.kqv"], plain["blk.1.kqv"])


@pytest.mark.parametrize("name", ["gemma2", "gpt-oss"])
def test_windows_caps_and_sinks(tmp_path: Path, name: str) -> None:
    path = FAMILIES[name].write(tmp_path / "tiny.gguf", "f16")
    model = Model(gguf.open(path), kv_type="q8_0")
    cache = model.new_cache()
    parts = [model.forward(part, cache, logits="all") for part in (IDS[:13], IDS[13:14], IDS[14:40])]
    np.testing.assert_array_equal(np.concatenate(parts), model.logits(IDS[:40]))
    exact = Model(gguf.open(path)).logits(IDS[:40])
    assert np.abs(model.logits(IDS[:40]) - exact).max() < 0.1 * np.abs(exact).max()


def test_types_take_the_memory_they_say(path: Path) -> None:
    sizes = {
        kv_type: Model(gguf.open(path), kv_type=kv_type).new_cache().bytes_per_position
        for kv_type in ("f32", "f16", "bf16", "q8_0", "q4_0", "q8_0,f16")
    }
    values = 2 * 2 * 2 * 64  # keys and values of 2 heads in 2 layers
    assert sizes == {
        "f32": 4 * values, "f16": 2 * values, "bf16": 2 * values, "q8_0": values * 34 // 32, "q4_0": values * 18 // 32,
        "q8_0,f16": values * 34 // 64 + values,
    }  # fmt: skip


@pytest.mark.parametrize("kv_type", ["q5_0", "f16,f16,f16", "", "F16", ("f16", "int8"), ("f16",) * 3])
def test_unknown_types(path: Path, kv_type: str) -> None:
    with pytest.raises(InvalidInputError, match=r"kv_type is .*, there are f32, f16, bf16, q8_0, q4_0, and pairs"):
        Model(gguf.open(path), kv_type=kv_type)


def test_heads_that_are_not_whole_blocks(tmp_path: Path) -> None:
    path = TinyModel(n_layer=1, n_head=16, n_head_kv=8).write(tmp_path / "tiny.gguf")
    for kv_type in ("q8_0", "f16,q4_0"):
        with pytest.raises(InvalidInputError, match="takes heads of a multiple of 32 values; the model's have 16"):
            Model(gguf.open(path), kv_type=kv_type)
    assert len(Model(gguf.open(path), kv_type="bf16").logits([1, 2])) == 2


def test_heads_that_are_not_rotated(tmp_path: Path) -> None:
    path = TinyModel(n_layer=1, n_head=8, n_head_kv=4).write(tmp_path / "tiny.gguf")
    model = Model(gguf.open(path), kv_type="q8_0")
    cache = model.new_cache()
    assert cache.pool.key_rotation(0) == cache.pool.value_rotation(0) == 0
    exact = Model(gguf.open(path)).logits(IDS[:40])
    assert np.abs(model.logits(IDS[:40]) - exact).max() < 0.1 * np.abs(exact).max()
