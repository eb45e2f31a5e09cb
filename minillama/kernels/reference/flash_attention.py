"""Flash attention in the two orders of ggml's CPU backend (``ggml_flash_attn_ext``), for llama.cpp's default setting.

ggml chooses by the shape: from ``TILE`` queries on a tile at a time, else one position at a time. The two round at
different places, with halves even the queries: the result depends on how many tokens are evaluated together. With one
query and 512 positions or more, ggml's threads share the positions, and the result depends on their number too; the
kernels here are what one thread computes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from minillama.kernels.bits import half_to_float
from minillama.kernels.jit import Kernel, jit
from minillama.kernels.reference.attention import LOAD, STORE, SUFFIX, Cache
from minillama.kernels.reference.fdlibm import tanhf
from minillama.kernels.reference.libm import expf
from minillama.kernels.reference.softmax import alibi_slope, exponentials
from minillama.kernels.types import F32, U16

TILE = 64  # queries from which ggml works in tiles, and positions in a tile

_F = np.float32


@jit
def _masked(score: np.float32, scale: np.float32, cap: np.float32, mask: np.float32) -> np.float32:
    scaled = _F(score * scale)
    if cap != 0:
        scaled = _F(cap * tanhf(scaled))
    return _F(scaled + mask)


@jit
def _finish(sums: F32, total: np.float32, largest: np.float32, sink: np.float32, out: F32) -> None:
    """Add the sink (minus infinity: none) as one more position without a value, and divide by the sum."""
    if sink > largest:
        shrink = expf(_F(largest - sink))
        for d in range(len(sums)):
            sums[d] = sums[d] * shrink
        total = _F(_F(total * shrink) + _F(1))
    elif sink > -np.inf:
        total = _F(total + expf(_F(sink - largest)))
    inverse = _F(0) if total == 0 else _F(_F(1) / total)
    for d in range(len(sums)):
        out[d] = sums[d] * inverse


def _make_by_position(dtype: np.dtype[Any]) -> Kernel:
    """``ggml_compute_forward_flash_attn_ext_f16_one_chunk``: the running sum is kept in the type of the values."""
    load, store = LOAD[dtype], STORE[dtype]

    @jit(name=f"attend_by_position_{SUFFIX[dtype]}", allocates=True)
    def attend(
        q: F32, k: Cache, v: Cache, mask: U16, t: int, sink: np.float32, scale: np.float32, slope: np.float32,
        cap: np.float32, out: F32,
    ) -> None:  # fmt: skip
        sums = np.zeros(v.shape[1], np.float32)
        total, largest = _F(0), _F(-np.inf)
        for j in range(len(k)):
            masked = _F(slope * half_to_float(np.uint32(mask[t, j]))) if len(mask) else _F(0)
            if masked == -np.inf:
                continue
            dot = np.float64(0)
            for d in range(len(q)):
                dot += np.float64(_F(load(k[j, d]) * load(store(q[d]))))
            score = _masked(_F(dot), scale, cap, masked)
            shrink, weight = _F(1), _F(1)
            if score > largest:
                shrink = expf(_F(largest - score))
                largest = score
                for d in range(len(sums)):
                    sums[d] = load(store(_F(sums[d] * shrink)))
            else:
                weight = expf(_F(score - largest))
            for d in range(len(sums)):
                sums[d] = load(store(_F(sums[d] + _F(load(v[j, d]) * weight))))
            total = _F(_F(total * shrink) + weight)
        _finish(sums, total, largest, sink, out)

    return attend


def _make_by_tile(dtype: np.dtype[Any]) -> Kernel:
    """``ggml_compute_forward_flash_attn_ext_tiled``: products and sums in float32, the maximum moved once a tile."""
    load = LOAD[dtype]

    @jit(name=f"attend_by_tile_{SUFFIX[dtype]}", allocates=True)
    def attend(
        q: F32, k: Cache, v: Cache, mask: U16, t: int, sink: np.float32, scale: np.float32, slope: np.float32,
        cap: np.float32, out: F32,
    ) -> None:  # fmt: skip
        sums, scores = np.zeros(v.shape[1], np.float32), np.empty(TILE, np.float32)
        total, largest = _F(0), _F(-np.inf)
        for first in range(0, len(k), TILE):
            n = min(TILE, len(k) - first)
            scores[:] = -np.inf
            highest = _F(-np.inf)
            for j in range(n):
                dot = _F(0)
                for d in range(len(q)):
                    dot = _F(dot + _F(q[d] * load(k[first + j, d])))
                masked = _F(slope * half_to_float(np.uint32(mask[t, first + j]))) if len(mask) else _F(0)
                scores[j] = _masked(dot, scale, cap, masked)
                highest = max(highest, scores[j])
            if highest == -np.inf:
                continue
            if highest > largest:
                shrink = expf(_F(largest - highest))
                for d in range(len(sums)):
                    sums[d] = sums[d] * shrink
                total = _F(total * shrink)
                largest = highest
            total = _F(np.float64(total) + exponentials(scores, largest))
            for d in range(len(sums)):
                for j in range(n):
                    sums[d] += _F(scores[j] * load(v[first + j, d]))
        _finish(sums, total, largest, sink, out)

    return attend


def _make_flash_attention(dtype: np.dtype[Any]) -> Kernel:
    by_position, by_tile = _make_by_position(dtype), _make_by_tile(dtype)

    @jit(name=f"flash_attention_{SUFFIX[dtype]}")
    def flash_attention(
        q: F32, k: Cache, v: Cache, mask: U16, sinks: F32, scale: np.float32, max_bias: np.float32,
        cap: np.float32, out: F32, start: int, stop: int,
    ) -> None:  # fmt: skip
        n_head, n_tokens = q.shape[0], q.shape[1]
        scaled = _F(scale / cap) if cap != 0 else scale
        for row in range(start, stop):
            head, t = row // n_tokens, row % n_tokens
            head_kv = head // (n_head // k.shape[0])
            slope = alibi_slope(head, n_head, max_bias)
            sink = sinks[head] if len(sinks) else _F(-np.inf)
            if n_tokens < TILE:
                by_position(q[head, t], k[head_kv], v[head_kv], mask, t, sink, scaled, slope, cap, out[t, head])
            else:
                by_tile(q[head, t], k[head_kv], v[head_kv], mask, t, sink, scaled, slope, cap, out[t, head])

    return flash_attention


# flash_attention(q: float32 [n_head, n_tokens, head_dim], k: [n_head_kv, n, head_dim] of the dictionary's key, v:
# [n_head_kv, n, value_dim], mask: bits of halves [n_tokens, n] or empty, sinks: float32 [n_head] or empty, scale,
# max_bias (0: no ALiBi), cap (0: none), out: float32 [n_tokens, n_head, value_dim], start, stop): rows counted
# head * n_tokens + token
FLASH_ATTENTION: Mapping[np.dtype[Any], Kernel] = {dtype: _make_flash_attention(dtype) for dtype in LOAD}
