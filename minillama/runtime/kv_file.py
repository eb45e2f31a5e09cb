"""Files that hold a cache: its tokens, and its blocks as they lie in memory.

``minikv01``, the header's length (64 bits), the header (JSON); then, each at a multiple of 64 bytes: the state (number
of tokens, altered or not), the table of blocks, the ids of the tokens, and of every layer the blocks of keys and of
values; last the SHA-256 of everything before it. Numbers are little-endian.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from minillama.errors import CacheFileError
from minillama.kernels.reference.attention import BLOCK
from minillama.runtime.kv_cache import BlockPool, KVCache

# Raised when the same tokens give other keys or values than before.
NUMERICS = 1

_MAGIC = b"minikv01"
_ALIGNMENT = 64
_LENGTH_BYTES = 8
_DIGEST_BYTES = hashlib.sha256().digest_size
_MOST_HEADER = 1 << 20
_READ_AT_A_TIME = 1 << 22

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Section:
    """An array in the file."""

    offset: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def end(self) -> int:
        """Where it ends."""
        return self.offset + self.dtype.itemsize * int(np.prod(self.shape))


def make_header(cache: KVCache, n_blocks: int) -> dict[str, Any]:
    """What must agree for a file to be read into such a cache, and how many blocks it has room for."""
    return {
        "model": cache.identity,
        "numerics": NUMERICS,
        "kv_type": cache.pool.kv_type,
        "layers": [list(shape) for shape in cache.pool.shapes],
        "block": BLOCK,
        "n_blocks": n_blocks,
    }


def sections(pool: BlockPool, n_blocks: int, start: int) -> dict[str, Section]:
    """Where everything lies that follows a header that ends at ``start``."""
    integer = np.dtype("<i8")
    arrays: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {
        "state": (integer, (2,)),
        "table": (integer, (n_blocks,)),
        "tokens": (integer, (n_blocks * BLOCK,)),
    }
    for name, layers in (("keys", pool.keys), ("values", pool.values)):
        for i, blocks in enumerate(layers):
            arrays[f"{name}.{i}"] = blocks.dtype, (n_blocks, *blocks.shape[1:])
    found, offset = {}, start
    for name, (dtype, shape) in arrays.items():
        found[name] = Section(_aligned(offset), dtype, shape)
        offset = found[name].end
    return found


def file_bytes(found: Mapping[str, Section]) -> int:
    """Size of a file with these sections."""
    return max(section.end for section in found.values()) + _DIGEST_BYTES


def write_cache(path: Path, cache: KVCache) -> None:
    """Write a cache to a file: under another name first, so that a file of this name is always whole.

    Raises
    ------
    OSError
        It cannot be written.
    """
    table = np.array(cache.blocks, np.int64)
    tokens = np.zeros(len(table) * BLOCK, np.int64)
    tokens[: len(cache)] = cache.tokens
    arrays = {
        "state": np.array([len(cache), cache.altered], np.int64),
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

    start = encoded_header(make_header(cache, len(table)))
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


def encoded_header(header: Mapping[str, Any]) -> bytes:
    """The beginning of a file."""
    text = json.dumps(header).encode()
    return _MAGIC + len(text).to_bytes(_LENGTH_BYTES, "little") + text


def read_header(path: Path, file: IO[bytes], cache: KVCache) -> tuple[int, dict[str, Section]]:
    """Number of blocks and sections of a file that fits the cache.

    Raises
    ------
    CacheFileError
        It is no such file, or of another model, another numerics, another type of cache, or has been cut short.
    """
    beginning = file.read(len(_MAGIC) + _LENGTH_BYTES)
    length = int.from_bytes(beginning[len(_MAGIC) :], "little")
    if not beginning.startswith(_MAGIC) or len(beginning) < len(_MAGIC) + _LENGTH_BYTES:
        raise CacheFileError(f"{path}: not a file of a cache (they begin with {_MAGIC.decode()})")
    text = file.read(length) if length <= _MOST_HEADER else b""
    try:
        header = json.loads(text)
        n_blocks = header["n_blocks"]
    except (ValueError, KeyError, TypeError):
        n_blocks = None
    if not isinstance(n_blocks, int) or n_blocks < 0:
        raise CacheFileError(f"{path}: the header is damaged")
    wanted = make_header(cache, n_blocks)
    for key, message in _MUST_AGREE.items():
        if header.get(key) != wanted[key]:
            raise CacheFileError(f"{path}: {message.format(found=header.get(key), wanted=wanted[key])}")
    found = sections(cache.pool, n_blocks, len(_MAGIC) + _LENGTH_BYTES + length)
    size, there = file_bytes(found), os.fstat(file.fileno()).st_size
    if there != size:
        raise CacheFileError(f"{path}: the file has {there} bytes, a cache of {n_blocks} blocks takes {size}")
    return n_blocks, found


_MUST_AGREE = {
    "numerics": "made by numerics {found}, this is {wanted}: compute it afresh",
    "model": "made by another model, or by other settings or adapters of it",
    "kv_type": "holds keys and values as {found}, the model was loaded with kv_type={wanted!r}",
    "layers": "its layers are not those of this model",
    "block": "has blocks of {found} positions, here they have {wanted}",
}


def read_cache(path: Path, cache: KVCache) -> KVCache:
    """Read a file into an empty cache, and return it.

    Raises
    ------
    CacheFileError
        The file does not fit, is damaged, or holds more than the cache may.
    OSError
        It cannot be read.
    """
    with path.open("rb") as file:
        _, found = read_header(path, file, cache)
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            _check_digest(path, mapped)
            n_tokens, altered = _array(mapped, found["state"])
            tokens = check_tokens(path, _array(mapped, found["tokens"]), n_tokens, cache)
            cache.reserve(len(tokens))
            blocks = list(cache.blocks)
            for kind, layers in (("keys", cache.pool.keys), ("values", cache.pool.values)):
                for i, layer in enumerate(layers):
                    layer[blocks] = _array(mapped, found[f"{kind}.{i}"])[: len(blocks)]
    cache.advance(tokens)
    cache.altered = bool(altered)
    return cache


def check_tokens(path: Path, tokens: Array, n_tokens: int, cache: KVCache) -> Sequence[int]:
    """The ids of a file's tokens.

    Raises
    ------
    CacheFileError
        They are not what they can be, or there are more than the cache may hold.
    """
    if not 0 <= n_tokens <= len(tokens):
        raise CacheFileError(f"{path}: {n_tokens} tokens in {len(tokens)} places, the file is damaged")
    if n_tokens > cache.n_ctx:
        raise CacheFileError(f"{path}: holds {n_tokens} positions, the context is {cache.n_ctx} (n_ctx)")
    ids: list[int] = tokens[:n_tokens].tolist()
    return ids


def _check_digest(path: Path, mapped: mmap.mmap) -> None:
    digest, end = hashlib.sha256(), len(mapped) - _DIGEST_BYTES
    for first in range(0, end, _READ_AT_A_TIME):
        digest.update(mapped[first : min(end, first + _READ_AT_A_TIME)])
    if digest.digest() != mapped[end:]:
        raise CacheFileError(f"{path}: the checksum is wrong, the file is damaged")


def _array(mapped: mmap.mmap, section: Section) -> Array:
    """A copy of an array in the file."""
    return np.frombuffer(mapped[section.offset : section.end], section.dtype).reshape(section.shape)


def _aligned(offset: int) -> int:
    return offset + -offset % _ALIGNMENT
