"""Searching for the scale (and minimum) that a group of values is best quantized with: ggml's ``make_*_quants``.

Each search fills ``levels`` (int64, one per value) and returns float32. Its result depends on the rounding of every
sum, so the order is ggml's, and every operand below is a float32: one operation of two of them rounds to float32,
compiled and as plain Python. Integers are converted explicitly, because numba would compute in double otherwise.
"""

from __future__ import annotations

import numpy as np

from minillama.kernels.bits import nearest_int
from minillama.kernels.jit import jit
from minillama.kernels.types import F32, I64

_F = np.float32

NOTHING = _F(1e-15)  # GROUP_MAX_EPS: a group whose largest magnitude is below is all zero
_OUT_OF_RANGE = -(1 << 31)


@jit
def truncated(value: np.float32) -> int:
    """A float cast to an integer as x86 does it: toward zero, and -2^31 for all that 32 bits do not hold."""
    if abs(value) < _F(2147483648.0):  # false for NaN too
        return int(value)
    return _OUT_OF_RANGE


@jit
def clamped(value: int, low: int, high: int) -> int:
    """The integer brought into a range."""
    return max(low, min(high, value))


@jit
def as_int8(value: int) -> int:
    """The value of an integer's lowest byte as C's ``int8_t``."""
    return ((value & 255) ^ 128) - 128


@jit
def extreme_value(x: F32) -> tuple[np.float32, np.float32]:
    """The largest magnitude and the (first) value that has it, with its sign; zeros when there is none."""
    largest, extreme = _F(0), _F(0)
    for value in x:
        magnitude = _F(abs(value))
        if magnitude > largest:
            largest, extreme = magnitude, value
    return largest, extreme


@jit
def sum_of_squares(x: F32) -> np.float32:
    """A float32 sum in order of float32 squares."""
    total = _F(0)
    for value in x:
        total += value * value
    return total


@jit
def weigh(x: F32, importance: F32, sigma2: np.float32, weights: F32) -> np.float32:
    """``weights = importance * sqrt(sigma2 + x^2)``, as every search with an importance matrix; returns their sum."""
    total = _F(0)
    for i in range(x.shape[0]):
        weights[i] = importance[i] * np.sqrt(sigma2 + x[i] * x[i])
        total += weights[i]
    return total


@jit
def square(x: F32, weights: F32) -> None:
    """``weights = x^2``, the weight of a value that has no importance."""
    for i in range(x.shape[0]):
        weights[i] = x[i] * x[i]


@jit
def _symmetric_sums(
    x: F32, weights: F32, n_levels: int, inverse: np.float32, levels: I64
) -> tuple[np.float32, np.float32]:
    """Levels by an inverse scale; the weighted sums of value times level and of level squared."""
    sum_lx, sum_l2 = _F(0), _F(0)
    for i in range(x.shape[0]):
        levels[i] = clamped(nearest_int(inverse * x[i]), -n_levels, n_levels - 1)
        level = _F(levels[i])
        sum_lx += weights[i] * x[i] * level
        sum_l2 += weights[i] * level * level
    return sum_lx, sum_l2


@jit
def search_scale(x: F32, weights: F32, n_levels: int, levels: I64) -> np.float32:
    """``make_qx_quants`` with ``rmse_type`` 1: values are scale times a level of -n_levels to n_levels - 1.

    The first try makes the value of largest magnitude the level -n_levels, 18 more shift that end in steps of 0.1; for
    each the best scale is the least-squares one, and the try with the smallest weighted error wins. ``levels`` come out
    raised by ``n_levels``; in a group of nothing they are all 0.
    """
    largest, extreme = extreme_value(x)
    if largest < NOTHING:
        levels[: x.shape[0]] = 0
        return _F(0)
    inverse = _F(-n_levels) / extreme
    sum_lx, sum_l2 = _symmetric_sums(x, weights, n_levels, inverse, levels)
    scale = sum_lx / sum_l2 if sum_l2 != 0 else _F(0)
    best, best_inverse = scale * sum_lx, inverse
    for step in range(-9, 10):
        if step == 0:
            continue
        inverse = -(_F(n_levels) + _F(0.1) * _F(step)) / extreme
        sum_lx, sum_l2 = _symmetric_sums(x, weights, n_levels, inverse, levels)
        if sum_l2 > 0 and sum_lx * sum_lx > best * sum_l2:
            scale = sum_lx / sum_l2
            best, best_inverse = scale * sum_lx, inverse
    for i in range(x.shape[0]):
        levels[i] = n_levels + clamped(nearest_int(best_inverse * x[i]), -n_levels, n_levels - 1)
    return scale


