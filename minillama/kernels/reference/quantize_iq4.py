"""Quantizing weights to the types whose sixteen levels are not evenly spaced: IQ4_NL and IQ4_XS."""

from __future__ import annotations

import numpy as np

from minillama.kernels import layouts
from minillama.kernels.bits import float_to_half, nearest_int, store_u16
from minillama.kernels.jit import jit
from minillama.kernels.reference.codebooks import iq4_values
from minillama.kernels.reference.quantize_32 import pack_nibbles
from minillama.kernels.reference.quantize_search import (
    NOTHING,
    clamped,
    extreme_value,
    square,
    sum_of_squares,
    weigh,
)
from minillama.kernels.types import F32, I8, I64, U8

_F = np.float32
_N_TRIES = 7


@jit
def _nearest_level(codebook: I8, value: np.float32) -> int:
    """``best_index_int8``: index of the nearest level, the upper one when two are equally near."""
    if value <= _F(codebook[0]):
        return 0
    if value >= _F(codebook[15]):
        return 15
    low, high = 0, 15
    while high - low > 1:
        middle = (low + high) // 2
        if value < _F(codebook[middle]):
            high = middle
        else:
            low = middle
    return low if value - _F(codebook[low]) < _F(codebook[high]) - value else high


@jit(allocates=True)
def _set_levels(x: F32, inverse: np.float32, levels: I64) -> None:
    codebook = iq4_values()
    for j in range(32):
        levels[j] = _nearest_level(codebook, inverse * x[j])


@jit(allocates=True)
def _sums(x: F32, weights: F32, inverse: np.float32) -> tuple[np.float32, np.float32]:
    """The weighted sums of value times level and of level squared, each value at the level nearest to it."""
    codebook = iq4_values()
    sum_qx, sum_q2 = _F(0), _F(0)
    for j in range(32):
        level = _F(codebook[_nearest_level(codebook, inverse * x[j])])
        sum_qx += weights[j] * level * x[j]
        sum_q2 += weights[j] * level * level
    return sum_qx, sum_q2


@jit(allocates=True)
def _search_scale(x: F32, weights: F32, n_tries: int) -> tuple[np.float32, np.float32]:
    """The scale of 32 values by ``quantize_row_iq4_nl_impl``, and the inverse scale of the first try.

    The first try maps the value of largest magnitude to the level -127 (with ``n_tries`` to +127, beyond the last
    level), the others to -127 - n_tries to -127 + n_tries; the least-squares scale of the best is the result. A group
    of nothing has the scale zero.
    """
    largest, extreme = extreme_value(x)
    if largest < NOTHING:
        return _F(0), _F(0)
    lowest = np.int64(iq4_values()[0])
    d = (-extreme if n_tries else extreme) / _F(lowest)
    first_inverse = _F(1) / d
    sum_qx, sum_q2 = _sums(x, weights, first_inverse)
    d = sum_qx / sum_q2 if sum_q2 > 0 else _F(0)
    best = d * sum_qx
    if n_tries:
        for shift in range(-n_tries, n_tries + 1):
            sum_qx, sum_q2 = _sums(x, weights, _F(shift + lowest) / extreme)
            if sum_q2 > 0 and sum_qx * sum_qx > best * sum_q2:
                d = sum_qx / sum_q2
                best = d * sum_qx
    return d, first_inverse


@jit
def _weigh(x: F32, importance: F32, first: int, sigma2: np.float32, weights: F32) -> None:
    if importance.shape[0]:
        weigh(x, importance[first : first + 32], sigma2, weights)
    else:
        square(x, weights)


_IQ4_NL_SIZE, _IQ4_NL_D, _IQ4_NL_QS = (
    layouts.IQ4_NL.type_size,
    layouts.IQ4_NL.offset("d"),
    layouts.IQ4_NL.offset("qs"),
)


