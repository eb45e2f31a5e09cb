"""Attention whose inner loops run across positions for the scores and across the head dimension for the values.

Each score and each output is the same sum in the same order as in ``reference.attention``; the lanes are independent.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from minillama.kernels.jit import Kernel, jit
from minillama.kernels.reference.attention import BLOCK, LOAD, STORE, SUFFIX, Cache, soft_max
from minillama.kernels.types import F32, I64, U8


def _make_attention(dtype: np.dtype[Any]) -> Kernel:
    store, load = STORE[dtype], LOAD[dtype]

    @jit(name=f"generic_attention_{SUFFIX[dtype]}")
    def attention(
        q: F32, keys: Cache, values: Cache, table: I64, sequence: I64, position: I64, n_head: int, scale: np.float32,
        out: F32, scratch: U8, start: int, stop: int,
    ) -> None:  # fmt: skip
        n_head_kv, head_dim, value_dim = keys.shape[1], keys.shape[2], values.shape[3]
        totals = scratch[: 8 * max(BLOCK, value_dim)].view(np.float64)
        scores = scratch[8 * max(BLOCK, value_dim) :].view(np.float32)
        for item in range(start, stop):
            t, head = item // n_head, item % n_head
            head_kv = head // (n_head // n_head_kv)
            blocks, n = table[sequence[t]], position[t] + 1
            for first in range(0, n, BLOCK):
                block = blocks[first // BLOCK]
                totals[:BLOCK] = 0
                for d in range(head_dim):
                    query = load(store(q[t, head * head_dim + d]))
                    for slot in range(BLOCK):
                        totals[slot] += np.float64(np.float32(load(keys[block, head_kv, d, slot]) * query))
                for slot in range(min(BLOCK, n - first)):
                    scores[first + slot] = np.float32(totals[slot])
            soft_max(scores, n, scale)
            totals[:value_dim] = 0
            for j in range(n):
                block, slot = blocks[j // BLOCK], j % BLOCK
                weight = load(store(scores[j]))
                for d in range(value_dim):
                    totals[d] += np.float64(np.float32(load(values[block, head_kv, slot, d]) * weight))
            for d in range(value_dim):
                out[t, head * value_dim + d] = np.float32(totals[d])

    return attention


# attention as in kernels.reference.attention, with 8 bytes of scratch per value of a head, at least BLOCK, in front.
ATTENTION: dict[np.dtype[Any], Kernel] = {dtype: _make_attention(dtype) for dtype in STORE}