@jit
def search_scale_by_moves(x: F32, weights: F32, n_levels: int, levels: I64) -> np.float32:
    """``make_q3_quants``: as the first try of :func:`search_scale`, then up to five rounds of single moves.

    A value moves to the level that fits the scale of all the others when that lowers the weighted error.
    """
    largest, extreme = extreme_value(x)
    if largest < NOTHING:
        levels[: x.shape[0]] = 0
        return _F(0)
    sum_lx, sum_l2 = _symmetric_sums(x, weights, n_levels, _F(-n_levels) / extreme, levels)
    for _ in range(5):
        moved = False
        for i in range(x.shape[0]):
            level, weight = _F(levels[i]), weights[i]
            other_lx = sum_lx - weight * x[i] * level
            if not other_lx > 0:
                continue
            other_l2 = sum_l2 - weight * level * level
            target = clamped(nearest_int(x[i] * other_l2 / other_lx), -n_levels, n_levels - 1)
            if target != levels[i]:
                other_lx += weight * x[i] * _F(target)
                other_l2 += weight * _F(target) * _F(target)
                if other_l2 > 0 and other_lx * other_lx * sum_l2 > sum_lx * sum_lx * other_l2:
                    levels[i], sum_lx, sum_l2 = target, other_lx, other_l2
                    moved = True
        if not moved:
            break
    for i in range(x.shape[0]):
        levels[i] += n_levels
    return sum_lx / sum_l2 if sum_l2 > 0 else _F(0)


@jit
def _error(x: F32, weights: F32, levels: I64, scale: np.float32, minimum: np.float32, absolute: bool) -> np.float32:
    """Weighted sum of absolute or squared differences."""
    total = _F(0)
    for i in range(x.shape[0]):
        difference = scale * _F(levels[i]) + minimum - x[i]
        total += weights[i] * (_F(abs(difference)) if absolute else difference * difference)
    return total


@jit(allocates=True)
def search_scale_and_minimum(
    x: F32,
    weights: F32,
    max_level: int,
    levels: I64,
    trial: I64,
    first: np.float32,
    step: np.float32,
    n_steps: int,
    absolute: bool,
) -> tuple[np.float32, np.float32]:
    """``make_qkx2_quants`` and ``make_qkx3_quants``: scale times a level of 0 to max_level, minus a minimum.

    The first try spreads the levels from the smallest value (or zero) to the largest. The others spread
    ``max_level + first + k * step`` of them, k = 0 to n_steps, and solve the weighted least-squares problem for scale
    and minimum; the smallest error wins. Returns the scale and the minimum's negative, which is not below zero.
    """
    n = x.shape[0]
    low, high, sum_w = x[0], x[0], weights[0]
    sum_x = sum_w * x[0]
    for i in range(1, n):
        low = x[i] if x[i] < low else low
        high = x[i] if x[i] > high else high
        sum_w += weights[i]
        sum_x += weights[i] * x[i]
    low = _F(0) if low > 0 else low
    if high == low:
        levels[:n] = 0
        return _F(0), -low
    inverse = _F(max_level) / (high - low)
    scale, minimum = _F(1) / inverse, low
    for i in range(n):
        levels[i] = clamped(nearest_int(inverse * (x[i] - low)), 0, max_level)
    best = _error(x, weights, levels, scale, minimum, absolute)
    for k in range(n_steps + 1):
        # A better minimum is also the low end of the tries that follow.
        inverse = (first + step * _F(k) + _F(max_level)) / (high - minimum)
        sum_l, sum_l2, sum_xl = _F(0), _F(0), _F(0)
        for i in range(n):
            trial[i] = clamped(nearest_int(inverse * (x[i] - minimum)), 0, max_level)
            level = _F(trial[i])
            sum_l += weights[i] * level
            sum_l2 += weights[i] * level * level
            sum_xl += weights[i] * level * x[i]
        determinant = sum_w * sum_l2 - sum_l * sum_l
        if not determinant > 0:
            continue
        this_scale = (sum_w * sum_xl - sum_x * sum_l) / determinant
        this_minimum = (sum_l2 * sum_x - sum_l * sum_xl) / determinant
        if this_minimum > 0:
            this_scale, this_minimum = sum_xl / sum_l2, _F(0)
        error = _error(x, weights, trial, this_scale, this_minimum, absolute)
        if error < best:
            levels[:n] = trial[:n]
            best, scale, minimum = error, this_scale, this_minimum
    return scale, -minimum