@jit(allocates=True)
def quantize_row_iq4_nl(x: F32, importance: F32, out: U8) -> None:
    """``quantize_iq4_nl``: a scale searched for in 15 tries, the levels nearest by it."""
    levels, weights = np.empty(32, np.int64), np.empty(32, np.float32)
    for block in range(x.shape[0] // 32):
        start, values = block * _IQ4_NL_SIZE, x[block * 32 : block * 32 + 32]
        sigma2 = sum_of_squares(values) * (_F(2) / _F(32))
        _weigh(values, importance, block * 32, sigma2, weights)
        d, _ = _search_scale(values, weights, _N_TRIES)
        _set_levels(values, _F(1) / d if d != 0 else _F(0), levels)
        store_u16(out, start + _IQ4_NL_D, float_to_half(d))
        pack_nibbles(levels, out, start + _IQ4_NL_QS)


@jit(allocates=True)
def quantize_row_iq4_nl_ref(x: F32, out: U8) -> None:
    """``quantize_row_iq4_nl_ref``, which converts activations: one try, and the levels of that try.

    In a block of nothing ggml leaves the levels of the block before, of the first block uninitialised ones; here they
    are zero (their scale is zero).
    """
    levels, weights = np.empty(32, np.int64), np.empty(32, np.float32)
    for block in range(x.shape[0] // 32):
        start, values = block * _IQ4_NL_SIZE, x[block * 32 : block * 32 + 32]
        square(values, weights)
        d, inverse = _search_scale(values, weights, 0)
        if inverse == 0:
            levels[:] = 0
        else:
            _set_levels(values, inverse, levels)
        store_u16(out, start + _IQ4_NL_D, float_to_half(d))
        pack_nibbles(levels, out, start + _IQ4_NL_QS)


_IQ4_XS_SIZE = layouts.IQ4_XS.type_size
_IQ4_XS_D, _IQ4_XS_HIGH, _IQ4_XS_LOW, _IQ4_XS_QS = (
    layouts.IQ4_XS.offset(field) for field in ("d", "scales_h", "scales_l", "qs")
)


@jit
def _pack_iq4_xs_scales(scales: I64, out: U8, start: int) -> None:
    """Eight 6-bit scales: low nibbles in four bytes, high pairs of bits in a 16-bit integer."""
    high = 0
    for group in range(8):
        high |= (scales[group] >> 4) << (2 * group)
    store_u16(out, start + _IQ4_XS_HIGH, np.uint32(high))
    for pair in range(4):
        low = (scales[2 * pair] & 15) | ((scales[2 * pair + 1] & 15) << 4)
        out[start + _IQ4_XS_LOW + pair] = np.uint8(low)


@jit(allocates=True)
def quantize_row_iq4_xs(x: F32, importance: F32, out: U8) -> None:
    """``quantize_iq4_xs``: as IQ4_NL in groups of 32, whose scales become -32 to 31 times the block's.

    The levels are by the block's scale before it is rounded to half.
    """
    levels, weights = np.empty(32, np.int64), np.empty(32, np.float32)
    scales, scale_levels = np.empty(8, np.float32), np.empty(8, np.int64)
    for block in range(x.shape[0] // 256):
        start, first = block * _IQ4_XS_SIZE, block * 256
        sigma2 = sum_of_squares(x[first : first + 256]) * (_F(2) / _F(256))
        for group in range(8):
            at = first + group * 32
            _weigh(x[at : at + 32], importance, at, sigma2, weights)
            scales[group], _ = _search_scale(x[at : at + 32], weights, _N_TRIES)
        _, extreme = extreme_value(scales)
        d = -extreme / _F(32)
        inverse = _F(1) / d if d != 0 else _F(0)
        for group in range(8):
            at = first + group * 32
            scale = clamped(nearest_int(inverse * scales[group]), -32, 31)
            group_d = d * _F(scale)
            _set_levels(x[at : at + 32], _F(1) / group_d if group_d != 0 else _F(0), levels)
            pack_nibbles(levels, out, start + _IQ4_XS_QS + 16 * group)
            scale_levels[group] = scale + 32
        store_u16(out, start + _IQ4_XS_D, float_to_half(d))
        _pack_iq4_xs_scales(scale_levels, out, start)
