"""Caches that live in a memory-mapped file: they outlive the process, and the system may evict them from memory.

The file (:mod:`kv_layout`) has room for twice the context, so that a shift finds blocks beside those it reads; it is
sparse, and takes space on disk as blocks are taken. The table and the tokens are written before the number of tokens,
and that is -1 while others replace them: whatever moment a process ends at, the file says what it holds.
"""

from __future__ import annotations

import mmap
import os
import uuid
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np

from minillama.errors import CacheFileError, InvalidInputError
from minillama.kernels.reference.attention import BLOCK
from minillama.kernels.types import I64
from minillama.runtime.block_pool import Array, BlockPool, CacheMemory
from minillama.runtime.kv_cache import KVCache
from minillama.runtime.kv_layout import (
    Section,
    check_kept,
    check_tokens,
    encoded_header,
    file_bytes,
    make_header,
    read_header,
    sections,
)

if TYPE_CHECKING:
    from filelock import FileLock

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_CHANGING = -1


def open_mapped(path: Path, like: KVCache) -> MappedCache:
    """The cache in a file, which is made if there is none.

    Parameters
    ----------
    path
        The file.
    like
        An empty cache in memory, of the model and adapters that the file must be of.

    Raises
    ------
    CacheFileError
        The file does not fit, is damaged, was being changed when its process ended or open when the machine stopped, or
        is in use.
    OSError
        It cannot be made, read or written.
    """
    from filelock import FileLock, Timeout  # takes a while, and few need it

    check_kept(like)
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o600), "r+b") as file:
        lock = FileLock(path.with_name(path.name + ".lock"))
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise CacheFileError(f"{path}: is open already, here or in another process") from None
        try:
            if os.fstat(file.fileno()).st_size == 0:
                _make(file, like)
            opened = _Mapped(path, file, read_header(path, file, like, mapped=True)[1], lock)
        except BaseException:
            lock.release()
            raise
    try:
        return MappedCache(opened, like)
    except BaseException:
        opened.discard()
        raise


