"""Attention in three parts, whose results can be looked at and changed: products, weights, weighted sums.

Together they give the bits of :mod:`attention` and of :mod:`attention_window`: the order is the same, and what those
leave out (positions that a token does not see, or that the cache has dropped) is -inf in the products and an exact zero
in the weights. An item is one head of one token.
"""

from __future__ import annotations

import numpy as np

from minillama.kernels.jit import Kernel, jit
from minillama.kernels.reference.attention import BLOCK, Cache, soft_max_all
from minillama.kernels.reference.attention_window import soft_max_window
from minillama.kernels.reference.fdlibm import tanhf
from minillama.kernels.reference.kv_kinds import (
    ByKind,
    Kind,
    make_add_values,
    make_round_weight,
    make_scores_of_block,
    suffix,
)
from minillama.kernels.types import F32, I64

_F = np.float32


def _make_attention_scores(kind: Kind) -> Kernel:
    scores_of_block = make_scores_of_block(kind)

    @jit(name=f"attention_scores_{suffix(kind)}", allocates=True)
    def attention_scores(
        q: F32, keys: Cache, table: I64, sequence: I64, position: I64, n_head: int, out: F32, start: int, stop: int
    ) -> None:
        """``ggml_mul_mat(k, q)``, neither scaled nor capped; later positions and dropped ones are -inf."""
        totals = np.empty(BLOCK, np.float64)
        for item in range(start, stop):
            t, head = item // n_head, item % n_head
            head_kv, n = head // (n_head // keys.shape[1]), position[t] + 1
            row = out[t, head]
            for first in range(0, n, BLOCK):
                block = table[sequence[t], first // BLOCK]
                if block < 0:
                    row[first : first + BLOCK] = _F(-np.inf)
                    continue
                scores_of_block(q, t, head * (q.shape[1] // n_head), keys, block, head_kv, totals)
                for slot in range(min(BLOCK, n - first)):
                    row[first + slot] = _F(totals[slot])
            row[n:] = _F(-np.inf)

    return attention_scores


@jit(name="attention_soft_max")
def attention_soft_max(
    scores: F32, position: I64, n_head: int, scale: np.float32, window: int, cap: np.float32, sinks: F32, out: F32,
    start: int, stop: int,
) -> None:  # fmt: skip
    """``ggml_soft_max_ext`` with a causal mask: capped, then scaled, then the softmax; zero where masked."""
    inverse_cap = _F(_F(1) / cap)
    for item in range(start, stop):
        t, head = item // n_head, item % n_head
        end = position[t] + 1
        begin = max(0, end - window) if window else 0
        row = out[t, head]
        row[:] = _F(0)
        for j in range(begin, end):
            row[j] = _F(tanhf(_F(scores[t, head, j] * inverse_cap)) * cap) if cap else scores[t, head, j]
        soft_max_window(row, begin, end, scale, sinks[head] if len(sinks) else _F(-np.inf))


@jit(name="attention_soft_max_all")
def attention_soft_max_all(
    scores: F32, last: I64, n_head: int, scale: np.float32, out: F32, start: int, stop: int
) -> None:
    """``ggml_soft_max_ext`` of encoders: every token sees its whole sequence, up to position ``last``."""
    for item in range(start, stop):
        t, head = item // n_head, item % n_head
        n, row = last[t] + 1, out[t, head]
        row[:] = _F(0)
        for j in range(n):
            row[j] = scores[t, head, j]
        soft_max_all(row, n, scale)


def _make_attention_outputs(kind: Kind) -> Kernel:
    add_values, round_weight = make_add_values(kind), make_round_weight(kind)

    @jit(name=f"attention_outputs_{suffix(kind)}", allocates=True)
    def attention_outputs(
        weights: F32, values: Cache, table: I64, sequence: I64, position: I64, n_head: int, out: F32, start: int,
        stop: int,
    ) -> None:  # fmt: skip
        """``ggml_mul_mat(v, weights)``: double sums over positions, in order, of float products."""
        value_dim = out.shape[1] // n_head
        totals = np.empty(value_dim, np.float64)
        for item in range(start, stop):
            t, head = item // n_head, item % n_head
            head_kv, n = head // (n_head // values.shape[1]), position[t] + 1
            totals[:] = 0
            for j in range(n):
                block = table[sequence[t], j // BLOCK]
                if block >= 0:
                    add_values(values, block, head_kv, j % BLOCK, round_weight(weights[t, head, j]), totals)
            for d in range(value_dim):
                out[t, head * value_dim + d] = _F(totals[d])

    return attention_outputs


# attention_scores(q, keys, table, sequence, position, n_head, out: float32 [n_tokens, n_head, n_kv], start, stop)
ATTENTION_SCORES = ByKind({}, _make_attention_scores, pairs=False)
# attention_outputs(weights: float32 [n_tokens, n_head, n_kv], values, table, sequence, position, n_head,
# out: float32 [n_tokens, n_head * value_dim], start, stop)
ATTENTION_OUTPUTS = ByKind({}, _make_attention_outputs, pairs=False)
