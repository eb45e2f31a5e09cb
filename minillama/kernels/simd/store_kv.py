"""Writing keys and values into the block cache, several tokens at once: the bytes of ``reference.attention``.

The positions of a key's value lie side by side in the cache, the values of a token's key ``BLOCK`` apart: the tokens of
one block are written value by value, so that a cache line is visited once.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from minillama.kernels.jit import Kernel, jit
from minillama.kernels.reference.attention import BLOCK, STORE, SUFFIX, Cache
from minillama.kernels.simd.lanes import prefetch
from minillama.kernels.types import F32, I64


@jit
def _end_of_block(sequence: I64, position: I64, first: int, stop: int) -> int:
    """Where the tokens from ``first`` on that fill one block in order end."""
    end = first + 1
    while (
        end < stop
        and sequence[end] == sequence[first]
        and position[end] == position[end - 1] + 1
        and position[end] % BLOCK != 0
    ):
        end += 1
    return end


def _make_store_kv(dtype: np.dtype[Any]) -> Kernel:
    convert = STORE[dtype]

    @jit(name=f"simd_store_kv_{SUFFIX[dtype]}")
    def store_kv(
        k: F32, v: F32, table: I64, sequence: I64, position: I64, keys: Cache, values: Cache, start: int, stop: int
    ) -> None:
        k_flat, v_flat, keys_flat, values_flat = k.reshape(-1), v.reshape(-1), keys.reshape(-1), values.reshape(-1)
        n_head_kv, head_dim, value_dim = keys.shape[1], keys.shape[2], values.shape[3]
        k_width, v_width = n_head_kv * head_dim, n_head_kv * value_dim
        first = start
        while first < stop:
            end = _end_of_block(sequence, position, first, stop)
            block, slot = table[sequence[first], position[first] // BLOCK], position[first] % BLOCK
            for row in range(k_width):  # a line each, from memory: they are asked for at once
                prefetch(keys_flat, keys.itemsize * ((block * k_width + row) * BLOCK + slot))
            for row in range(k_width):
                to = (block * k_width + row) * BLOCK + slot
                for i in range(end - first):
                    keys_flat[to + i] = convert(k_flat[(first + i) * k_width + row])
            for i in range(end - first):
                for head in range(n_head_kv):
                    to = ((block * n_head_kv + head) * BLOCK + slot + i) * value_dim
                    source = (first + i) * v_width + head * value_dim
                    for d in range(value_dim):
                        values_flat[to + d] = convert(v_flat[source + d])
            first = end

    return store_kv


# store_kv(k: float32 [n_tokens, n_head_kv * head_dim], v, table, sequence, position, keys, values, start, stop)
STORE_KV: dict[np.dtype[Any], Kernel] = {dtype: _make_store_kv(dtype) for dtype in STORE}
