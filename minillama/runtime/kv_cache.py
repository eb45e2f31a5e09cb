"""Memory of keys and values: a pool of blocks, and sequences that own or share blocks of it.

A block holds ``BLOCK`` positions of every layer. A sequence (:class:`KVCache`) is a table of blocks and a length. A
fork shares its parent's blocks; a block that several sequences share is copied before one of them writes into it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from minillama.errors import ContextFullError, InvalidInputError
from minillama.kernels.reference.attention import BLOCK

# Blocks there is room for at first; memory is taken by those that are written. When blocks move, plans are dropped.
_FIRST_BLOCKS = 16

KV_TYPES: dict[str, np.dtype[Any]] = {"f32": np.dtype(np.float32), "f16": np.dtype(np.uint16)}


class BlockPool:
    """Blocks of keys and values of all layers, with a count of the sequences that use each.

    Parameters
    ----------
    shapes
        ``(n_head_kv, head_dim of keys, head_dim of values)`` of each layer.
    kv_type
        ``"f32"`` or ``"f16"``.
    """

    def __init__(self, shapes: Sequence[tuple[int, int, int]], kv_type: str = "f32") -> None:
        if kv_type not in KV_TYPES:
            raise InvalidInputError(f"kv_type is {kv_type!r}, there are {', '.join(KV_TYPES)}")
        self.kv_type = kv_type
        self.dtype = KV_TYPES[kv_type]
        self._shapes = tuple(shapes)
        self.keys: list[npt.NDArray[Any]] = []
        self.values: list[npt.NDArray[Any]] = []
        self._uses = np.zeros(0, np.int64)
        self._grow(_FIRST_BLOCKS)

    @property
    def n_blocks(self) -> int:
        """Blocks there is memory for."""
        return len(self._uses)

    @property
    def nbytes(self) -> int:
        """Bytes of the keys and values."""
        return sum(array.nbytes for array in (*self.keys, *self.values))

    def take(self) -> int:
        """A block that nobody uses; its contents are whatever they were."""
        free = np.flatnonzero(self._uses == 0)
        if not len(free):
            free = np.array([self.n_blocks])
            self._grow(2 * self.n_blocks)
        self._uses[free[0]] = 1
        return int(free[0])

    def share(self, block: int) -> int:
        """One more sequence uses the block."""
        self._uses[block] += 1
        return block

    def release(self, block: int) -> None:
        """One sequence less uses the block."""
        self._uses[block] -= 1

    def is_shared(self, block: int) -> bool:
        """Whether more than one sequence uses the block."""
        return bool(self._uses[block] > 1)

    def copy(self, block: int) -> int:
        """A new block with the same contents."""
        new = self.take()
        for array in (*self.keys, *self.values):
            array[new] = array[block]
        return new

    def _grow(self, n_blocks: int) -> None:
        old = self.n_blocks
        for arrays, axes in ((self.keys, _key_shape), (self.values, _value_shape)):
            grown = [np.zeros((n_blocks, *axes(shape)), self.dtype) for shape in self._shapes]
            for new, previous in zip(grown, arrays, strict=False):
                new[:old] = previous
            arrays[:] = grown
        self._uses = np.concatenate([self._uses, np.zeros(n_blocks - old, np.int64)])


def _key_shape(shape: tuple[int, int, int]) -> tuple[int, int, int]:
    n_head_kv, key_dim, _ = shape
    return n_head_kv, key_dim, BLOCK


def _value_shape(shape: tuple[int, int, int]) -> tuple[int, int, int]:
    n_head_kv, _, value_dim = shape
    return n_head_kv, BLOCK, value_dim


class KVCache:
    """Keys and values of one sequence.

    Made by ``model.new_cache()``. ``len(cache)`` is the number of positions held, ``n_ctx`` how many it may hold.
    """

    def __init__(self, pool: BlockPool, n_ctx: int) -> None:
        self.pool = pool
        self.n_ctx = n_ctx
        self._length = 0
        self._blocks: list[int] = []

    def __len__(self) -> int:
        return self._length

    def __repr__(self) -> str:
        return f"<KVCache {self._length} of {self.n_ctx} positions, {self.pool.kv_type}>"

    def __del__(self) -> None:
        for block in self._blocks:
            self.pool.release(block)

    @property
    def kv_type(self) -> str:
        """``"f32"`` or ``"f16"``."""
        return self.pool.kv_type

    @property
    def bytes_per_position(self) -> int:
        """Memory that the keys and values of a position take."""
        return self.pool.nbytes // (self.pool.n_blocks * BLOCK)

    @property
    def blocks(self) -> tuple[int, ...]:
        """Index in the pool of the block of positions ``BLOCK * i`` and on."""
        return tuple(self._blocks)

    def truncate(self, n: int) -> None:
        """Forget all positions from ``n`` on.

        Raises
        ------
        InvalidInputError
            ``n`` is negative or more than the cache holds.
        """
        if not 0 <= n <= self._length:
            raise InvalidInputError(f"cannot truncate to {n} positions, the cache holds {self._length}")
        self._length = n
        self._drop_unused()

    def fork(self) -> KVCache:
        """An independent continuation: it starts with the same positions, and neither sees what the other adds."""
        twin = KVCache(self.pool, self.n_ctx)
        twin._length = self._length
        twin._blocks = [self.pool.share(block) for block in self._blocks]
        return twin

    def reserve(self, n_tokens: int) -> None:
        """Make room for ``n_tokens`` positions after the present ones, in blocks that only this sequence uses.

        Raises
        ------
        ContextFullError
            There would be more than ``n_ctx`` positions.
        """
        needed = self._length + n_tokens
        if needed > self.n_ctx:
            raise ContextFullError(
                f"context full: {self._length} positions held and {n_tokens} more asked for, "
                f"the context is {self.n_ctx} (n_ctx)"
            )
        first = self._length // BLOCK
        for i in range(first, len(self._blocks)):
            block = self._blocks[i]
            if self.pool.is_shared(block):
                self._blocks[i] = self.pool.copy(block)
                self.pool.release(block)
        while len(self._blocks) * BLOCK < needed:
            self._blocks.append(self.pool.take())

    def advance(self, n_tokens: int) -> None:
        """The next ``n_tokens`` positions, reserved before, have been written."""
        self._length += n_tokens

    def abandon(self) -> None:
        """Give back what was reserved and not written."""
        self._drop_unused()

    def _drop_unused(self) -> None:
        keep = -(-self._length // BLOCK)
        while len(self._blocks) > keep:
            self.pool.release(self._blocks.pop())
