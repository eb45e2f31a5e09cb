"""Memory of keys and values: pools of blocks, and the tables that say which blocks a sequence's positions are in.

A block holds ``BLOCK`` positions of every layer of its pool. A block that several sequences share is copied before one
of them writes into it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from minillama.errors import ContextFullError, InvalidInputError
from minillama.kernels.reference.attention import BLOCK
from minillama.kernels.types import F32, I64
from minillama.runtime.kv_format import KV_TYPES, KVFormat, kv_types

if TYPE_CHECKING:
    from minillama.kernels.reference.kv_kinds import Pair

Array = npt.NDArray[Any]
# ``rotate(layer of the pool, keys)``: float32 [n, n_head_kv, head_dim] as they are to be stored; None: as they are.
Rotate = Callable[[int, F32], F32 | None]

# Blocks there is room for at first; memory is taken by those that are written. When blocks move, plans are dropped.
_FIRST_BLOCKS = 16
_DROPPED = -1


class BlockPool:
    """Blocks of keys and values of all layers, with a count of the sequences that use each.

    Parameters
    ----------
    shapes
        ``(n_head_kv, head_dim of keys, head_dim of values)`` of each layer.
    kv_type
        How keys and values are stored: a type, or one of keys and one of values (:func:`kv_types`).
    fixed
        Arrays of keys and of values of each layer that hold all blocks there will ever be; by default memory is taken
        as it is needed.

    Attributes
    ----------
    key_format, value_format
        How they lie.
    kind
        What kernels know the two as.
    """

    def __init__(
        self,
        shapes: Sequence[tuple[int, int, int]],
        kv_type: str | tuple[str, str] = "f32",
        fixed: tuple[list[Array], list[Array]] | None = None,
    ) -> None:
        keys, values = kv_types(kv_type)
        self.kv_type = keys if keys == values else f"{keys},{values}"
        self.key_format = KVFormat(KV_TYPES[keys], is_keys=True)
        self.value_format = KVFormat(KV_TYPES[values], is_keys=False)
        kinds = self.key_format.kind, self.value_format.kind
        self.kind: Pair = kinds[0] if kinds[0] == kinds[1] else kinds
        self.shapes = tuple(shapes)
        self.keys, self.values = fixed or ([], [])
        self._is_fixed = fixed is not None
        self._uses = np.zeros(len(self.keys[0]) if fixed else 0, np.int64)
        if not fixed:
            self._grow(_FIRST_BLOCKS)

    @property
    def n_blocks(self) -> int:
        """Blocks there is memory for."""
        return len(self._uses)

    @property
    def nbytes(self) -> int:
        """Bytes of the keys and values."""
        return self.block_bytes * self.n_blocks

    @property
    def block_bytes(self) -> int:
        """Bytes of a block of all layers."""
        return sum(array[0].nbytes for array in (*self.keys, *self.values))

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
        if self._is_fixed:
            raise ContextFullError(f"the cache's file has room for {self.n_blocks} blocks of {BLOCK} positions")
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
        new, old = list[int](), list(blocks)
        try:
            new += (self.take() for _ in range(-(-len(positions) // BLOCK)))
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


@dataclass(frozen=True, eq=False)
class CacheMemory:
    """The pools that hold a model's layers: one for all, or one for each kind of layer. It equals no other.

    Attributes
    ----------
    pools
        The pools; all store keys and values alike.
    windows
        Of each pool: positions that its layers see, of which it keeps no more than that takes; 0: all.
    places
        Of each layer of the model: its pool, and which of the pool's layers it is.
    """

    pools: tuple[BlockPool, ...]
    windows: tuple[int, ...]
    places: tuple[tuple[int, int], ...]

    @classmethod
    def of(
        cls, shapes: Sequence[tuple[int, int, int]], kv_type: str | tuple[str, str], windows: Sequence[int] = ()
    ) -> CacheMemory:
        """Memory for layers of some shapes.

        Parameters
        ----------
        shapes, kv_type
            As for :class:`BlockPool`.
        windows
            Positions that each layer sees (0: all), if those with a window are to keep only that.
        """
        kinds = sorted(set(windows)) or [0]
        of_kind = [[i for i in range(len(shapes)) if not windows or windows[i] == kind] for kind in kinds]
        places = {layer: (pool, at) for pool, layers in enumerate(of_kind) for at, layer in enumerate(layers)}
        return cls(
            tuple(BlockPool([shapes[i] for i in layers], kv_type) for layers in of_kind),
            tuple(kinds),
            tuple(places[i] for i in range(len(shapes))),
        )

    @property
    def kv_type(self) -> str:
        """How keys and values are stored."""
        return self.pools[0].kv_type

    def layers(self, pool: int) -> list[int]:
        """The model's layers that a pool holds, in its order."""
        return [layer for layer, place in enumerate(self.places) if place[0] == pool]


