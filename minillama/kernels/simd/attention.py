"""Attention over the block cache by tiles of queries that share the blocks of keys and values they read.

Each score and each output is the same sum in the same order as in ``reference.attention``: lanes are positions for the
scores and values of the head for the outputs, and every lane has its own double sum. A tile is the queries of up to
``TILE`` neighbouring tokens of one sequence, or of the heads of one kv head where there are fewer tokens: a panel of
the cache is used by all of them while it is in the first-level cache. With a window, blocks before all of the tile's
windows are not looked at. Less than a whole tile takes less time than reading the cache: it asks for the next block.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from minillama.kernels.jit import Kernel, jit
from minillama.kernels.reference.attention import BLOCK, SUFFIX, Cache
from minillama.kernels.simd.floats import load_f64x16, round_to_half
from minillama.kernels.simd.panels import ADD_PANEL, LANES, PANEL, PANEL_BYTES, STEPS
from minillama.kernels.simd.softmax import cap_scores, soft_max, soft_max_all
from minillama.kernels.simd.vectors import store, to_f32
from minillama.kernels.types import F32, F64, I64, U8

TILE = 16
# Scratch: begins, ends and places of a tile's queries, a panel, the tile's sums, its queries, its scores.
_INDEX_BYTES = 24 * TILE
_SUMS = _INDEX_BYTES + PANEL_BYTES
_FLOATS = _SUMS + 8 * TILE * BLOCK
_NO_SINK, _NO_CAP = np.float32(-np.inf), np.float32(0)


def attention_items(n_tokens: int, n_head: int) -> int:
    """Items of the attention kernels: each is one head of up to ``TILE`` tokens."""
    return -(-n_tokens // TILE) * n_head


def attention_scratch(n_kv: int, head_dim: int) -> int:
    """Bytes of working memory a thread needs where no token sees more than ``n_kv`` positions."""
    return _FLOATS + 4 * TILE * (_padded(head_dim, LANES) + _padded(n_kv, BLOCK))


@jit
def _padded(n: int, unit: int) -> int:
    return (n + unit - 1) // unit * unit


@jit
def _keep(_x: F32, _offset: int) -> None:
    """A cache of float32 takes the other operand as it is."""


_ROUND_16: dict[np.dtype[Any], Kernel] = {np.dtype(np.float32): _keep, np.dtype(np.uint16): round_to_half}


@jit
def _copy_query(q: F32, at: int, n: int, queries: F32, to: int) -> None:
    for i in range(n):
        queries[to + i] = q[at + i]


@jit
def _store_scores(sums: F64, place: int, scores: F32, to: int, lanes: int) -> None:
    for lane in range(0, lanes, LANES):
        store(scores, 4 * (to + lane), to_f32(load_f64x16(sums, 8 * (place + lane))))


@jit
def _least(numbers: I64) -> int:
    least = numbers[0]
    for number in numbers:
        least = min(least, number)
    return least


@jit
def _most(numbers: I64) -> int:
    most = numbers[0]
    for number in numbers:
        most = max(most, number)
    return most


def _make_scores(dtype: np.dtype[Any]) -> Kernel:
    panel_of, add_panel = PANEL[dtype], ADD_PANEL[dtype]

    @jit(name=f"scores_of_tile_{SUFFIX[dtype]}")
    def scores_of_tile(
        queries: F32, keys: Cache, blocks: I64, head_kv: int, lowest: int, ends: I64, head_dim: int, panel: U8,
        sums: F64, scores: F32, n_scores: int,
    ) -> None:  # fmt: skip
        """A double sum over the head dimension, in order, of float products: scores [n_queries, n_scores]."""
        width = _padded(head_dim, LANES)
        flat = keys.reshape(-1)
        for first in range(lowest, n_scores, BLOCK):
            row = (blocks[first // BLOCK] * keys.shape[1] + head_kv) * head_dim
            next_row = (blocks[min(first + BLOCK, n_scores - BLOCK) // BLOCK] * keys.shape[1] + head_kv) * head_dim
            sums[: len(ends) * BLOCK] = 0
            for d in range(0, head_dim, STEPS):
                steps = min(STEPS, head_dim - d)
                after = (next_row + d) * BLOCK if len(ends) < TILE else -1
                rows, at, stride = panel_of(flat, (row + d) * BLOCK, BLOCK, steps, BLOCK, after, panel)
                for i in range(len(ends)):
                    lanes, query = min(BLOCK, ends[i] - first), i * width + d
                    add_panel(sums, i * BLOCK, rows, at, stride, queries, query, steps, lanes, after, i, len(ends))
            for i in range(len(ends)):
                _store_scores(sums, i * BLOCK, scores, i * n_scores + first, min(BLOCK, ends[i] - first))

    return scores_of_tile


def _make_outputs(dtype: np.dtype[Any]) -> Kernel:
    panel_of, add_panel = PANEL[dtype], ADD_PANEL[dtype]

    @jit(name=f"outputs_of_tile_{SUFFIX[dtype]}")
    def outputs_of_tile(
        scores: F32, n_scores: int, values: Cache, blocks: I64, head_kv: int, lowest: int, begins: I64, ends: I64,
        places: I64, panel: U8, sums: F64, out: F32,
    ) -> None:  # fmt: skip
        """A double sum over positions, in order, of float products, for each value of the head."""
        value_dim = values.shape[3]
        flat, outputs = values.reshape(-1), out.reshape(-1)
        for d in range(0, value_dim, BLOCK):
            width = min(BLOCK, value_dim - d)
            sums[: len(ends) * BLOCK] = 0
            for first in range(lowest, n_scores, BLOCK):
                row = (blocks[first // BLOCK] * values.shape[1] + head_kv) * BLOCK
                next_row = (blocks[min(first + BLOCK, n_scores - BLOCK) // BLOCK] * values.shape[1] + head_kv) * BLOCK
                steps = min(BLOCK, _most(ends) - first)
                after = next_row * value_dim + d if len(ends) < TILE else -1
                rows, at, stride = panel_of(flat, row * value_dim + d, value_dim, steps, width, after, panel)
                for i in range(len(ends)):
                    skipped = max(0, begins[i] - first)
                    steps, factors = min(BLOCK, ends[i] - first) - skipped, i * n_scores + first + skipped
                    add_panel(
                        sums, i * BLOCK, rows, at + skipped * stride, stride, scores, factors, steps, width, after, i,
                        len(ends),
                    )  # fmt: skip
            for i in range(len(ends)):
                for lane in range(width):
                    outputs[places[i] * value_dim + d + lane] = np.float32(sums[i * BLOCK + lane])

    return outputs_of_tile


def _make_attend(dtype: np.dtype[Any], *, sees_all: bool) -> Kernel:
    scores_of_tile, outputs_of_tile, round_16 = _make_scores(dtype), _make_outputs(dtype), _ROUND_16[dtype]

    @jit(name=f"attend_{'all' if sees_all else SUFFIX[dtype]}")
    def attend(
        q: F32, keys: Cache, values: Cache, blocks: I64, head_kv: int, begins: I64, ends: I64, places: I64,
        scale: np.float32, cap: np.float32, sinks: F32, n_head: int, out: F32, scratch: U8,
    ) -> None:  # fmt: skip
        """Queries ``places`` (token * n_head + head) of one sequence and kv head see ``begins`` to ``ends``."""
        head_dim, lowest = keys.shape[2], _least(begins) // BLOCK * BLOCK
        width, n_scores = _padded(head_dim, LANES), _padded(_most(ends), BLOCK)
        panel = scratch[_INDEX_BYTES:_SUMS]
        sums = scratch[_SUMS:_FLOATS].view(np.float64)
        floats = scratch[_FLOATS:].view(np.float32)
        queries, scores = floats[: TILE * width], floats[TILE * width :]
        flat = q.reshape(-1)
        for i in range(len(places)):
            _copy_query(flat, places[i] * head_dim, head_dim, queries, i * width)
            for k in range(0, head_dim, LANES):
                round_16(queries, 4 * (i * width + k))
        scores_of_tile(queries, keys, blocks, head_kv, lowest, ends, head_dim, panel, sums, scores, n_scores)
        for i in range(len(ends)):
            begin, end = begins[i], ends[i]
            if cap != 0:
                cap_scores(scores, i * n_scores, begin, end, cap)
            sink = sinks[places[i] % n_head] if len(sinks) else _NO_SINK
            if sees_all:
                soft_max_all(scores, i * n_scores, end, scale)
            else:
                soft_max(scores, i * n_scores, begin, end, scale, sink)
            for k in range(begin - begin % LANES, end, LANES):
                round_16(scores, 4 * (i * n_scores + k))
        outputs_of_tile(
            scores, n_scores, values, blocks, head_kv, lowest, begins, ends, places, panel, sums, out
        )  # fmt: skip

    return attend


@jit
def _from_both_ends(i: int, n: int) -> int:
    """The i-th of 0, n - 1, 1, n - 2, ...: later tokens see more, and so any part of the items is the same work."""
    return n - 1 - i // 2 if i % 2 else i // 2


@jit
def _end_of_run(sequence: I64, first: int, last: int) -> int:
    """Where the tokens from ``first`` on that belong to its sequence end."""
    end = first + 1
    while end < last and sequence[end] == sequence[first]:
        end += 1
    return end


def _make_attention_window(dtype: np.dtype[Any], *, sees_all: bool = False) -> Kernel:
    attend = _make_attend(dtype, sees_all=sees_all)

    @jit(name=f"simd_attention_window_{'all' if sees_all else SUFFIX[dtype]}")
    def attention_window(
        q: F32, keys: Cache, values: Cache, table: I64, sequence: I64, position: I64, n_head: int, scale: np.float32,
        window: int, cap: np.float32, sinks: F32, out: F32, scratch: U8, start: int, stop: int,
    ) -> None:  # fmt: skip
        """``reference.attention_window`` of items counted as (kv head, tile of tokens, head of the kv head)."""
        n_tokens, group = len(position), n_head // keys.shape[1]
        n_tiles = (n_tokens + TILE - 1) // TILE
        begins = scratch[: 8 * TILE].view(np.int64)
        ends = scratch[8 * TILE : 16 * TILE].view(np.int64)
        places = scratch[16 * TILE : 24 * TILE].view(np.int64)
        item = start
        while item < stop:
            head_kv, head = item // (group * n_tiles), item % group
            n_heads = min(group - head, stop - item)
            first_head = head_kv * group + head
            first = _from_both_ends(item // group % n_tiles, n_tiles) * TILE
            last = min(first + TILE, n_tokens)
            while first < last:
                end = _end_of_run(sequence, first, last)
                n_tokens_of_run = end - first
                blocks, n = table[sequence[first]], 0
                for query in range(n_heads * n_tokens_of_run):
                    t = first + query % n_tokens_of_run
                    ends[n], places[n] = position[t] + 1, t * n_head + first_head + query // n_tokens_of_run
                    begins[n] = max(0, ends[n] - window) if window else 0
                    n += 1
                    if n == TILE or query == n_heads * n_tokens_of_run - 1:
                        attend(
                            q, keys, values, blocks, head_kv, begins[:n], ends[:n], places[:n], scale, cap, sinks,
                            n_head, out, scratch,
                        )  # fmt: skip
                        n = 0
                first = end
            item += n_heads

    return attention_window


def _make_attention(name: str, attention_window: Kernel) -> Kernel:
    @jit(name=f"simd_attention_{name}")
    def attention(
        q: F32, keys: Cache, values: Cache, table: I64, sequence: I64, position: I64, n_head: int, scale: np.float32,
        out: F32, scratch: U8, start: int, stop: int,
    ) -> None:  # fmt: skip
        """``reference.attention``: nothing is windowed, capped or sunk."""
        place, no_sinks = (table, sequence, position), scratch[:0].view(np.float32)
        attention_window(q, keys, values, *place, n_head, scale, 0, _NO_CAP, no_sinks, out, scratch, start, stop)

    return attention


_DTYPES = tuple(SUFFIX)
# attention_window(q, keys, values, table, sequence, position, n_head, scale, window, cap, sinks, out,
# scratch: attention_scratch(), start, stop) as kernels.reference.attention_window, of attention_items() items.
ATTENTION_WINDOW: dict[np.dtype[Any], Kernel] = {dtype: _make_attention_window(dtype) for dtype in _DTYPES}
# attention(q, keys, values, table, sequence, position, n_head, scale, out, scratch, start, stop), alike.
ATTENTION: dict[np.dtype[Any], Kernel] = {
    dtype: _make_attention(SUFFIX[dtype], ATTENTION_WINDOW[dtype]) for dtype in _DTYPES
}
# The same of encoders, as reference.attention.ATTENTION_ALL.
ATTENTION_ALL = _make_attention("all", _make_attention_window(np.dtype(np.float32), sees_all=True))
