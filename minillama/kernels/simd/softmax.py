"""The softmax of attention on 16 lanes: ``reference.attention_window.soft_max_window`` in the same order."""

from __future__ import annotations

import numpy as np

from minillama.kernels.jit import jit
from minillama.kernels.reference.libm import expf
from minillama.kernels.simd.floats import (
    exp_lanes,
    largest_lane,
    sum_in_order,
    sums_of_fours,
    where_before,
    where_greater,
)
from minillama.kernels.simd.functions import tanh_lanes
from minillama.kernels.simd.vectors import load_f32x16, multiply, splat_f32x16, store, subtract, to_f64
from minillama.kernels.types import F32

LANES = 16
_NOTHING, _ZERO, _ONE = np.float32(-np.inf), np.float32(0), np.float32(1)


@jit
def cap_scores(scores: F32, at: int, begin: int, end: int, cap: np.float32) -> None:
    """``cap * tanh(x / cap)`` of scores ``begin`` to ``end`` in place, as ``reference.elementwise.softcap``."""
    size, inverse = splat_f32x16(cap), splat_f32x16(np.float32(_ONE / cap))
    for j in range(begin - begin % LANES, end, LANES):
        capped = multiply(tanh_lanes(multiply(load_f32x16(scores, 4 * (at + j)), inverse)), size)
        store(scores, 4 * (at + j), capped)


@jit
def soft_max(scores: F32, at: int, begin: int, end: int, scale: np.float32, sink: np.float32) -> None:
    """``ggml_compute_forward_soft_max_f32`` in place over scores ``begin`` to ``end``, score 0 being ``scores[at]``.

    What else lies in their sixteens does not count and is overwritten. Exponentials are summed four at a time,
    (e0 + e1) + (e2 + e3) in float, and the fours in double, in order. ``sink`` takes part in the largest score and in
    the sum (-inf: there is none).
    """
    nothing, zero, first = splat_f32x16(_NOTHING), splat_f32x16(_ZERO), begin - begin % LANES
    largest_lanes = splat_f32x16(_NOTHING)
    for j in range(first, end, LANES):
        scaled = multiply(load_f32x16(scores, 4 * (at + j)), splat_f32x16(scale))
        scaled = where_before(begin - j, nothing, where_before(end - j, scaled, nothing))
        store(scores, 4 * (at + j), scaled)
        largest_lanes = where_greater(scaled, largest_lanes, scaled, largest_lanes)
    largest = largest_lane(largest_lanes)
    largest = max(largest, sink)
    total = np.float64(0)
    for j in range(first, end, LANES):
        value = exp_lanes(subtract(load_f32x16(scores, 4 * (at + j)), splat_f32x16(largest)))
        value = where_before(begin - j, zero, where_before(end - j, value, zero))
        store(scores, 4 * (at + j), value)
        total = sum_in_order(total, to_f64(sums_of_fours(value)))
    if sink > _NOTHING:
        total += np.float64(expf(np.float32(sink - largest)))
    _multiply_all(scores, at + first, end - first, np.float32(np.float64(1) / total))


@jit
def _multiply_all(scores: F32, at: int, n: int, factor: np.float32) -> None:
    for j in range(0, n, LANES):
        to = 4 * (at + j)
        store(scores, to, multiply(load_f32x16(scores, to), splat_f32x16(factor)))


@jit
def soft_max_all(scores: F32, at: int, n: int, scale: np.float32) -> None:
    """``reference.attention.soft_max_all`` of scores ``at`` and on; what else lies in their sixteens is overwritten."""
    nothing, zero, in_lanes = splat_f32x16(_NOTHING), splat_f32x16(_ZERO), n - n % 4
    largest_lanes = nothing
    for j in range(0, n, LANES):
        scaled = where_before(n - j, multiply(load_f32x16(scores, 4 * (at + j)), splat_f32x16(scale)), nothing)
        store(scores, 4 * (at + j), scaled)
        largest_lanes = where_greater(scaled, largest_lanes, scaled, largest_lanes)
    largest, total = largest_lane(largest_lanes), np.float64(0)
    for j in range(0, in_lanes, LANES):
        scaled = load_f32x16(scores, 4 * (at + j))
        value = exp_lanes(subtract(scaled, splat_f32x16(largest)))
        store(scores, 4 * (at + j), where_before(in_lanes - j, value, scaled))
        total = sum_in_order(total, to_f64(sums_of_fours(where_before(in_lanes - j, value, zero))))
    for j in range(at + in_lanes, at + n):
        scores[j] = expf(np.float32(scores[j] - largest))
        total += np.float64(scores[j])
    _multiply_all(scores, at, n, np.float32(np.float64(1) / total))
