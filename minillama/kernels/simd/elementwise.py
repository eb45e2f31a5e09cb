"""Norms and SwiGLU on 16 lanes: the results of ``reference.elementwise``.

All work on rows ``start`` to ``stop`` of float32 arrays [n_tokens, n] and write to ``out`` of the same shape.
"""

from __future__ import annotations

import numpy as np

from minillama.kernels.jit import Kernel, jit
from minillama.kernels.reference.libm import expf
from minillama.kernels.simd.floats import (
    absolute,
    divide,
    exp_lanes,
    load_first,
    store_first,
    sum_in_order,
    sums_of_fours,
    where_before,
)
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


@jit
def _mean(x: F32, at: int, n: int) -> tuple[np.float32, bool]:
    """The sum by 16 sums, rounded to float32 and divided, and whether any order of summing rounds to the same.

    As in :func:`_mean_square`, but terms may cancel: orders differ by less than 2 n 2^-53 of the sum of their sizes.
    """
    sums = sizes = splat_f64x16(0.0)
    for k in range(0, n, LANES):
        values = to_f64(load_first(x, 4 * (at + k), n - k))
        sums, sizes = add(sums, values), add(sizes, absolute(values))
    total = sum_in_order(np.float64(0), sums)
    slack = sum_in_order(np.float64(0), sizes) * (np.float64(n + 20) * np.float64(2.0**-51))
    low, high = np.float32(total - slack), np.float32(total + slack)
    return np.float32(low / np.float32(n)), low == high


@jit
def _mean_in_order(x: F32, at: int, n: int) -> np.float32:
    total = np.float64(0)
    for k in range(at, at + n):
        total += np.float64(x[k])
    return np.float32(np.float32(total) / np.float32(n))


@jit
def _centre(x: F32, at: int, n: int, mean: np.float32, out: F32) -> np.float32:
    """Write x less its mean, and return the mean of the squares; their last n mod 4 are added one by one."""
    total = np.float64(0)
    for k in range(0, n, LANES):
        to, rest = 4 * (at + k), n - k
        centred = subtract(load_first(x, to, rest), splat_f32x16(mean))
        store_first(out, to, rest, centred)
        squares = where_before(rest - rest % 4, multiply(centred, centred), splat_f32x16(_ZERO))
        total = sum_in_order(total, to_f64(sums_of_fours(squares)))
    for k in range(at + n - n % 4, at + n):
        total += np.float64(np.float32(out[k] * out[k]))
    return np.float32(total / n)


@jit(name="simd_layer_norm")
def layer_norm(x: F32, weight: F32, eps: np.float32, out: F32, start: int, stop: int) -> None:
    """``ggml_compute_forward_norm_f32`` and the product with the weight: the sums of ``reference.elementwise``."""
    n = x.shape[1]
    flat, result = x.reshape(-1), out.reshape(-1)
    for at in range(start * n, stop * n, n):
        mean, certain = _mean(flat, at, n)
        if not certain:
            mean = _mean_in_order(flat, at, n)
        variance = _centre(flat, at, n, mean, result)
        scale = np.float32(_ONE / np.float32(np.sqrt(np.float32(variance + eps))))
        for k in range(0, n, LANES):
            to, rest = 4 * (at + k), n - k
            scaled = multiply(load_first(result, to, rest), splat_f32x16(scale))
            store_first(result, to, rest, multiply(scaled, load_first(weight, 4 * k, rest)))


def _make_silu(name: str, *, is_gated: bool) -> Kernel:
    """``x / (1 + exp(-x))``, times the other array if it is gated, the last n mod 4 with libm's exponential."""

    @jit(name=f"{name}_row")
    def of_row(x: F32, up: F32, at: int, n: int, out: F32) -> None:
        for k in range(0, n - n % 4, LANES):
            to, rest = 4 * (at + k), n - n % 4 - k
            value = load_first(x, to, rest)
            value = divide(value, add(splat_f32x16(_ONE), exp_lanes(subtract(splat_f32x16(_ZERO), value))))
            if is_gated:
                value = multiply(value, load_first(up, to, rest))
            store_first(out, to, rest, value)
        for k in range(at + n - n % 4, at + n):
            value = np.float32(x[k] / np.float32(_ONE + expf(np.float32(-x[k]))))
            out[k] = value * up[k] if is_gated else value

    return of_row


_silu_row, _swiglu_row = _make_silu("silu", is_gated=False), _make_silu("swiglu", is_gated=True)


@jit(name="simd_silu")
def silu(x: F32, out: F32, start: int, stop: int) -> None:
    """``ggml_vec_silu_f32``."""
    n, flat = x.shape[1], x.reshape(-1)
    for t in range(start, stop):
        _silu_row(flat, flat, t * n, n, out.reshape(-1))


@jit(name="simd_swiglu")
def swiglu(gate: F32, up: F32, out: F32, start: int, stop: int) -> None:
    """``ggml_vec_swiglu_f32``: ``silu(gate) * up``."""
    n = gate.shape[1]
    for t in range(start, stop):
        _swiglu_row(gate.reshape(-1), up.reshape(-1), t * n, n, out.reshape(-1))
