"""Files that change while they are mapped, that cannot be written, and that are larger than 4 GiB."""

from __future__ import annotations

import io
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from gguf_bytes import F32, entry, gguf, save
from test_gguf_split import save_shards, shard

import minillama.gguf as ours
from minillama.errors import GGUFError

DATA = np.arange(2048, dtype=np.float32)


def written(folder: Path, name: str = "file.gguf") -> Path:
    return save(folder, gguf([], [entry("w", [2048], F32, 0)], DATA.tobytes()), name)


def test_a_file_that_was_cut_short_is_an_error(tmp_path: Path) -> None:
    path = written(tmp_path)
    size = path.stat().st_size
    with ours.open(path) as file:
        os.truncate(path, 100)
        for use in (file.check, lambda: file.tensors["w"].data):
            with pytest.raises(GGUFError, match=f"changed while it was mapped: it had {size} bytes and has 100; load"):
                use()


def test_a_file_that_was_written_to_is_an_error(tmp_path: Path) -> None:
    path = written(tmp_path)
    with ours.open(path) as file:
        file.check()
        path.write_bytes(path.read_bytes())
        os.utime(path, ns=(1, 1))
        with pytest.raises(GGUFError, match=r"file\.gguf: the file changed while it was mapped: it was written to"):
            file.check()


def test_a_file_whose_name_another_got_is_still_there(tmp_path: Path) -> None:
    path = written(tmp_path)
    with ours.open(path) as file:
        save(tmp_path, b"something else", "new").replace(path)
        file.check()
        np.testing.assert_array_equal(file.tensors["w"].data.view(np.float32)[0], DATA)
        path.unlink()
        file.check()


def test_any_shard_that_changed_is_named(tmp_path: Path) -> None:
    paths = save_shards(tmp_path, shard(0, 2, "a", 2), shard(1, 2, "b", 2))
    file = ours.open(paths[0])
    os.truncate(paths[1], 10)
    with pytest.raises(GGUFError, match=r"00002-of-00002\.gguf: the file changed"):
        file.check()


def test_a_file_in_memory_does_not_care(tmp_path: Path) -> None:
    path = written(tmp_path)
    with ours.open(path, use_mmap=False) as file:
        os.truncate(path, 0)
        file.check()
        np.testing.assert_array_equal(file.tensors["w"].data.view(np.float32)[0], DATA)


def test_descriptors_are_closed_with_the_last_view(tmp_path: Path) -> None:
    folder = Path("/proc/self/fd")
    if not folder.exists():
        pytest.skip("needs /proc")
    path = written(tmp_path)
    for _ in range(3):
        file = ours.open(path)
        file.check()
        del file
    assert not [link for link in folder.iterdir() if link.exists() and link.resolve() == path]


@pytest.mark.parametrize("use_mmap", [True, False])
def test_storage_that_cannot_be_written_is_enough(tmp_path: Path, use_mmap: bool) -> None:
    folder = tmp_path / "read-only"
    folder.mkdir()
    path = written(folder)
    path.chmod(0o444)
    folder.chmod(0o555)
    before = list(folder.iterdir())
    with ours.open(path, use_mmap=use_mmap) as file:
        np.testing.assert_array_equal(file.tensors["w"].data.view(np.float32)[0], DATA)
    assert list(folder.iterdir()) == before
    folder.chmod(0o755)


def test_a_file_that_arrives_slowly_is_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network drive may hand out less than was asked for: reading goes on until all is there."""
    path = written(tmp_path)

    class Drip(io.FileIO):
        def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
            return super().readinto(memoryview(buffer)[:7])

    class Slow(type(path)):  # type: ignore[misc]
        def open(self, *_args: object, **_options: object) -> io.BufferedReader:
            return io.BufferedReader(Drip(str(self)))

    monkeypatch.setattr("minillama.gguf.reader.Path", Slow)
    with ours.open(path, use_mmap=False) as file:
        np.testing.assert_array_equal(file.tensors["w"].data.view(np.float32)[0], DATA)


@pytest.mark.parametrize("beyond", [2**31, 2**32, 5 * 2**30])
def test_tensors_beyond_4_gib(tmp_path: Path, beyond: int) -> None:
    if shutil.disk_usage(tmp_path).free < 2**26:
        pytest.skip("no room")
    head = gguf([], [entry("large", [beyond // 4 + 8], F32, 0), entry("w", [2048], F32, beyond + 32)])
    path = tmp_path / "large.gguf"
    with path.open("wb") as file:  # sparse: a hole where the large tensor is
        file.write(head)
        file.seek(len(head) + beyond + 32)
        file.write(DATA.tobytes())
    with ours.open(path) as large:
        assert large.tensors["w"].offset == len(head) + beyond + 32
        np.testing.assert_array_equal(large.tensors["w"].data.view(np.float32)[0], DATA)
        assert large.tensors["large"].data.shape == (1, beyond + 32)
        assert not large.tensors["large"].data[0, -64:].any()
    path.unlink()
