"""How much of a download is on disk, for downloaders that do not say."""

from __future__ import annotations

import fnmatch
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

POLL_SECONDS = 0.1


def largest_file(folder: Path, pattern: str) -> int:
    """Bytes written so far of the largest file below `folder` whose name matches `pattern`; 0 if there is none."""
    # os.walk, because Path.rglob fails when a folder is removed under it.
    return max(
        (
            _bytes_written(Path(parent, name))
            for parent, _, names in os.walk(folder)
            for name in fnmatch.filter(names, pattern)
        ),
        default=0,
    )


def _bytes_written(path: Path) -> int:
    try:
        status = path.stat()
    except OSError:  # renamed or removed since it was listed
        return 0
    # A file that is written in several places at once has its full length early, but not its blocks.
    blocks: int | None = getattr(status, "st_blocks", None)
    return status.st_size if blocks is None else min(status.st_size, blocks * 512)


@contextmanager
def watching(look: Callable[[], None]) -> Iterator[None]:
    """Call `look` about ten times a second, from a thread of its own, while the body runs."""
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(POLL_SECONDS):
            look()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
