"""Quantizing weights to the K-quants, plain and with an importance matrix.

Every group of 16 or 32 values gets a scale (and a minimum) from a search; the scales are quantized in turn, and then
the values once more, by the scales as they will be decoded. Without importances (an empty array) the functions are
``quantize_row_*_K_ref``, with them ``quantize_row_*_K_impl``. Groups whose decoded scale is zero keep the levels of
their search, as in ggml.
"""

from __future__ import annotations

import numpy as np

from minillama.kernels import layouts
from minillama.kernels.bits import float_to_half, half_to_float, nearest_int, store_u16
from minillama.kernels.jit import Kernel, jit
from minillama.kernels.layouts import BlockLayout
from minillama.kernels.reference.quantize_k_packing import (
    pack_four_bits,
    pack_one_bit,
    pack_q2_k_scales,
    pack_q3_k_scales,
    pack_six_bit_scales,
    pack_six_bits,
    pack_two_bits,
)
from minillama.kernels.reference.quantize_search import (
    NOTHING,
    as_int8,
    clamped,
    extreme_value,
    search_positive_scale,
    search_scale,
    search_scale_and_minimum,
    search_scale_by_moves,
    square,
    sum_of_squares,
    weigh,
)
from minillama.kernels.reference.unpack import q2_k_scales, q3_k_scales, q6_k_scales, six_bit_scales
from minillama.kernels.types import F32, I32, I64, U8

_F = np.float32


@jit
def _plain_levels(values: F32, max_level: int, limit: int, levels: I64) -> np.float32:
    """Scales or minimums by the largest, which becomes ``max_level``; returns its share of one level."""
    largest = _F(0)
    for value in values:
        largest = value if value > largest else largest
    inverse = _F(max_level) / largest if largest > 0 else _F(0)
    for j in range(values.shape[0]):
        levels[j] = min(limit, nearest_int(inverse * values[j]) & 255)
    return largest / _F(max_level)


@jit
def _magnitudes(x: F32, weights: F32) -> None:
    """Q2_K's plain weights: ``|x|``."""
    for i in range(x.shape[0]):
        weights[i] = _F(abs(x[i]))


@jit
def _mean_and_magnitudes(x: F32, weights: F32) -> None:
    """Q4_K's and Q5_K's plain weights: ``sqrt(mean square of the group) + |x|``."""
    mean = np.sqrt(sum_of_squares(x) / _F(x.shape[0]))
    for i in range(x.shape[0]):
        weights[i] = mean + _F(abs(x[i]))


@jit
def _requantize(
    x: F32, d: np.float32, dmin: np.float32, scales: I32, mins: I32, low: int, high: int, levels: I64
) -> None:
    """The levels nearest to the values, group by group of 16, in units of the decoded scale; raised by ``-low``."""
    for group in range(16):
        scale = d * _F(scales[group])
        if scale == 0:
            continue
        minimum = dmin * _F(mins[group])
        for j in range(16 * group, 16 * group + 16):
            levels[j] = clamped(nearest_int((x[j] + minimum) / scale), low, high) - low


