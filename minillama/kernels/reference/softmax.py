"""Softmax over rows of scores with mask, ALiBi slopes and sinks (``ggml_soft_max_ext``)."""

from __future__ import annotations

from typing import Any

import numpy as np

from minillama.kernels.jit import Kernel, jit
from minillama.kernels.reference.attention import LOAD, SUFFIX, Cache
from minillama.kernels.reference.libm import exp_lane, expf, powf
from minillama.kernels.types import F32


@jit
def alibi_slope(head: int, n_head: int, max_bias: np.float32) -> np.float32:
    """What a head's mask is multiplied by, from ``max_bias`` (0: 1 for all).

    Powers of ``2^(-max_bias / w)`` for the first w heads, the largest power of two; for the others odd powers of its
    root.
    """
    if max_bias <= 0:
        return np.float32(1)
    whole = 1
    while 2 * whole <= n_head:
        whole *= 2
    count = np.float32(whole)
    if head < whole:
        return powf(powf(np.float32(2), np.float32(np.float32(-max_bias) / count)), np.float32(head + 1))
    half = np.float32(np.float32(-np.float32(max_bias / np.float32(2))) / count)
    return powf(powf(np.float32(2), half), np.float32(2 * (head - whole) + 1))


@jit
def exponentials(x: F32, largest: np.float32) -> np.float64:
    """``ggml_vec_soft_max_f32`` in place: exp(x - largest), and the sum.

    Exponentials are computed and summed in fours, (e0 + e1) + (e2 + e3) in float32, the fours in double; the last
    n mod 4 are the C library's, each added in double.
    """
    n = len(x)
    in_lanes = n - n % 4
    total = np.float64(0)
    for k in range(0, in_lanes, 4):
        for lane in range(k, k + 4):
            x[lane] = exp_lane(np.float32(x[lane] - largest))
        total += np.float64(np.float32(np.float32(x[k] + x[k + 1]) + np.float32(x[k + 2] + x[k + 3])))
    for k in range(in_lanes, n):
        x[k] = expf(np.float32(x[k] - largest))
        total += np.float64(x[k])
    return total


def _make_soft_max_ext(dtype: np.dtype[Any]) -> Kernel:
    load = LOAD[dtype]

    @jit(name=f"soft_max_ext_{SUFFIX[dtype]}")
    def soft_max_ext(
        scores: F32, mask: Cache, sinks: F32, scale: np.float32, max_bias: np.float32, out: F32, start: int, stop: int
    ) -> None:
        """Rows head * n_tokens + token; ``largest`` includes the head's sink, which adds its exponential to the sum."""
        n_head, n_tokens, n = scores.shape
        for row in range(start, stop):
            head, t = row // n_tokens, row % n_tokens
            slope = alibi_slope(head, n_head, max_bias)
            line = out[head, t]
            largest = np.float32(-np.inf)
            for k in range(n):
                line[k] = scores[head, t, k] * scale
                if len(mask):
                    line[k] += np.float32(slope * load(mask[t, k]))
                largest = max(largest, line[k])
            if len(sinks):
                largest = max(largest, sinks[head])
            total = exponentials(line, largest)
            if len(sinks):
                total += np.float64(expf(np.float32(sinks[head] - largest)))
            inverse = np.float32(np.float64(1) / total)
            for k in range(n):
                line[k] = line[k] * inverse

    return soft_max_ext


# soft_max_ext(scores: float32 [n_head, n_tokens, n], mask: [n_tokens, n] of the dictionary's key or empty, sinks:
# float32 [n_head] or empty, scale, max_bias (0: no ALiBi), out: like scores, start, stop)
SOFT_MAX_EXT: dict[np.dtype[Any], Kernel] = {dtype: _make_soft_max_ext(dtype) for dtype in LOAD}
