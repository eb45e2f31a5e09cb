"""What one pass over the model works on: token ids, and where each token belongs."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from minillama.kernels.reference.attention import BLOCK
from minillama.kernels.types import I64
from minillama.runtime.block_pool import BlockPool, CacheMemory
from minillama.runtime.kv_cache import KVCache
from minillama.runtime.low_rank import Scaled, Stretch

# The narrowest table of blocks: plans are recorded for widths of 4, 8, 16, ...
_FEW_BLOCKS = 4


@dataclass(frozen=True)
class Batch:
    """Tokens of one or several sequences, side by side.

    Attributes
    ----------
    ids
        Token ids, int64 [n_tokens].
    position
        Position of each token in its sequence, int64 [n_tokens].
    last
        Position of the last token of each token's sequence, int64 [n_tokens].
    sequence
        Row of ``tables`` that each token belongs to, int64 [n_tokens].
    tables
        Of each pool: blocks of each sequence, int64 [n_sequences, most blocks]; 0: unused, -1: dropped.
    outputs
        Tokens whose logits are wanted, int64 [n_outputs].
    memory
        Where the blocks are.
    adapters
        Adapters of each sequence, and their scales.
    until
        Name of the value at which the pass ends, and which is its result; empty: the last.
    """

    ids: I64
    position: I64
    last: I64
    sequence: I64
    tables: tuple[I64, ...]
    outputs: I64
    memory: CacheMemory
    adapters: tuple[tuple[Scaled, ...], ...]
    until: str = ""

    @property
    def n_tokens(self) -> int:
        """Tokens in the batch."""
        return len(self.ids)

    @property
    def n_sequences(self) -> int:
        """Sequences in the batch."""
        return len(self.tables[0])

    @property
    def longest(self) -> int:
        """Positions that the tables have room for."""
        return BLOCK * int(self.tables[0].shape[1])

    def place(self, layer: int) -> tuple[BlockPool, int, I64]:
        """Where a layer's keys and values are: the pool, which of its layers, and the blocks of each sequence."""
        pool, at = self.memory.places[layer]
        return self.memory.pools[pool], at, self.tables[pool]

    @property
    def n_kv(self) -> int:
        """The most positions any token sees."""
        return int(self.position.max()) + 1

    @property
    def stretches(self) -> tuple[Stretch, ...]:
        """The sequences, neighbours with the same adapters together; none if there are no adapters at all."""
        if not any(self.adapters):
            return ()
        ends = np.arange(len(self.adapters)) + 1
        tokens = [0, *np.searchsorted(self.sequence, ends).tolist()]
        outputs = [0, *np.searchsorted(self.sequence[self.outputs], ends).tolist()]
        found, first = [], 0
        for adapters, group in itertools.groupby(self.adapters):
            last = first + len(list(group))
            found.append(Stretch(slice(tokens[first], tokens[last]), slice(outputs[first], outputs[last]), adapters))
            first = last
        return tuple(found)

    @property
    def adapted(self) -> tuple[Any, ...]:
        """What plans for batches with adapters differ in besides their shape."""
        return tuple((s.adapters, s.tokens.stop, s.outputs.stop) for s in self.stretches)

    @classmethod
    def of(cls, ids: Sequence[I64], caches: Sequence[KVCache], outputs: str | None, until: str = "") -> Batch:
        """Lay tokens of several sequences side by side; room for them is already reserved in the caches.

        Parameters
        ----------
        ids
            New tokens of each sequence.
        caches
            Where each sequence's keys and values go; all from one pool.
        outputs
            ``"all"``, ``"last"`` (of each sequence) or None.
        until
            Where the pass ends.
        """
        # Lists, not numpy: of one token, as most passes are, each call would take longer than all of this.
        position: list[int] = []
        last: list[int] = []
        sequence: list[int] = []
        ends: list[int] = []
        width = _FEW_BLOCKS
        for i, (part, cache) in enumerate(zip(ids, caches, strict=True)):
            end = len(cache) + len(part)
            position += range(len(cache), end)
            last += [end - 1] * len(part)
            sequence += [i] * len(part)
            ends.append(len(position) - 1)
            width = max(width, len(cache.blocks))
        # A power of two: a plan recorded for one length of the text then fits many.
        memory, shape = caches[0].memory, (len(caches), 1 << (width - 1).bit_length())
        tables = tuple(np.zeros(shape, np.int64) for _ in memory.pools)
        for i, cache in enumerate(caches):
            for table, blocks in zip(tables, cache.tables, strict=True):
                table[i, : len(blocks)] = blocks
        wanted = {"all": range(len(position)), "last": ends, None: ()}
        return cls(
            ids=np.concatenate(ids),
            position=np.array(position, np.int64),
            last=np.array(last, np.int64),
            sequence=np.array(sequence, np.int64),
            tables=tables,
            outputs=np.array(wanted[outputs], np.int64),
            memory=memory,
            adapters=tuple(cache.adapters for cache in caches),
            until=until,
        )