class BlockTable:
    """The blocks of a sequence in a pool: the i-th holds positions ``BLOCK * i`` and on, unless it was dropped.

    Parameters
    ----------
    pool
        The pool.
    window
        Positions that a token sees; those that no token to come can see are dropped. 0: all are kept.
    """

    def __init__(self, pool: BlockPool, window: int = 0) -> None:
        self.pool = pool
        self.window = window
        self._valid_from = 0  # what a shift left of positions before is nothing
        self._blocks: list[int] = []

    @property
    def blocks(self) -> tuple[int, ...]:
        """Indices in the pool; -1: dropped."""
        return tuple(self._blocks)

    @property
    def nbytes(self) -> int:
        """Bytes of the blocks that are held."""
        return self.pool.block_bytes * sum(block != _DROPPED for block in self._blocks)

    def adopt(self, blocks: Iterable[int], valid_from: int = 0) -> None:
        """Use blocks that nobody uses, which hold positions from one on, instead of the present ones."""
        new = list(blocks)
        self.release_all()
        self._blocks, self._valid_from = new, valid_from

    def release_all(self) -> None:
        """Give all blocks back."""
        for block in self._blocks:
            self._release(block)
        self._blocks, self._valid_from = [], 0

    def share(self) -> BlockTable:
        """A table of the same blocks."""
        twin = BlockTable(self.pool, self.window)
        twin._blocks = [block if block == _DROPPED else self.pool.share(block) for block in self._blocks]
        twin._valid_from = self._valid_from
        return twin

    def reserve(self, length: int, needed: int) -> None:
        """Have blocks for positions ``length`` to ``needed`` that only this sequence uses."""
        for i in range(length // BLOCK, len(self._blocks)):
            block = self._blocks[i]
            if self.pool.is_shared(block):
                self._blocks[i] = self.pool.copy(block)
                self.pool.release(block)
        while len(self._blocks) * BLOCK < needed:
            self._blocks.append(self.pool.take())

    def cut(self, length: int) -> None:
        """Give back blocks of positions from ``length`` on."""
        while len(self._blocks) > -(-length // BLOCK):
            self._release(self._blocks.pop())
        if not self._blocks:
            self._valid_from = 0

    @property
    def first_held(self) -> int:
        """The first position from which on all are held."""
        dropped = [i for i, block in enumerate(self._blocks) if block == _DROPPED]
        return max(self._valid_from, BLOCK * (dropped[-1] + 1) if dropped else 0)

    def first_seen(self, length: int) -> int:
        """The first position that the token after ``length`` positions sees."""
        return max(0, length + 1 - self.window) if self.window else 0

    def can_cut(self, length: int) -> bool:
        """Whether all is held that a token after ``length`` positions sees."""
        first = self.first_seen(length)
        seen = self._blocks[first // BLOCK : -(-length // BLOCK)]
        return length == 0 or (self._valid_from <= first and _DROPPED not in seen)

    def forget(self, lengths: Sequence[int]) -> None:
        """Drop blocks that no token sees after any of these lengths, but for one to spare."""
        if not self.window:
            return
        kept = {i for n in lengths for i in range(max(0, self.first_seen(n) - BLOCK) // BLOCK, -(-n // BLOCK))}
        for i, block in enumerate(self._blocks):
            if block != _DROPPED and i not in kept:
                self._release(block)
                self._blocks[i] = _DROPPED

    def rearranged(self, positions: I64, rotate: Rotate) -> tuple[list[int], int]:
        """New blocks that hold some of the positions, one after the other, and from where on they hold them all.

        Raises
        ------
        InvalidInputError
            Some that later tokens see are not held any more.
        """
        first_held = int(np.searchsorted(positions, self.first_held))
        if first_held > self.first_seen(len(positions)):
            raise InvalidInputError(
                f"layers with a window keep positions from {self.first_held} on, "
                "and tokens after this shift would see others (window_only)"
            )
        n_dropped = first_held // BLOCK
        new = self.pool.rearranged(self._blocks, positions[BLOCK * n_dropped :], rotate)
        return [_DROPPED] * n_dropped + new, first_held

    def _release(self, block: int) -> None:
        if block != _DROPPED:
            self.pool.release(block)
