"""Attention with vectors across positions for the scores and across the head dimension for the values.

Each score and each output is the same sum in the same order as in ``reference.attention``; the lanes are independent.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from minillama.kernels.jit import Kernel, jit
from minillama.kernels.reference.attention import BLOCK, LOAD, STORE, SUFFIX, Cache, make_attention
from minillama.kernels.simd.vectors import (
    add,
    halves_to_f32,
    load_f32x16,
    load_u16x16,
    multiply,
    splat_f32x16,
    splat_f64x16,
    store,
    to_f32,
    to_f64,
)
from minillama.kernels.types import F32, I64

LANES = 16


@jit
def _load_f32(cache: Cache, offset: int) -> object:
    return load_f32x16(cache, offset)


@jit
def _load_f16(cache: Cache, offset: int) -> object:
    return halves_to_f32(load_u16x16(cache, offset))


_LOAD_16: dict[np.dtype[Any], Kernel] = {np.dtype(np.float32): _load_f32, np.dtype(np.uint16): _load_f16}


def _make_scores(dtype: np.dtype[Any]) -> Kernel:
    keep, value_of, load, size = STORE[dtype], LOAD[dtype], _LOAD_16[dtype], dtype.itemsize

    @jit
    def scores_of_head(q: F32, t: int, first: int, keys: Cache, blocks: I64, head_kv: int, n: int, scores: F32) -> None:
        n_head_kv, head_dim = keys.shape[1], keys.shape[2]
        for j in range(0, n, LANES):
            base = ((blocks[j // BLOCK] * n_head_kv + head_kv) * head_dim * BLOCK + j % BLOCK) * size
            total = splat_f64x16(0.0)
            for d in range(head_dim):
                query = splat_f32x16(value_of(keep(q[t, first + d])))
                total = add(total, to_f64(multiply(load(keys, base + d * BLOCK * size), query)))
            store(scores, 4 * j, to_f32(total))

    return scores_of_head


def _make_outputs(dtype: np.dtype[Any]) -> Kernel:
    keep, value_of, load, size = STORE[dtype], LOAD[dtype], _LOAD_16[dtype], dtype.itemsize

    @jit
    def outputs_of_head(
        scores: F32, values: Cache, blocks: I64, head_kv: int, n: int, out: F32, t: int, first: int
    ) -> None:
        n_head_kv, value_dim = values.shape[1], values.shape[3]
        whole = value_dim - value_dim % LANES
        for d in range(0, whole, LANES):
            total = splat_f64x16(0.0)
            for j in range(n):
                row = (blocks[j // BLOCK] * n_head_kv + head_kv) * BLOCK + j % BLOCK
                weight = splat_f32x16(value_of(keep(scores[j])))
                total = add(total, to_f64(multiply(load(values, (row * value_dim + d) * size), weight)))
            store(out, 4 * (t * out.shape[1] + first + d), to_f32(total))
        for d in range(whole, value_dim):
            single = np.float64(0)
            for j in range(n):
                value = value_of(values[blocks[j // BLOCK], head_kv, j % BLOCK, d])
                single += np.float64(np.float32(value * value_of(keep(scores[j]))))
            out[t, first + d] = np.float32(single)

    return outputs_of_head


# attention as in kernels.reference.attention; scores are computed 16 at a time, so its scratch is a multiple of BLOCK.
ATTENTION: dict[np.dtype[Any], Kernel] = {
    dtype: make_attention(f"simd_attention_{SUFFIX[dtype]}", _make_scores(dtype), _make_outputs(dtype))
    for dtype in STORE
}
