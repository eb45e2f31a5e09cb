"""Caches on disk: what is saved is loaded to the bit, and what does not fit is refused in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from minillama import gguf
from minillama.errors import CacheFileError
from minillama.model.model import Model
from minillama.runtime import kv_file, kv_layout
from tests.tiny_families import FAMILIES
from tests.tiny_models import TinyModel

IDS = np.random.default_rng(4).integers(0, 256, 150)
TINY = TinyModel(n_layer=1, n_ctx=200)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("caches")


@pytest.fixture(scope="module")
def path(folder: Path) -> Path:
    return TINY.write(folder / "tiny.gguf")


@pytest.fixture(scope="module")
def model(path: Path) -> Model:
    return Model(gguf.open(path))


@pytest.fixture(scope="module")
def saved(folder: Path, model: Model) -> Path:
    cache = model.new_cache()
    model.forward(IDS[:100], cache, logits=None)
    cache.save(folder / "saved.kv")
    return folder / "saved.kv"


@pytest.mark.parametrize("kv_type", ["f32", "f16"])
@pytest.mark.parametrize("n", [0, 1, 64, 65, 150])
def test_a_saved_cache_goes_on_in_another_process(path: Path, tmp_path: Path, kv_type: str, n: int) -> None:
    first, second = (Model(gguf.open(path), kv_type=kv_type) for _ in range(2))
    cache = first.new_cache()
    if n:
        first.forward(IDS[:n], cache, logits=None)
    cache.save(tmp_path / "cache.kv")
    loaded = second.load_cache(tmp_path / "cache.kv")
    assert loaded.tokens == cache.tokens == tuple(IDS[:n])
    assert not loaded.altered
    np.testing.assert_array_equal(second.forward([7, 8], loaded), first.forward([7, 8], cache))


def test_a_fork_of_shuffled_blocks_is_saved_in_order(model: Model, tmp_path: Path) -> None:
    cache, other = model.new_cache(), model.new_cache()
    for first in range(0, 140, 35):  # two sequences take blocks in turn
        model.forward(IDS[first : first + 35], cache, logits=None)
        model.forward(IDS[first : first + 35][::-1], other, logits=None)
    twin = cache.fork()
    assert np.diff(twin.blocks).max() > 1
    twin.save(tmp_path / "cache.kv")
    loaded = model.load_cache(tmp_path / "cache.kv")
    np.testing.assert_array_equal(model.forward([5], loaded), model.logits([*IDS[:140], 5])[-1])


def test_an_altered_cache_stays_altered(model: Model, tmp_path: Path) -> None:
    cache = model.new_cache()
    model.forward(IDS[:50], cache, logits=None)
    cache.shift(10)
    cache.save(tmp_path / "cache.kv")
    loaded = model.load_cache(tmp_path / "cache.kv")
    assert loaded.altered
    np.testing.assert_array_equal(model.forward([5], loaded), model.forward([5], cache))


def test_a_loaded_cache_can_be_truncated_and_forked(model: Model, saved: Path) -> None:
    cache = model.load_cache(saved)
    twin = cache.fork()
    cache.truncate(30)
    np.testing.assert_array_equal(model.forward([5], cache), model.logits([*IDS[:30], 5])[-1])
    np.testing.assert_array_equal(model.forward([5], twin), model.logits([*IDS[:100], 5])[-1])


def test_a_moved_and_renamed_model_is_the_same(path: Path, saved: Path, tmp_path: Path) -> None:
    moved = tmp_path / "other-name.gguf"
    moved.write_bytes(path.read_bytes())
    assert len(Model(gguf.open(moved)).load_cache(saved)) == 100


def test_other_weights_are_refused(saved: Path, tmp_path: Path) -> None:
    other = TinyModel(n_layer=1, n_ctx=200, seed=1).write(tmp_path / "tiny.gguf")
    with pytest.raises(CacheFileError, match=r"saved\.kv: made by another model"):
        Model(gguf.open(other)).load_cache(saved)


def test_other_factors_are_refused(tmp_path: Path) -> None:
    path = FAMILIES["phi3-long"].write(tmp_path / "phi3.gguf", "f16")
    long, short = (Model(gguf.open(path), n_ctx=n) for n in (65, 64))
    cache = long.new_cache()
    long.forward(IDS[:9], cache, logits=None)
    cache.save(tmp_path / "cache.kv")
    with pytest.raises(CacheFileError, match="other settings"):
        short.load_cache(tmp_path / "cache.kv")


def test_another_type_is_refused(path: Path, saved: Path) -> None:
    with pytest.raises(CacheFileError, match="keys and values as f32, the model was loaded with kv_type='f16'"):
        Model(gguf.open(path), kv_type="f16").load_cache(saved)


def test_another_numerics_is_refused(model: Model, saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_layout, "NUMERICS", kv_layout.NUMERICS + 1)
    with pytest.raises(CacheFileError, match=r"made by numerics 1, this is 2: compute it afresh"):
        model.load_cache(saved)


def test_more_than_the_context_is_refused(path: Path, saved: Path) -> None:
    with pytest.raises(CacheFileError, match=r"holds 100 positions, the context is 99 \(n_ctx\)"):
        Model(gguf.open(path), n_ctx=99).load_cache(saved)


def _edit_header(key: str, value: object) -> Callable[[bytes], bytes]:
    def edit(data: bytes) -> bytes:
        n = int.from_bytes(data[8:16], "little")
        return kv_layout.encoded_header({**json.loads(data[16 : 16 + n]), key: value}) + data[16 + n :]

    return edit


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: b"", "not a file of a cache"),
        (lambda data: data[:11], "not a file of a cache"),
        (lambda data: b"GGUF" + data[4:], "not a file of a cache"),
        (lambda data: data[:100], "the header is damaged"),
        (lambda data: data[:8] + b"\xff" * 8 + data[16:], "the header is damaged"),
        (lambda data: data[:16] + b"\xff" + data[17:], "the header is damaged"),
        (lambda data: data[:-1], r"the file has \d+ bytes, a cache of 2 blocks takes \d+"),
        (lambda data: data + b"\0", r"the file has \d+ bytes, a cache of 2 blocks takes \d+"),
        (lambda data: data[: len(data) // 2], r"the file has \d+ bytes"),
        (lambda data: data[:5000] + bytes([data[5000] ^ 1]) + data[5001:], "the checksum is wrong"),
        (_edit_header("n_blocks", 3), r"the file has \d+ bytes"),
        (_edit_header("n_blocks", -1), "the header is damaged"),
        (_edit_header("n_blocks", "many"), "the header is damaged"),
        (_edit_header("layers", [[1, 2, 3]]), "its layers are not those of this model"),
        (_edit_header("block", 32), "blocks of 32 positions"),
    ],
)  # fmt: skip
def test_damage_is_refused_in_one_line(
    model: Model, saved: Path, tmp_path: Path, damage: Callable[[bytes], bytes], message: str
) -> None:
    path = tmp_path / "damaged.kv"
    path.write_bytes(damage(saved.read_bytes()))
    n_blocks = model.new_cache().pool._uses.sum()
    with pytest.raises(CacheFileError, match=message) as caught:
        model.load_cache(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert model.new_cache().pool._uses.sum() == n_blocks


def test_writing_is_all_or_nothing(model: Model, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "cache.kv"
    path.write_bytes(saved.read_bytes())
    cache = model.load_cache(saved)

    def fail(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(kv_file.os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        cache.save(path)
    assert path.read_bytes() == saved.read_bytes()
    assert list(tmp_path.iterdir()) == [path]


def test_a_cache_replaces_one_of_the_same_name(model: Model, tmp_path: Path) -> None:
    cache = model.new_cache()
    for n in (3, 90):
        model.forward(IDS[:n], cache, logits=None)
        cache.save(tmp_path / "cache.kv")
        assert model.load_cache(tmp_path / "cache.kv").tokens == cache.tokens
    assert len(list(tmp_path.iterdir())) == 1


def test_a_file_that_is_not_there(model: Model, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        model.load_cache(tmp_path / "none.kv")
