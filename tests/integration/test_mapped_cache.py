"""Caches in memory-mapped files: the bits of caches in memory, whatever ends the process in between."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from minillama import gguf
from minillama.errors import CacheFileError, ContextFullError, InvalidInputError
from minillama.model.model import Model
from minillama.runtime import mapped_cache
from minillama.runtime.mapped_cache import MappedCache
from minillama.trace import Trace
from tests.tiny_families import FAMILIES
from tests.tiny_models import TinyModel

IDS = np.random.default_rng(6).integers(0, 256, 200)
TINY = TinyModel(n_layer=2, n_ctx=200)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return TINY.write(tmp_path_factory.mktemp("mapped") / "tiny.gguf")


@pytest.fixture(scope="module")
def model(path: Path) -> Model:
    return Model(gguf.open(path))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "long.kv"


def filled(model: Model, file: Path, n: int = 100) -> MappedCache:
    cache = model.open_cache(file)
    model.forward(IDS[:n], cache, logits=None)
    return cache


def closed(model: Model, file: Path, n: int = 100) -> Path:
    filled(model, file, n).close()
    return file


@pytest.mark.parametrize("kv_type", ["f32", "f16", "bf16", "q8_0,f16"])
@pytest.mark.parametrize("driver", ["captured", "eager"])
def test_bits_are_those_of_a_cache_in_memory(tmp_path: Path, file: Path, kv_type: str, driver: str) -> None:
    path = TinyModel(n_layer=2, n_ctx=200, n_embd=128, n_head=4, n_head_kv=2).write(tmp_path / "tiny.gguf")
    model = Model(gguf.open(path), kv_type=kv_type, driver=driver)
    cache, ordinary = model.open_cache(file), model.new_cache()

    def assert_same(ids: np.ndarray) -> None:
        np.testing.assert_array_equal(*(model.forward(ids, each, logits="all") for each in (cache, ordinary)))

    for first, last in ((0, 1), (1, 63), (63, 130)):
        assert_same(IDS[first:last])
    cache.truncate(70)
    ordinary.truncate(70)
    assert_same(IDS[70:140])
    cache.shift(30, n_keep=2)
    ordinary.shift(30, n_keep=2)
    assert_same(IDS[140:150])
    cache.close()
    again = Model(gguf.open(path), kv_type=kv_type, driver=driver)
    with again.open_cache(file) as cache:
        assert cache.tokens == ordinary.tokens
        assert cache.altered
        np.testing.assert_array_equal(again.forward(IDS[:9], cache), model.forward(IDS[:9], ordinary))


_KILLED = """
import os, signal, sys
import numpy as np
from minillama import gguf
from minillama.model.model import Model

model = Model(gguf.open(sys.argv[1]))
cache = model.open_cache(sys.argv[2])
ids = np.random.default_rng(6).integers(0, 256, 200)
for first in range(0, 90, 30):
    model.forward(ids[first : first + 30], cache, logits=None)
cache.truncate(80)
cache.reserve(70)  # what was begun does not count
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_process_leaves_what_it_computed(model: Model, path: Path, file: Path) -> None:
    process = subprocess.run([sys.executable, "-c", _KILLED, path, file], check=False)
    assert process.returncode == -signal.SIGKILL
    with model.open_cache(file) as cache:
        assert cache.tokens == tuple(IDS[:80])
        np.testing.assert_array_equal(model.forward([3], cache), model.logits([*IDS[:80], 3])[-1])


def test_a_process_that_ends_closes_it(path: Path, file: Path) -> None:
    script = _KILLED.replace("os.kill(os.getpid(), signal.SIGKILL)", "")
    subprocess.run([sys.executable, "-c", script, path, file], check=True)
    assert not _state(file)[2:].any()


def test_only_one_has_it_open(model: Model, path: Path, file: Path) -> None:
    cache = filled(model, file)
    with pytest.raises(CacheFileError, match=r"long\.kv: is open already, here or in another process"):
        model.open_cache(file)
    process = subprocess.run(
        [sys.executable, "-c", _KILLED, path, file], check=False, stderr=subprocess.PIPE, text=True
    )
    assert "is open already" in process.stderr
    del cache  # as good as close(), though plans still point to its memory
    with model.open_cache(file) as cache:
        assert len(cache) == 100