def _make_with_minimum(
    layout: BlockLayout,
    *,
    group_size: int,
    max_level: int,
    max_scale: int,
    plain_limit: int,
    searched_limit: int,
    weigh_plainly: Kernel,
    plain_search: tuple[float, float, int, bool],
    sigma_factor: int,
    pack_scales: Kernel,
    unpack_scales: Kernel,
    pack_levels: Kernel,
) -> Kernel:
    size, at_d, at_dmin, at_scales = layout.type_size, *(layout.offset(f) for f in ("d", "dmin", "scales"))
    n_groups = 256 // group_size
    plain_first, plain_step, plain_steps, plain_absolute = plain_search

    @jit(name=f"quantize_row_{layout.type.name}", allocates=True)
    def quantize_row(x: F32, importance: F32, out: U8) -> None:
        levels, trial = np.empty(256, np.int64), np.empty(group_size, np.int64)
        weights, sums = np.empty(group_size, np.float32), np.empty(n_groups, np.float32)
        scales, mins = np.empty(n_groups, np.float32), np.empty(n_groups, np.float32)
        scale_levels, min_levels = np.empty(n_groups, np.int64), np.empty(n_groups, np.int64)
        decoded, decoded_mins = np.empty(16, np.int32), np.empty(16, np.int32)
        weighted = importance.shape[0] > 0
        first_step = _F(-0.9) if weighted else _F(plain_first)
        step = _F(0.05) if weighted else _F(plain_step)
        n_steps = 36 if weighted else plain_steps
        absolute = plain_absolute and not weighted
        for block in range(x.shape[0] // 256):
            start, values = block * size, x[block * 256 : block * 256 + 256]
            sigma2 = _F(sigma_factor) * sum_of_squares(values) / _F(256)
            for group in range(n_groups):
                at = group * group_size
                part, part_levels = values[at : at + group_size], levels[at : at + group_size]
                if weighted:
                    above = block * 256 + at
                    sums[group] = weigh(part, importance[above : above + group_size], sigma2, weights)
                else:
                    weigh_plainly(part, weights)
                scales[group], mins[group] = search_scale_and_minimum(
                    part, weights, max_level, part_levels, trial, first_step, step, n_steps, absolute
                )
            if weighted:
                d = search_positive_scale(scales, sums, max_scale, scale_levels)
                dmin = search_positive_scale(mins, sums, max_scale, min_levels)
                # A negative level has wrapped to at most 255, and only Q5_K cuts it to what six bits hold.
                scale_levels[:] = np.minimum(scale_levels, searched_limit)
                min_levels[:] = np.minimum(min_levels, searched_limit)
            else:
                d = _plain_levels(scales, max_scale, plain_limit, scale_levels)
                dmin = _plain_levels(mins, max_scale, plain_limit, min_levels)
            half_d, half_dmin = float_to_half(d), float_to_half(dmin)
            store_u16(out, start + at_d, half_d)
            store_u16(out, start + at_dmin, half_dmin)
            pack_scales(scale_levels, min_levels, out, start + at_scales)
            unpack_scales(out, start + at_scales, decoded, decoded_mins)
            d, dmin = half_to_float(half_d), half_to_float(half_dmin)
            _requantize(values, d, dmin, decoded, decoded_mins, 0, max_level, levels)
            pack_levels(levels, out, start)

    return quantize_row


_Q2_K_QS, _Q4_K_QS = layouts.Q2_K.offset("qs"), layouts.Q4_K.offset("qs")
_Q5_K_QH, _Q5_K_QS = layouts.Q5_K.offset("qh"), layouts.Q5_K.offset("qs")


@jit
def _pack_q2_k(levels: I64, out: U8, start: int) -> None:
    pack_two_bits(levels, out, start + _Q2_K_QS)


@jit
def _pack_q4_k(levels: I64, out: U8, start: int) -> None:
    pack_four_bits(levels, out, start + _Q4_K_QS)


@jit
def _pack_q5_k(levels: I64, out: U8, start: int) -> None:
    pack_one_bit(levels, 4, out, start + _Q5_K_QH)
    pack_four_bits(levels, out, start + _Q5_K_QS)


# quantize_row(x: float32 [n], importance: float32 [n] or [0], out: uint8 [row_bytes])
quantize_row_q2_k = _make_with_minimum(
    layouts.Q2_K,
    group_size=16,
    max_level=3,
    max_scale=15,
    plain_limit=255,
    searched_limit=255,
    weigh_plainly=_magnitudes,
    plain_search=(-0.5, 0.1, 15, True),
    sigma_factor=1,
    pack_scales=pack_q2_k_scales,
    unpack_scales=q2_k_scales,
    pack_levels=_pack_q2_k,
)
quantize_row_q4_k = _make_with_minimum(
    layouts.Q4_K,
    group_size=32,
    max_level=15,
    max_scale=63,
    plain_limit=63,
    searched_limit=255,
    weigh_plainly=_mean_and_magnitudes,
    plain_search=(-1.0, 0.1, 20, False),
    sigma_factor=2,
    pack_scales=pack_six_bit_scales,
    unpack_scales=six_bit_scales,
    pack_levels=_pack_q4_k,
)
quantize_row_q5_k = _make_with_minimum(
    layouts.Q5_K,
    group_size=32,
    max_level=31,
    max_scale=63,
    plain_limit=63,
    searched_limit=63,
    weigh_plainly=_mean_and_magnitudes,
    plain_search=(-0.5, 0.1, 15, False),
    sigma_factor=2,
    pack_scales=pack_six_bit_scales,
    unpack_scales=six_bit_scales,
    pack_levels=_pack_q5_k,
)


_Q3_K_SIZE, _Q3_K_D, _Q3_K_SCALES = layouts.Q3_K.type_size, layouts.Q3_K.offset("d"), layouts.Q3_K.offset("scales")
_Q3_K_HMASK, _Q3_K_QS = layouts.Q3_K.offset("hmask"), layouts.Q3_K.offset("qs")


@jit(allocates=True)
def quantize_row_q3_k(x: F32, importance: F32, out: U8) -> None:
    """``quantize_row_q3_K_ref`` (:func:`search_scale_by_moves`), ``quantize_row_q3_K_impl`` (:func:`search_scale`)."""
    levels, scale_levels = np.empty(256, np.int64), np.empty(16, np.int64)
    weights, scales, sums = np.empty(16, np.float32), np.empty(16, np.float32), np.empty(16, np.float32)
    decoded, no_mins = np.empty(16, np.int32), np.empty(16, np.int32)
    for block in range(x.shape[0] // 256):
        start, values = block * _Q3_K_SIZE, x[block * 256 : block * 256 + 256]
        sigma2 = _F(2) * sum_of_squares(values) / _F(256)
        for group in range(16):
            at = group * 16
            part, part_levels = values[at : at + 16], levels[at : at + 16]
            if importance.shape[0]:
                above = block * 256 + at
                sums[group] = weigh(part, importance[above : above + 16], sigma2, weights)
                scales[group] = search_scale(part, weights, 4, part_levels)
            else:
                square(part, weights)
                scales[group] = search_scale_by_moves(part, weights, 4, part_levels)
        if importance.shape[0]:
            d = search_scale(scales, sums, 32, scale_levels)
        else:
            _, extreme = extreme_value(scales)
            inverse = _F(-32) / extreme if extreme != 0 else _F(0)
            for group in range(16):
                level = as_int8(nearest_int(inverse * scales[group]))
                scale_levels[group] = clamped(level, -32, 31) + 32 if extreme != 0 else 0
            d = _F(1) / inverse if extreme != 0 else _F(0)
        half_d = float_to_half(d)
        store_u16(out, start + _Q3_K_D, half_d)
        pack_q3_k_scales(scale_levels, out, start + _Q3_K_SCALES)
        q3_k_scales(out, start + _Q3_K_SCALES, decoded, no_mins)
        _requantize(values, half_to_float(half_d), _F(0), decoded, no_mins, -4, 3, levels)
        pack_one_bit(levels, 2, out, start + _Q3_K_HMASK)
        pack_two_bits(levels, out, start + _Q3_K_QS)


_Q6_K_SIZE, _Q6_K_D, _Q6_K_SCALES = layouts.Q6_K.type_size, layouts.Q6_K.offset("d"), layouts.Q6_K.offset("scales")
_Q6_K_QL, _Q6_K_QH = layouts.Q6_K.offset("ql"), layouts.Q6_K.offset("qh")


@jit(allocates=True)
def quantize_row_q6_k(x: F32, importance: F32, out: U8) -> None:
    """``quantize_row_q6_K_ref`` and ``quantize_row_q6_K_impl`` (:func:`search_scale`, by x^2 or the importance alone).

    A block whose largest scale is below 1e-15 becomes zero bytes.
    """
    levels, scales, weights = np.empty(256, np.int64), np.empty(16, np.float32), np.empty(16, np.float32)
    decoded, no_mins = np.empty(16, np.int32), np.empty(16, np.int32)
    for block in range(x.shape[0] // 256):
        start, values = block * _Q6_K_SIZE, x[block * 256 : block * 256 + 256]
        for group in range(16):
            at = group * 16
            part = values[at : at + 16]
            if importance.shape[0]:
                weights[:] = importance[block * 256 + at : block * 256 + at + 16]
            else:
                square(part, weights)
            scales[group] = search_scale(part, weights, 32, levels[at : at + 16])
        largest, extreme = extreme_value(scales)
        if largest < NOTHING:
            out[start : start + _Q6_K_SIZE] = 0
            continue
        inverse = _F(-128) / extreme
        half_d = float_to_half(_F(1) / inverse)
        store_u16(out, start + _Q6_K_D, half_d)
        for group in range(16):
            out[start + _Q6_K_SCALES + group] = np.uint8(min(127, nearest_int(inverse * scales[group])) & 255)
        q6_k_scales(out, start + _Q6_K_SCALES, decoded, no_mins)
        _requantize(values, half_to_float(half_d), _F(0), decoded, no_mins, -32, 31, levels)
        pack_six_bits(levels, out, start + _Q6_K_QL, start + _Q6_K_QH)
