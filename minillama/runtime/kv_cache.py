"""Sequences: the tokens that were computed, and where their keys and values are."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import numpy as np

from minillama.errors import ContextFullError, InvalidInputError
from minillama.kernels.reference.attention import BLOCK
from minillama.kernels.types import F32, I64
from minillama.runtime.block_pool import Array, BlockPool, BlockTable, CacheMemory
from minillama.runtime.low_rank import Scaled


class CacheOwner(Protocol):
    """The model that a cache belongs to."""

    @property
    def identity(self) -> str:
        """What tells it from other models, and other settings of it that give other keys or values."""

    def new(self, adapters: tuple[Scaled, ...] = ()) -> KVCache:
        """An empty cache."""

    def rotate_keys(self, layer: int, keys: F32, moved: I64) -> F32 | None:
        """Stored keys float32 [n, n_head_kv, head_dim] as if they stood ``moved`` (int64 [n]) positions later.

        None: where they stand makes no difference.
        """


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

    def __init__(self, memory: CacheMemory, n_ctx: int, owner: CacheOwner, adapters: tuple[Scaled, ...] = ()) -> None:
        self.memory = memory
        self.adapters = adapters
        self.n_ctx = n_ctx
        self.altered = False
        self.owner = owner
        self._tokens: list[int] = []
        self._tables = [BlockTable(pool, window) for pool, window in zip(memory.pools, memory.windows, strict=True)]
        self._return_to: int | None = None

    def __len__(self) -> int:
        return len(self._tokens)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {len(self)} of {self.n_ctx} positions, {self.kv_type}>"

    def __del__(self) -> None:
        for table in self._tables:
            table.release_all()

    @property
    def pool(self) -> BlockPool:
        """Where the blocks are; of layers without a window, if those with one keep only that."""
        return self.memory.pools[0]

    @property
    def kv_type(self) -> str:
        """How keys and values are stored, such as ``"f16"`` or ``"q8_0,f16"``."""
        return self.memory.kv_type

    @property
    def tokens(self) -> tuple[int, ...]:
        """Ids of the tokens held."""
        return tuple(self._tokens)

    @property
    def bytes_per_position(self) -> int:
        """Memory that the keys and values of a position take, in layers with a window too."""
        return sum(pool.block_bytes for pool in self.memory.pools) // BLOCK

    @property
    def nbytes(self) -> int:
        """Bytes of the blocks that it holds, also those it shares with others."""
        return sum(table.nbytes for table in self._tables)

    @property
    def blocks(self) -> tuple[int, ...]:
        """Index in the pool of the block of positions ``BLOCK * i`` and on."""
        return self._tables[0].blocks

    @property
    def tables(self) -> tuple[tuple[int, ...], ...]:
        """Blocks in each pool of the memory; -1: dropped."""
        return tuple(table.blocks for table in self._tables)

    @property
    def identity(self) -> str:
        """The model's, and that of its adapters if there are any."""
        names = [f"{adapter.identity} {scale!r}" for adapter, scale in self.adapters]
        return " + ".join((self.owner.identity, *names))

    def shared_prefix(self, ids: Sequence[int]) -> int:
        """How many of the tokens held, from the first on, are those of a text; none of an altered cache are."""
        if self.altered:
            return 0
        limit = min(len(self), len(ids))
        return next((i for i in range(limit) if self._tokens[i] != ids[i]), limit)

    def begin(self, ids: Sequence[int]) -> int:
        """Forget all but the beginning of a text, and return how many of its ids are held: never the last.

        Where layers with a window have dropped what the text would look back at, nothing is held.
        """
        shared = min(self.shared_prefix(ids), len(ids) - 1)
        if not self._can_truncate(shared):
            shared = 0
        self.truncate(shared)
        return shared

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
            ``n`` is negative or more than the cache holds, or layers with a window have dropped what would be seen.
        """
        if not 0 <= n <= len(self):
            raise InvalidInputError(f"cannot truncate to {n} positions, the cache holds {len(self)}")
        if not self._can_truncate(n):
            first = max(table.first_held for table in self._tables)
            raise InvalidInputError(
                f"cannot truncate to {n} positions: layers with a window keep those from {first} on (window_only)"
            )
        del self._tokens[n:]
        self.altered = self.altered and n > 0
        self._drop_unused()

    def _can_truncate(self, n: int) -> bool:
        return n == len(self) or all(table.can_cut(n) for table in self._tables)

    def fork(self) -> KVCache:
        """An independent continuation: it starts with the same positions, and neither sees what the other adds."""
        twin = KVCache(self.memory, self.n_ctx, self.owner, self.adapters)
        twin._tokens, twin.altered = self._tokens.copy(), self.altered
        twin._tables = [table.share() for table in self._tables]
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
        self._rearrange(positions, moved)
        del self._tokens[n_keep:end]
        self.altered = len(self) > 0

    def _rearrange(self, positions: I64, moved: I64) -> None:
        """Hold only these positions, their keys rotated as if they stood ``moved`` positions later."""
        found: list[tuple[list[int], int]] = []
        try:
            for i, table in enumerate(self._tables):
                layers = self.memory.layers(i)

                def rotate(at: int, keys: F32, layers: list[int] = layers) -> F32 | None:
                    return self.owner.rotate_keys(layers[at], keys, moved[len(moved) - len(keys) :])

                found.append(table.rearranged(positions, rotate))
        except BaseException:
            for table, (new, _) in zip(self._tables, found, strict=False):
                unused = BlockTable(table.pool)
                unused.adopt(new)
                unused.release_all()
            raise
        for table, (new, first_held) in zip(self._tables, found, strict=True):
            table.adopt(new, first_held)

    def reserve(self, n_tokens: int, *, later: int = 0) -> None:
        """Make room for ``n_tokens`` positions after the present ones, in blocks that only this sequence uses.

        Where all positions are kept, room is made for those that come ``later`` too, so that blocks move only once.

        Raises
        ------
        ContextFullError
            There would be more than ``n_ctx`` positions.
        """
        needed = len(self) + n_tokens + later
        if needed > self.n_ctx:
            raise ContextFullError(
                f"context full: {len(self)} positions held and {n_tokens + later} more asked for, "
                f"the context is {self.n_ctx} (n_ctx)"
            )
        for table in self._tables:
            table.reserve(len(self), needed - later if table.window else needed)

    def advance(self, ids: Sequence[int] | I64, *, altered: bool = False) -> None:
        """The next positions, reserved before, have been written: they hold these tokens."""
        self._tokens += map(int, ids)
        self.altered |= altered
        self._forget()

    def fill(
        self, tokens: Sequence[int], keys: Sequence[Array], values: Sequence[Array], blocks: Sequence[int], *,
        altered: bool,
    ) -> None:  # fmt: skip
        """Hold tokens, in an empty cache that keeps all; each layer's keys and values are in blocks of given arrays."""
        self.reserve(len(tokens))
        own, theirs = list(self.blocks), list(blocks[: len(self.blocks)])
        for mine, given in ((self.pool.keys, keys), (self.pool.values, values)):
            for to, source in zip(mine, given, strict=True):
                to[own] = source[theirs]
        self.advance(tokens, altered=altered)

    def abandon(self) -> None:
        """Give back what was reserved and not written."""
        self._drop_unused()

    @contextmanager
    def undone_on_error(self) -> Iterator[None]:
        """What is added inside is taken back if there is an error; until then, what that takes is not dropped."""
        self._return_to = before = len(self)
        try:
            yield
        except BaseException:
            self.truncate(before)
            raise
        finally:
            self._return_to = None
            self._forget()

    def check(self) -> None:
        """Check that the memory is still there; a file's may be gone."""

    def _forget(self) -> None:
        lengths = [len(self)] if self._return_to is None else [self._return_to, len(self)]
        for table in self._tables:
            table.forget(lengths)

    def _drop_unused(self) -> None:
        for table in self._tables:
            table.cut(len(self))
