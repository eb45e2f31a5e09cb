"""SHA-256 of files, with progress."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import BinaryIO

CHUNK_BYTES = 1 << 20


def sha256_of(
    paths: Iterable[Path], on_bytes: Callable[[int], None] | None = None, copy_to: BinaryIO | None = None
) -> str:
    """Hash files as if they were one.

    Parameters
    ----------
    paths
        The files, in order.
    on_bytes
        Told how many bytes are done, after each MiB.
    copy_to
        Where to write what was read.

    Returns
    -------
    str
        The hash in hexadecimal.
    """
    digest = hashlib.sha256()
    done = 0
    for path in paths:
        with path.open("rb") as source:
            while chunk := source.read(CHUNK_BYTES):
                digest.update(chunk)
                if copy_to is not None:
                    copy_to.write(chunk)
                done += len(chunk)
                if on_bytes is not None:
                    on_bytes(done)
    return digest.hexdigest()
