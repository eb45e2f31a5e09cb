"""Caches on disk: writing one to a file of :mod:`kv_layout`, and reading it."""

from __future__ import annotations

import hashlib
import mmap
import os
import tempfile
from pathlib import Path
from typing import IO, Any

import numpy as np

from minillama.errors import CacheFileError
from minillama.kernels.reference.attention import BLOCK
from minillama.runtime.kv_cache import KVCache
from minillama.runtime.kv_layout import (
    DIGEST_BYTES,
    Array,
    Section,
    check_kept,
    check_tokens,
    encoded_header,
    make_header,
    read_header,
    sections,
)

_READ_AT_A_TIME = 1 << 22


def write_cache(path: Path, cache: KVCache) -> None:
    """Write a cache to a file: under another name first, so that a file of this name is always whole.

    Raises
    ------
    OSError
        It cannot be written.
    InvalidInputError
        The cache does not keep all of its positions.
    """
    check_kept(cache)
    table = np.array(cache.blocks, np.int64)
    tokens = np.zeros(len(table) * BLOCK, np.int64)
    tokens[: len(cache)] = cache.tokens
    arrays = {
        "state": np.array([len(cache), cache.altered, 0, 0], np.int64),
        "table": np.arange(len(table)),
        "tokens": tokens,
    }
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            _write(file, cache, arrays, table)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _write(file: IO[bytes], cache: KVCache, arrays: dict[str, Array], table: Array) -> None:
    digest, at = hashlib.sha256(), 0

    def put(data: Any) -> None:
        nonlocal at
        file.write(data)
        digest.update(data)
        at += memoryview(data).nbytes

    start = encoded_header(make_header(cache, len(table), mapped=False))
    put(start)
    for name, section in sections(cache.pool, len(table), len(start)).items():
        put(bytes(section.offset - at))
        if name in arrays:
            put(np.ascontiguousarray(arrays[name], section.dtype))
            continue
        kind, layer = name.split(".")
        blocks = getattr(cache.pool, kind)[int(layer)]
        for block in table:
            put(np.ascontiguousarray(blocks[block]).view(np.uint8))
    file.write(digest.digest())


def read_cache(path: Path, cache: KVCache) -> KVCache:
    """Read a file into an empty cache, and return it.

    Raises
    ------
    CacheFileError
        The file does not fit, is damaged, or holds more than the cache may.
    OSError
        It cannot be read.
    """
    check_kept(cache)
    with path.open("rb") as file:
        _, found = read_header(path, file, cache, mapped=False)
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            _check_digest(path, mapped)
            n_tokens, altered = _array(mapped, found["state"])[:2]
            tokens = check_tokens(path, _array(mapped, found["tokens"]), n_tokens, cache)
            keys, values = (
                [_array(mapped, found[f"{kind}.{i}"]) for i in range(len(cache.pool.shapes))]
                for kind in ("keys", "values")
            )
            cache.fill(tokens, keys, values, range(len(keys[0])), altered=bool(altered))
    return cache


def _check_digest(path: Path, mapped: mmap.mmap) -> None:
    digest, end = hashlib.sha256(), len(mapped) - DIGEST_BYTES
    for first in range(0, end, _READ_AT_A_TIME):
        digest.update(mapped[first : min(end, first + _READ_AT_A_TIME)])
    if digest.digest() != mapped[end:]:
        raise CacheFileError(f"{path}: the checksum is wrong, the file is damaged")


def _array(mapped: mmap.mmap, section: Section) -> Array:
    """A copy of an array in the file."""
    return np.frombuffer(mapped[section.offset : section.end], section.dtype).reshape(section.shape)
