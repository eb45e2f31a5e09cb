"""Norm, additions and SwiGLU on 16 lanes: the results of ``reference.elementwise``.

All work on rows ``start`` to ``stop`` of float32 arrays [n_tokens, n] and write to ``out`` of the same shape.
"""

from __future__ import annotations

import numpy as np

from minillama.kernels.jit import jit
from minillama.kernels.reference.libm import exp_lane, expf
from minillama.kernels.simd.floats import divide, exp_lanes, sum_in_order
from minillama.kernels.simd.vectors import (
    add,
    load_f32x16,
    multiply,
    splat_f32x16,
    splat_f64x16,
    store,
    subtract,
    to_f64,
)
from minillama.kernels.types import F32

LANES = 16
_ONE, _ZERO = np.float32(1), np.float32(0)


@jit
def _mean_square(x: F32, at: int, n: int) -> tuple[np.float32, bool]:
    """Mean of squares by 16 sums, rounded to float32, and whether any order of summing rounds to the same.

    Squares are positive, so that two orders differ by less than 2 n 2^-53 of the sum. Where all sums that near have the
    same mean in float32, as but for one in some 10^5 they do, that is also the mean of the sum in order.
    """
    squares = splat_f64x16(0.0)
    in_lanes = n - n % LANES
    for k in range(0, in_lanes, LANES):
        values = load_f32x16(x, 4 * (at + k))
        squares = add(squares, to_f64(multiply(values, values)))
    total = sum_in_order(np.float64(0), squares)
    for k in range(at + in_lanes, at + n):
        total += np.float64(np.float32(x[k] * x[k]))
    slack = total * (np.float64(n + 20) * np.float64(2.0**-51))
    low, high = np.float32((total - slack) / n), np.float32((total + slack) / n)
    return low, low == high


@jit
def _mean_square_in_order(x: F32, at: int, n: int) -> np.float32:
    total = np.float64(0)
    for k in range(at, at + n):
        total += np.float64(np.float32(x[k] * x[k]))
    return np.float32(total / n)


@jit(name="simd_rms_norm")
def rms_norm(x: F32, weight: F32, eps: np.float32, out: F32, start: int, stop: int) -> None:
    """``ggml_compute_forward_rms_norm_f32`` and the product with the weight: double sum, in order, of float squares."""
    n = x.shape[1]
    flat, result = x.reshape(-1), out.reshape(-1)
    in_lanes = n - n % LANES
    for at in range(start * n, stop * n, n):
        mean, certain = _mean_square(flat, at, n)
        if not certain:
            mean = _mean_square_in_order(flat, at, n)
        scale = np.float32(_ONE / np.float32(np.sqrt(np.float32(mean + eps))))
        for k in range(0, in_lanes, LANES):
            scaled = multiply(load_f32x16(flat, 4 * (at + k)), splat_f32x16(scale))
            store(result, 4 * (at + k), multiply(scaled, load_f32x16(weight, 4 * k)))
        for k in range(in_lanes, n):
            result[at + k] = np.float32(flat[at + k] * scale) * weight[k]


@jit(name="simd_add")
def add_rows(x: F32, y: F32, out: F32, start: int, stop: int) -> None:
    """``ggml_add`` of two arrays of one shape."""
    first, last = start * x.shape[1], stop * x.shape[1]
    left, right, result = x.reshape(-1), y.reshape(-1), out.reshape(-1)
    whole = last - (last - first) % LANES
    for k in range(first, whole, LANES):
        store(result, 4 * k, add(load_f32x16(left, 4 * k), load_f32x16(right, 4 * k)))
    for k in range(whole, last):
        result[k] = left[k] + right[k]


@jit(name="simd_add_bias")
def add_bias(x: F32, bias: F32, out: F32, start: int, stop: int) -> None:
    """``ggml_add`` of one row to every row."""
    n = x.shape[1]
    flat, result = x.reshape(-1), out.reshape(-1)
    in_lanes = n - n % LANES
    for at in range(start * n, stop * n, n):
        for k in range(0, in_lanes, LANES):
            store(result, 4 * (at + k), add(load_f32x16(flat, 4 * (at + k)), load_f32x16(bias, 4 * k)))
        for k in range(in_lanes, n):
            result[at + k] = flat[at + k] + bias[k]


@jit
def _swiglu_tail(gate: np.float32, up: np.float32, exponential: np.float32) -> np.float32:
    return np.float32(np.float32(gate / np.float32(_ONE + exponential)) * up)


@jit(name="simd_swiglu")
def swiglu(gate: F32, up: F32, out: F32, start: int, stop: int) -> None:
    """``ggml_vec_swiglu_f32``: ``gate / (1 + exp(-gate)) * up``, the last n mod 4 with libm's exponential."""
    n = gate.shape[1]
    gates, ups, result = gate.reshape(-1), up.reshape(-1), out.reshape(-1)
    for at in range(start * n, stop * n, n):
        for k in range(at, at + n - n % LANES, LANES):
            value = load_f32x16(gates, 4 * k)
            sigmoid = add(splat_f32x16(_ONE), exp_lanes(subtract(splat_f32x16(_ZERO), value)))
            store(result, 4 * k, multiply(divide(value, sigmoid), load_f32x16(ups, 4 * k)))
        for k in range(at + n - n % LANES, at + n - n % 4):
            result[k] = _swiglu_tail(gates[k], ups[k], exp_lane(np.float32(_ZERO - gates[k])))
        for k in range(at + n - n % 4, at + n):
            result[k] = _swiglu_tail(gates[k], ups[k], expf(np.float32(-gates[k])))