def test_a_closed_cache_is_refused(model: Model, file: Path) -> None:
    cache = filled(model, file)
    cache.close()
    cache.close()
    calls: list[Callable[[], object]] = [
        lambda: model.forward([1], cache), cache.fork, cache.flush, lambda: cache.truncate(5), lambda: cache.shift(5),
        lambda: cache.save(file.with_name("other.kv")),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(InvalidInputError, match=r"long\.kv: the cache was closed, open it again"):
            call()
    assert _state(file).tolist() == [100, 0, 0, 0]


def test_forks_are_in_memory(model: Model, file: Path) -> None:
    cache = filled(model, file)
    twin = cache.fork()
    model.forward(IDS[::-1][:30], cache, logits=None)
    cache.close()
    np.testing.assert_array_equal(model.forward([5], twin), model.logits([*IDS[:100], 5])[-1])
    batch = model.forward_batch([[5], [6]], [twin, model.new_cache()])
    np.testing.assert_array_equal(batch[1], model.logits([6])[-1])


def test_copies_are_saved_and_loaded(model: Model, file: Path, tmp_path: Path) -> None:
    with filled(model, file) as cache:
        cache.save(tmp_path / "copy.kv")
        with pytest.raises(InvalidInputError, match="the cache's own file"):
            cache.save(file)
    loaded = model.load_cache(tmp_path / "copy.kv")
    np.testing.assert_array_equal(model.forward([5], loaded), model.logits([*IDS[:100], 5])[-1])


def test_space_is_taken_as_it_is_filled(path: Path, tmp_path: Path) -> None:
    model = Model(gguf.open(path), n_ctx=100_000, extend_context=True)
    with filled(model, tmp_path / "long.kv", 100) as cache:
        status = (tmp_path / "long.kv").stat()
        assert status.st_size > 2 * 100_000 * cache.bytes_per_position
        assert 512 * status.st_blocks < 1_000_000 + 300 * cache.bytes_per_position


def test_a_full_disk_is_an_error_and_the_cache_is_as_before(
    model: Model, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = filled(model, file)
    left, allocate = [3], os.posix_fallocate

    def nearly_full(descriptor: int, offset: int, length: int) -> None:
        if not left[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        left[0] -= 1
        allocate(descriptor, offset, length)

    monkeypatch.setattr(os, "posix_fallocate", nearly_full)
    used = cache.pool._uses.copy()
    for call in (lambda: model.forward(IDS[100:150], cache), lambda: cache.shift(10)):
        with pytest.raises(OSError, match=r"No space left on device: .*long\.kv"):
            call()
        assert cache.tokens == tuple(IDS[:100])
        np.testing.assert_array_equal(cache.pool._uses, used)
    np.testing.assert_array_equal(model.forward([5], cache), model.logits([*IDS[:100], 5])[-1])


def test_a_file_that_is_cut_short_is_an_error(model: Model, file: Path) -> None:
    cache = filled(model, file)
    os.truncate(file, 5000)
    with pytest.raises(CacheFileError, match=r"the file had \d+ bytes when it was opened and has 5000"):
        model.forward([1], cache)


def test_edited_values_are_remembered(model: Model, file: Path) -> None:
    with model.open_cache(file) as cache:
        model.forward(IDS[:9], cache, watch=Trace(model, edits={"blk.0.l_out": lambda value, _site: value * 2}))
    with model.open_cache(file) as cache:
        assert cache.altered
        assert cache.shared_prefix(IDS[:9].tolist()) == 0


def test_the_context_is_what_it_was_made_for(path: Path, model: Model, file: Path) -> None:
    closed(model, file)
    with pytest.raises(CacheFileError, match=r"made for 256 positions, the context is 300 \(n_ctx\)"):
        Model(gguf.open(path), n_ctx=300, extend_context=True).open_cache(file)
    with pytest.raises(CacheFileError, match=r"holds 100 positions, the context is 99"):
        Model(gguf.open(path), n_ctx=99).open_cache(file)
    with (
        Model(gguf.open(path), n_ctx=110).open_cache(file) as cache,
        pytest.raises(InvalidInputError, match="made by another model"),
    ):
        model.forward([1], cache)
    with model.open_cache(file) as cache, pytest.raises(ContextFullError):
        model.forward(IDS[:101], cache)


def _state(file: Path) -> np.ndarray:
    data = file.read_bytes()
    start = 16 + int.from_bytes(data[8:16], "little")
    return np.frombuffer(data, "<i8", 4, start + -start % 64)


def _edit(file: Path, name: str, values: list[int]) -> None:
    data = bytearray(file.read_bytes())
    start = 16 + int.from_bytes(data[8:16], "little")
    at = start + -start % 64 + {"state": 0, "table": 64}[name]
    data[at : at + 8 * len(values)] = np.array(values, "<i8").tobytes()
    file.write_bytes(data)


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("state", [-1], "was being changed when its process ended; delete it, compute it afresh"),
        ("state", [100, 0, 1, 2], "was open when the machine stopped; delete it, compute it afresh"),
        ("state", [-2], "-2 tokens in 512 places"),
        ("state", [1 << 40], "1099511627776 tokens in 512 places"),
        ("table", [3, 3], "the table of blocks is damaged"),
        ("table", [0, 8], "the table of blocks is damaged"),
        ("table", [-1, 2], "the table of blocks is damaged"),
    ],
)
def test_damage_is_refused_in_one_line(model: Model, file: Path, name: str, values: list[int], message: str) -> None:
    closed(model, file)
    _edit(file, name, values)
    before = file.read_bytes()
    for _ in range(2):  # it was let go, and left as it was
        with pytest.raises(CacheFileError, match=rf"long\.kv: .*{message}"):
            model.open_cache(file)
    assert file.read_bytes() == before


def test_where_the_run_of_the_machine_is_unknown_it_must_be_closed(
    model: Model, file: Path, path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(mapped_cache, "_BOOT", tmp_path / "nothing")
    closed(model, file)
    with model.open_cache(file) as cache:
        assert len(cache) == 100
    subprocess.run([sys.executable, "-c", _KILLED, path, file], check=False)
    with pytest.raises(CacheFileError, match="was open when the machine stopped"):
        model.open_cache(file)


def test_files_of_other_kinds_are_refused_and_left_alone(model: Model, path: Path, file: Path, tmp_path: Path) -> None:
    saved, foreign = tmp_path / "saved.kv", tmp_path / "notes.txt"
    cache = model.new_cache()
    model.forward(IDS[:10], cache, logits=None)
    cache.save(saved)
    foreign.write_text("notes")
    closed(model, file)
    refused: list[tuple[Callable[[], object], str]] = [
        (lambda: model.open_cache(saved), r"saved\.kv: was saved: load_cache reads it"),
        (lambda: model.load_cache(file), r"long\.kv: is a cache itself: open_cache opens it"),
        (lambda: model.open_cache(foreign), r"notes\.txt: not a file of a cache"),
        (lambda: Model(gguf.open(path), kv_type="f16").open_cache(file), "keys and values as f32"),
    ]
    for call, message in refused:
        with pytest.raises(CacheFileError, match=message):
            call()
    assert foreign.read_text() == "notes"
    assert len(model.load_cache(saved)) == 10
    with pytest.raises(FileNotFoundError):
        model.open_cache(tmp_path / "no" / "folder.kv")


def test_caches_of_windows_are_refused(tmp_path: Path, file: Path) -> None:
    path = FAMILIES["gemma3"].write(tmp_path / "gemma3.gguf", "f16")
    with pytest.raises(InvalidInputError, match="window_only"):
        Model(gguf.open(path), window_only=True).open_cache(file)
    assert not file.exists()


def test_it_goes_through_passes_of_its_own(model: Model, file: Path) -> None:
    with filled(model, file) as cache, pytest.raises(InvalidInputError, match="a pass of its own"):
        model.forward_batch([[1], [2]], [cache, model.new_cache()])