def _make(file: IO[bytes], like: KVCache) -> None:
    n_blocks = 2 * -(-like.n_ctx // BLOCK)
    start = encoded_header(make_header(like, n_blocks, mapped=True))
    file.truncate(file_bytes(sections(like.pool, n_blocks, len(start)), mapped=True))
    file.write(start)
    file.seek(0)


class MappedCache(KVCache):
    """A cache whose keys and values are in a memory-mapped file; made by ``model.open_cache(path)``.

    Close it, or use it in a ``with`` statement. Whatever the process dies of, the file holds what was computed; only if
    the machine stops must it have been closed before. Forks are ordinary caches in memory.
    """

    def __init__(self, file: _Mapped, like: KVCache) -> None:
        pool = _FilePool(file, like.pool)
        super().__init__(CacheMemory((pool,), (0,), like.memory.places), like.n_ctx, like.owner, like.adapters)
        self._file = file
        blocks, tokens = file.read(self)
        self._tables[0].adopt(pool.share(block) for block in blocks)
        self._tokens, self.altered = tokens, bool(file.state[1])
        self._closing = weakref.finalize(self, file.close)  # plans keep the memory when the cache is gone

    def __enter__(self) -> MappedCache:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def path(self) -> Path:
        """The file."""
        return self._file.path

    def close(self) -> None:
        """Write all to the disk and let others open the file; the cache is of no use any more."""
        self._closing()

    def flush(self) -> None:
        """Have all on the disk when it returns."""
        self._file.check()
        self._file.flush()

    def check(self) -> None:
        """Check that the file is there: touching a page that was cut off would end the process.

        Raises
        ------
        InvalidInputError
            The cache was closed.
        CacheFileError
            The file was cut short.
        """
        self._file.check()

    def fork(self) -> KVCache:
        """An independent continuation in memory: it starts with a copy of the same positions."""
        self.check()
        twin = self.owner.new(self.adapters)
        twin.fill(self._tokens, self.pool.keys, self.pool.values, self.blocks, altered=self.altered)
        return twin

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a copy to another file, which ``model.load_cache`` reads; see :meth:`KVCache.save`."""
        self.check()
        if Path(path).exists() and Path(path).samefile(self.path):
            raise InvalidInputError(f"{path}: is the cache's own file, which holds all of it already")
        super().save(path)

    def truncate(self, n: int) -> None:
        """Forget all positions from ``n`` on; see :meth:`KVCache.truncate`."""
        self.check()
        super().truncate(n)
        self._write(n)

    def shift(self, n_discard: int, *, n_keep: int = 0) -> None:
        """Forget positions in the middle; see :meth:`KVCache.shift`."""
        self.check()
        super().shift(n_discard, n_keep=n_keep)
        self._file.state[0] = _CHANGING
        self._write(0)

    def advance(self, ids: Sequence[int] | I64, *, altered: bool = False) -> None:
        """The next positions, reserved before, have been written: they hold these tokens."""
        before = len(self)
        super().advance(ids, altered=altered)
        self._write(before)

    def _write(self, n_same: int) -> None:
        """Have the file say what is held, of which it has the first ``n_same`` tokens and their blocks already."""
        n_blocks = n_same // BLOCK
        self._file.write(n_same, self._tokens[n_same:], n_blocks, self.blocks[n_blocks:], altered=self.altered)


class _Mapped:
    """A file that is mapped, and what it says of itself.

    Attributes
    ----------
    state, table, tokens
        Arrays in the file: number of tokens, whether the cache is altered, and which run of the machine has the file
        open (two zeros: none), int64 [4]; blocks, in order; ids.
    """

    def __init__(self, path: Path, file: IO[bytes], found: Mapping[str, Section], lock: FileLock) -> None:
        self.path = path
        self._found = found
        self._mapped = mmap.mmap(file.fileno(), 0)
        self.state, self.table, self.tokens = map(self.array, ("state", "table", "tokens"))
        self._descriptor = os.dup(file.fileno())
        self._lock, self._process, self._is_open = lock, os.getpid(), True

    def array(self, name: str) -> Array:
        """An array in the file, which can be written to."""
        section = self._found[name]
        flat = np.frombuffer(self._mapped, section.dtype, int(np.prod(section.shape)), section.offset)
        return flat.reshape(section.shape)

    def allocate(self, name: str, block: int) -> None:
        """Have space on the disk for a block of an array: if there were none when it is written, the process would end.

        Raises
        ------
        OSError
            There is none.
        """
        n_bytes = self._found[name].row_bytes
        offset = self._found[name].offset + block * n_bytes
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self._descriptor, offset, n_bytes)
            elif hasattr(os, "pwrite"):  # elsewhere files are never sparse
                os.pwrite(self._descriptor, bytes(n_bytes), offset)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path)) from None

    def read(self, cache: KVCache) -> tuple[list[int], list[int]]:
        """Blocks and tokens that the file holds, now open for this cache.

        Raises
        ------
        CacheFileError
            It is damaged or not whole, or its context is not the cache's.
        """
        n_tokens, n_blocks, boot = int(self.state[0]), len(self.table), self.state[2:]
        if n_tokens == _CHANGING:
            raise CacheFileError(f"{self.path}: was being changed when its process ended; delete it, compute it afresh")
        if boot.any() and not np.array_equal(boot, _this_boot()):
            raise CacheFileError(f"{self.path}: was open when the machine stopped; delete it, compute it afresh")
        if n_blocks * BLOCK < 2 * cache.n_ctx:
            raise CacheFileError(
                f"{self.path}: was made for {n_blocks * BLOCK // 2} positions, the context is {cache.n_ctx} (n_ctx)"
            )
        tokens = check_tokens(self.path, self.tokens, n_tokens, cache)
        blocks: list[int] = self.table[: -(-n_tokens // BLOCK)].tolist()
        if len(set(blocks)) != len(blocks) or not all(0 <= block < n_blocks for block in blocks):
            raise CacheFileError(f"{self.path}: the table of blocks is damaged")
        boot[:] = _this_boot()
        self.flush()  # the disk is to know that it is open, should the machine stop
        return blocks, list(tokens)

    def write(
        self, n_tokens: int, tokens: Sequence[int], n_blocks: int, blocks: Sequence[int], *, altered: bool
    ) -> None:
        """Say which tokens and blocks are held after the first of each; the number of tokens, which counts, last."""
        self.table[n_blocks : n_blocks + len(blocks)] = blocks
        self.tokens[n_tokens : n_tokens + len(tokens)] = tokens
        self.state[1] = altered
        self.state[0] = n_tokens + len(tokens)

    def check(self) -> None:
        """Raise if the file was closed or cut short."""
        if not self._is_open:
            raise InvalidInputError(f"{self.path}: the cache was closed, open it again")
        size = os.fstat(self._descriptor).st_size
        if size < len(self._mapped):
            raise CacheFileError(
                f"{self.path}: the file had {len(self._mapped)} bytes when it was opened and has {size}"
            )

    def flush(self) -> None:
        """Write all to the disk."""
        self._mapped.flush()

    def close(self) -> None:
        """Write all to the disk, say that it is closed, and let others open it."""
        if os.getpid() != self._process:
            return  # a fork of the process that has it open
        self.flush()
        self.state[2:] = 0
        self.flush()
        self.discard()

    def discard(self) -> None:
        """Let others open it, and leave it as it is."""
        self._is_open = False
        os.close(self._descriptor)
        self._lock.release()


class _FilePool(BlockPool):
    """Blocks in a file, as they are in a pool in memory."""

    def __init__(self, file: _Mapped, like: BlockPool) -> None:
        names = [[f"{kind}.{i}" for i in range(len(like.shapes))] for kind in ("keys", "values")]
        keys, values = ([file.array(name) for name in each] for each in names)
        super().__init__(like.shapes, like.kv_type, (keys, values))
        self._file, self._names = file, names[0] + names[1]

    def take(self) -> int:
        block = super().take()
        try:
            for name in self._names:
                self._file.allocate(name, block)
        except BaseException:
            self.release(block)
            raise
        return block


def _this_boot() -> I64:
    """What tells this run of the machine from others, int64 [2]; where that is unknown, never the same."""
    found = uuid.UUID(_BOOT.read_text().strip()) if _BOOT.exists() else uuid.uuid4()
    return np.frombuffer(found.bytes, np.int64)
