"""The format of files that hold a cache: its tokens, and its blocks as they lie in memory.

``minikv01``, the header's length (64 bits), the header (JSON); then, each at a multiple of 64 bytes: the state (number
of tokens, altered or not, and 128 bits of :mod:`mapped_cache`), the table of blocks, the ids of the tokens, and of
every layer the blocks of keys and of values; last, of a file that was saved, the SHA-256 of everything before it.
Numbers are little-endian.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from minillama.errors import CacheFileError, InvalidInputError
from minillama.kernels.reference.attention import BLOCK
from minillama.runtime.block_pool import BlockPool
from minillama.runtime.kv_cache import KVCache

# Raised when the same tokens give other keys or values than before.
NUMERICS = 1
DIGEST_BYTES = hashlib.sha256().digest_size

_MAGIC = b"minikv01"
_ALIGNMENT = 64
_LENGTH_BYTES = 8
_MOST_HEADER = 1 << 20

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
        return self.offset + self.shape[0] * self.row_bytes

    @property
    def row_bytes(self) -> int:
        """Bytes of an entry of the first axis."""
        return self.dtype.itemsize * int(np.prod(self.shape[1:]))


def make_header(cache: KVCache, n_blocks: int, *, mapped: bool) -> dict[str, Any]:
    """What must agree for a file to be read into such a cache, and how many blocks it has room for."""
    return {
        "mapped": mapped,
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
        "state": (integer, (4,)),
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


def file_bytes(found: Mapping[str, Section], *, mapped: bool) -> int:
    """Size of a file with these sections."""
    return max(section.end for section in found.values()) + (0 if mapped else DIGEST_BYTES)


def check_kept(cache: KVCache) -> None:
    """Raise an InvalidInputError if the cache does not keep all of its positions."""
    if any(cache.memory.windows):
        raise InvalidInputError("a cache whose layers keep only their window (window_only) cannot be kept in a file")


def encoded_header(header: Mapping[str, Any]) -> bytes:
    """The beginning of a file."""
    text = json.dumps(header).encode()
    return _MAGIC + len(text).to_bytes(_LENGTH_BYTES, "little") + text


def read_header(path: Path, file: IO[bytes], cache: KVCache, *, mapped: bool) -> tuple[int, dict[str, Section]]:
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
    if header.get("mapped") is not mapped:
        how = "was saved: load_cache reads it" if mapped else "is a cache itself: open_cache opens it"
        raise CacheFileError(f"{path}: {how}")
    wanted = make_header(cache, n_blocks, mapped=mapped)
    for key, message in _MUST_AGREE.items():
        if header.get(key) != wanted[key]:
            raise CacheFileError(f"{path}: {message.format(found=header.get(key), wanted=wanted[key])}")
    found = sections(cache.pool, n_blocks, len(_MAGIC) + _LENGTH_BYTES + length)
    size, there = file_bytes(found, mapped=mapped), os.fstat(file.fileno()).st_size
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


def _aligned(offset: int) -> int:
    return offset + -offset % _ALIGNMENT
