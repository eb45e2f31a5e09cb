"""Memory of keys and values: a pool of blocks, and sequences that own or share blocks of it.

A block holds ``BLOCK`` positions of every layer. A sequence (:class:`KVCache`) is a table of blocks and a length. A
fork shares its parent's blocks; a block that several sequences share is copied before one of them writes into it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from minillama.errors import ContextFullError, InvalidInputError
from minillama.kernels.reference.attention import BLOCK
from minillama.kernels.types import F32, I64
from minillama.runtime.kv_format import KV_TYPES, KVFormat, kv_types
from minillama.runtime.low_rank import Scaled

if TYPE_CHECKING:
    from minillama.kernels.reference.kv_kinds import Pair

# Blocks there is room for at first; memory is taken by those that are written. When blocks move, plans are dropped.
_FIRST_BLOCKS = 16


class CacheOwner(Protocol):
    """The model that a cache belongs to."""

    @property
    def identity(self) -> str:
        """What tells it from other models, and other settings of it that give other keys or values."""

    def rotate_keys(self, layer: int, keys: F32, moved: I64) -> F32 | None:
        """Stored keys float32 [n, n_head_kv, head_dim] as if they stood ``moved`` (int64 [n]) positions later.

        None: where they stand makes no difference.
        """


class BlockPool:
    """Blocks of keys and values of all layers, with a count of the sequences that use each.

    Parameters
    ----------
    shapes
        ``(n_head_kv, head_dim of keys, head_dim of values)`` of each layer.
    kv_type
        How keys and values are stored: a type, or one of keys and one of values (:func:`kv_types`).

    Attributes
    ----------
    key_format, value_format
        How they lie.
    kind
        What kernels know the two as.
    """

    def __init__(self, shapes: Sequence[tuple[int, int, int]], kv_type: str | tuple[str, str] = "f32") -> None:
        keys, values = kv_types(kv_type)
        self.kv_type = keys if keys == values else f"{keys},{values}"
        self.key_format = KVFormat(KV_TYPES[keys], is_keys=True)
        self.value_format = KVFormat(KV_TYPES[values], is_keys=False)
        kinds = self.key_format.kind, self.value_format.kind
        self.kind: Pair = kinds[0] if kinds[0] == kinds[1] else kinds
        self.shapes = tuple(shapes)
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

    def key_rotation(self, layer: int) -> int:
        """How many values of a key are rotated together before they are stored; 0: none."""
        return self.key_format.rotation(self.shapes[layer][1])

    def value_rotation(self, layer: int) -> int:
        """The same for values."""
        return self.value_format.rotation(self.shapes[layer][2])

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
        for arrays, format_, dim in ((self.keys, self.key_format, 1), (self.values, self.value_format, 2)):
            grown = [np.zeros((n_blocks, *format_.shape(shape[0], shape[dim])), format_.dtype) for shape in self.shapes]
            for new, previous in zip(grown, arrays, strict=False):
                new[:old] = previous
            arrays[:] = grown
        self._uses = np.concatenate([self._uses, np.zeros(n_blocks - old, np.int64)])

    def rearranged(self, blocks: Sequence[int], positions: I64, rotate: Callable[[int, F32], F32 | None]) -> list[int]:
        """New blocks that hold positions of other blocks, one after the other.

        Parameters
        ----------
        blocks
            Blocks that hold positions 0 and on.
        positions
            Which of these are wanted, in order.
        rotate
            ``rotate(layer, keys)`` of float32 keys [n_positions, n_head_kv, head_dim] gives those to be stored; None:
            they stay as they are.
        """
        if not len(positions):
            return []
        new = [self.take() for _ in range(-(-len(positions) // BLOCK))]
        old = list(blocks)
        try:
            for layer, (keys, values) in enumerate(zip(self.keys, self.values, strict=True)):
                rows = self.key_format.rows(keys[old])[positions]
                rotated = rotate(layer, self.key_format.decode(rows))
                keys[new] = self.key_format.blocks(rows if rotated is None else self.key_format.encode(rotated))
                values[new] = self.value_format.blocks(self.value_format.rows(values[old])[positions])
        except BaseException:
            for block in new:
                self.release(block)
            raise
        return new


class KVCache:
    """Keys and values of one sequence.

    Made by ``model.new_cache()``. ``len(cache)`` is the number of positions held, ``n_ctx`` how many it may hold.

    Attributes
    ----------
    adapters
        Adapters that its keys and values are made with, and their scales.
    altered
        Whether its tokens, computed afresh, would give other keys and values: it was shifted, or values of the pass
        were replaced.
    """

    def __init__(self, pool: BlockPool, n_ctx: int, owner: CacheOwner, adapters: tuple[Scaled, ...] = ()) -> None:
        self.pool = pool
        self.adapters = adapters
        self.n_ctx = n_ctx
        self.altered = False
        self._owner = owner
        self._tokens: list[int] = []
        self._blocks: list[int] = []

    def __len__(self) -> int:
        return len(self._tokens)

    def __repr__(self) -> str:
        return f"<KVCache {len(self)} of {self.n_ctx} positions, {self.pool.kv_type}>"

    def __del__(self) -> None:
        for block in self._blocks:
            self.pool.release(block)

    @property
    def kv_type(self) -> str:
        """How keys and values are stored, such as ``"f16"`` or ``"q8_0,f16"``."""
        return self.pool.kv_type

    @property
    def tokens(self) -> tuple[int, ...]:
        """Ids of the tokens held."""
        return tuple(self._tokens)

    @property
    def bytes_per_position(self) -> int:
        """Memory that the keys and values of a position take."""
        return self.pool.nbytes // (self.pool.n_blocks * BLOCK)

    @property
    def blocks(self) -> tuple[int, ...]:
        """Index in the pool of the block of positions ``BLOCK * i`` and on."""
        return tuple(self._blocks)

    @property
    def identity(self) -> str:
        """The model's, and that of its adapters if there are any."""
        names = [f"{adapter.identity} {scale!r}" for adapter, scale in self.adapters]
        return " + ".join((self._owner.identity, *names))

    def shared_prefix(self, ids: Sequence[int]) -> int:
        """How many of the tokens held, from the first on, are those of a text; none of an altered cache are."""
        if self.altered:
            return 0
        limit = min(len(self), len(ids))
        return next((i for i in range(limit) if self._tokens[i] != ids[i]), limit)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write tokens, keys and values to a file, which ``model.load_cache`` reads; a file of this name is replaced.

        Raises
        ------
        OSError
            It cannot be written; a file of this name is then as it was.
        """
        from minillama.runtime.kv_file import write_cache

        write_cache(Path(path), self)

    def truncate(self, n: int) -> None:
        """Forget all positions from ``n`` on.

        Raises
        ------
        InvalidInputError
            ``n`` is negative or more than the cache holds.
        """
        if not 0 <= n <= len(self):
            raise InvalidInputError(f"cannot truncate to {n} positions, the cache holds {len(self)}")
        del self._tokens[n:]
        self.altered = self.altered and n > 0
        self._drop_unused()

    def fork(self) -> KVCache:
        """An independent continuation: it starts with the same positions, and neither sees what the other adds."""
        twin = KVCache(self.pool, self.n_ctx, self._owner, self.adapters)
        twin._tokens, twin.altered = self._tokens.copy(), self.altered
        twin._blocks = [self.pool.share(block) for block in self._blocks]
        return twin

    def shift(self, n_discard: int, *, n_keep: int = 0) -> None:
        """Forget positions in the middle; those after them move up, and their keys are rotated accordingly.

        The keys, rotated for their old positions, are rotated once more by the difference, and rounded again to the
        cache's type: the arithmetic of llama.cpp's ``llama_memory_seq_add``, quirks included (docs/kv-cache.md).
        Text that refers to what was forgotten is not the text that the model was given; a shifted cache is ``altered``.

        Parameters
        ----------
        n_discard
            How many positions to forget.
        n_keep
            How many at the beginning to keep before them.

        Raises
        ------
        InvalidInputError
            There are not so many positions, or the model's positions are not a matter of rotation.
        """
        n, end = len(self), n_keep + n_discard
        if n_discard < 0 or n_keep < 0 or end > n:
            raise InvalidInputError(f"cannot discard {n_discard} positions after {n_keep}, the cache holds {n}")
        if not n_discard:
            return
        positions = np.concatenate([np.arange(n_keep), np.arange(end, n)])
        moved = np.where(np.arange(len(positions)) < n_keep, 0, -n_discard)
        owner = self._owner
        new = self.pool.rearranged(self._blocks, positions, lambda layer, keys: owner.rotate_keys(layer, keys, moved))
        for block in self._blocks:
            self.pool.release(block)
        self._blocks = new
        del self._tokens[n_keep:end]
        self.altered = len(self) > 0

    def reserve(self, n_tokens: int) -> None:
        """Make room for ``n_tokens`` positions after the present ones, in blocks that only this sequence uses.

        Raises
        ------
        ContextFullError
            There would be more than ``n_ctx`` positions.
        """
        needed = len(self) + n_tokens
        if needed > self.n_ctx:
            raise ContextFullError(
                f"context full: {len(self)} positions held and {n_tokens} more asked for, "
                f"the context is {self.n_ctx} (n_ctx)"
            )
        first = len(self) // BLOCK
        for i in range(first, len(self._blocks)):
            block = self._blocks[i]
            if self.pool.is_shared(block):
                self._blocks[i] = self.pool.copy(block)
                self.pool.release(block)
        while len(self._blocks) * BLOCK < needed:
            self._blocks.append(self.pool.take())

    def advance(self, ids: Sequence[int] | I64) -> None:
        """The next positions, reserved before, have been written: they hold these tokens."""
        self._tokens += map(int, ids)

    def abandon(self) -> None:
        """Give back what was reserved and not written."""
        self._drop_unused()

    def _drop_unused(self) -> None:
        keep = -(-len(self) // BLOCK)
        while len(self._blocks) > keep:
            self.pool.release(self._blocks.pop())