@jit
def _best_inverse(x: F32, weights: F32, max_level: int, largest: np.float32) -> np.float32:
    """Of nine inverse scales around ``max_level / largest``, in steps of 0.1, that of the smallest weighted error."""
    inverse = _F(max_level) / largest
    best = _F(0)
    for i in range(x.shape[0]):
        difference = x[i] - _F(1) / inverse * _F(nearest_int(inverse * x[i]) & 255)
        best += weights[i] * difference * difference
    for step in range(-4, 5):
        if step == 0:
            continue
        this_inverse = (_F(0.1) * _F(step) + _F(max_level)) / largest
        this_scale = _F(1) / this_inverse
        error = _F(0)
        for i in range(x.shape[0]):
            difference = x[i] - this_scale * _F(min(max_level, nearest_int(this_inverse * x[i])))
            error += weights[i] * difference * difference
        if error < best:
            best, inverse = error, this_inverse
    return inverse


@jit
def search_positive_scale(x: F32, weights: F32, max_level: int, levels: I64) -> np.float32:
    """``make_qp_quants``: values of at least zero, quantized to 0 to max_level.

    The levels by the best of nine scales, then up to five rounds of single moves as in :func:`search_scale_by_moves`.
    Levels wrap at 256, as in ggml's bytes.
    """
    largest = _F(0)
    for value in x:
        largest = largest if largest > value else value
    if largest < NOTHING:
        levels[: x.shape[0]] = 0
        return _F(0)
    inverse = _best_inverse(x, weights, max_level, largest)
    sum_lx, sum_l2 = _F(0), _F(0)
    for i in range(x.shape[0]):
        rounded = min(max_level, nearest_int(inverse * x[i]))
        levels[i] = rounded & 255
        sum_lx += weights[i] * x[i] * _F(rounded)
        sum_l2 += weights[i] * _F(rounded) * _F(rounded)
    for _ in range(5):
        moved = False
        for i in range(x.shape[0]):
            level, weight = _F(levels[i]), weights[i]
            other_lx = sum_lx - weight * x[i] * level
            other_l2 = sum_l2 - weight * level * level
            if not (other_lx > 0 and other_l2 > 0):
                continue
            target = min(max_level, nearest_int(x[i] * other_l2 / other_lx))
            if target != levels[i]:
                other_lx += weight * x[i] * _F(target)
                other_l2 += weight * _F(target) * _F(target)
                if other_lx * other_lx * sum_l2 > sum_lx * sum_lx * other_l2:
                    levels[i], sum_lx, sum_l2 = target & 255, other_lx, other_l2
                    moved = True
        if not moved:
            break
    return sum_lx / sum_l2 if sum_l2 > 0 else _F(0)
