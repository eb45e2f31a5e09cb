"""The softmax of attention on 16 lanes: ``reference.attention.soft_max`` with its sums in the same order."""

from __future__ import annotations

import numpy as np

from minillama.kernels.jit import jit
from minillama.kernels.simd.floats import (
    exp_lanes,
    largest_lane,
    sum_in_order,
    sums_of_fours,
    where_before,
    where_greater,
)
from minillama.kernels.simd.vectors import load_f32x16, multiply, splat_f32x16, store, subtract, to_f64
from minillama.kernels.types import F32

LANES = 16
_NOTHING, _ZERO = np.float32(-np.inf), np.float32(0)


@jit
def soft_max(scores: F32, at: int, n: int, scale: np.float32) -> None:
    """``ggml_compute_forward_soft_max_f32`` in place over ``scores[at : at + n]``.

    Up to a multiple of 16, what lies past the n scores does not count and is overwritten. Exponentials are summed four
    at a time, (e0 + e1) + (e2 + e3) in float, and the fours in double, in order.
    """
    largest_lanes = splat_f32x16(_NOTHING)
    for j in range(0, n, LANES):
        scaled = multiply(load_f32x16(scores, 4 * (at + j)), splat_f32x16(scale))
        scaled = where_before(n - j, scaled, splat_f32x16(_NOTHING))
        store(scores, 4 * (at + j), scaled)
        largest_lanes = where_greater(scaled, largest_lanes, scaled, largest_lanes)
    largest = splat_f32x16(largest_lane(largest_lanes))
    total = np.float64(0)
    for j in range(0, n, LANES):
        value = exp_lanes(subtract(load_f32x16(scores, 4 * (at + j)), largest))
        value = where_before(n - j, value, splat_f32x16(_ZERO))
        store(scores, 4 * (at + j), value)
        total = sum_in_order(total, to_f64(sums_of_fours(value)))
    inverse = splat_f32x16(np.float32(np.float64(1) / total))
    for j in range(0, n, LANES):
        store(scores, 4 * (at + j), multiply(load_f32x16(scores, 4 * (at + j)), inverse))
