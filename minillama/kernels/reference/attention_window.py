"""Attention of layers that do not see everything alike: a sliding window, capped scores, sinks.

The cache and the order are those of :mod:`minillama.kernels.reference.attention`. Positions before the window are
masked in ggml: their exponentials are exact zeros, so that only their places in the softmax's fours matter.
"""

from __future__ import annotations

import numpy as np

from minillama.kernels.jit import Kernel, jit
from minillama.kernels.reference.attention import BLOCK, Cache
from minillama.kernels.reference.fdlibm import tanhf
from minillama.kernels.reference.kv_kinds import (
    ByKind,
    Kind,
    make_add_values,
    make_round_weight,
    make_scores_of_block,
    suffix,
)
from minillama.kernels.reference.libm import exp_lane, expf
from minillama.kernels.types import F32, I64, U8

_F = np.float32


@jit
def soft_max_window(scores: F32, begin: int, end: int, scale: np.float32, sink: np.float32) -> None:
    """``ggml_compute_forward_soft_max_f32`` in place over scores ``begin`` to ``end``; those before are masked.

    ``sink`` takes part in the largest score and in the sum (-inf: there is none).
    """
    largest = _F(-np.inf)
    for j in range(begin, end):
        scores[j] = scores[j] * scale
        largest = max(largest, scores[j])
    largest = max(largest, sink)
    total = np.float64(0)
    for four in range(begin - begin % 4, end, 4):
        for j in range(max(four, begin), min(four + 4, end)):
            scores[j] = exp_lane(_F(scores[j] - largest))
        low = _F(_value(scores, four, begin, end) + _value(scores, four + 1, begin, end))
        high = _F(_value(scores, four + 2, begin, end) + _value(scores, four + 3, begin, end))
        total += np.float64(_F(low + high))
    if sink > _F(-np.inf):
        total += np.float64(expf(_F(sink - largest)))
    inverse = _F(np.float64(1) / total)
    for j in range(begin, end):
        scores[j] = scores[j] * inverse


@jit
def _value(scores: F32, j: int, begin: int, end: int) -> np.float32:
    return scores[j] if begin <= j < end else _F(0)


def _make_attention_window(keys_kind: Kind, values_kind: Kind) -> Kernel:
    scores_of_block, add_values = make_scores_of_block(keys_kind), make_add_values(values_kind)
    round_weight = make_round_weight(values_kind)

    @jit(name=f"attention_window_{suffix(keys_kind)}_{suffix(values_kind)}")
    def attention_window(
        q: F32, keys: Cache, values: Cache, table: I64, sequence: I64, position: I64, n_head: int, scale: np.float32,
        window: int, cap: np.float32, sinks: F32, out: F32, scratch: U8, start: int, stop: int,
    ) -> None:  # fmt: skip
        """Heads ``start`` to ``stop`` of the batch, counted as token * n_head + head."""
        head_dim, value_dim = q.shape[1] // n_head, out.shape[1] // n_head
        n_totals = max(BLOCK, value_dim)
        totals = scratch[: 8 * n_totals].view(np.float64)
        scores = scratch[8 * n_totals :].view(np.float32)
        inverse_cap = _F(_F(1) / cap)
        for item in range(start, stop):
            t, head = item // n_head, item % n_head
            head_kv = head // (n_head // keys.shape[1])
            blocks, end = table[sequence[t]], position[t] + 1
            begin = max(0, end - window) if window else 0
            for i in range(begin // BLOCK, (end + BLOCK - 1) // BLOCK):
                scores_of_block(q, t, head * head_dim, keys, blocks[i], head_kv, totals)
                for slot in range(BLOCK):
                    score = _F(totals[slot])
                    scores[i * BLOCK + slot] = _F(tanhf(_F(score * inverse_cap)) * cap) if cap else score
            soft_max_window(scores, begin, end, scale, sinks[head] if len(sinks) else _F(-np.inf))
            totals[:value_dim] = 0
            for j in range(begin, end):
                add_values(values, blocks[j // BLOCK], head_kv, j % BLOCK, round_weight(scores[j]), totals)
            for d in range(value_dim):
                out[t, head * value_dim + d] = _F(totals[d])

    return attention_window


def attention_window_scratch(n_kv: int, _head_dim: int, value_dim: int) -> int:
    """Bytes of working memory a thread needs where no token sees more than ``n_kv`` positions."""
    return 4 * n_kv + 8 * max(BLOCK, value_dim)


# attention_window(q: float32 [n_tokens, n_head * head_dim], keys, values, table, sequence, position, n_head, scale,
# window (0: all positions), cap (0: none), sinks: float32 [n_head] or empty, out: float32 [n_tokens, n_head *
# value_dim], scratch: attention_window_scratch() bytes, start, stop), of a head of a token each
ATTENTION_WINDOW = ByKind({}, _make_attention_window, pairs=True)
