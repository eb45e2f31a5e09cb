"""Quantizing weights to the types of 32 values: Q4_0, Q4_1, Q5_0, Q5_1, plain and with an importance matrix.

Without importances (an empty array) they are ``quantize_row_*_ref``: the scale comes from the extremes. With them they
are ``quantize_row_*_impl``: the scale is searched for (:func:`search_scale`, :func:`search_scale_and_minimum`) with the
weights ``importance * sqrt(mean square of the row + x^2)``.
Q8_0 is among the activation formats, in ``quantize.py``; it has no use for importances.
"""

from __future__ import annotations

import numpy as np

from minillama.kernels import layouts
from minillama.kernels.bits import float_to_half, store_u16
from minillama.kernels.jit import Kernel, jit
from minillama.kernels.layouts import BlockLayout
from minillama.kernels.reference.quantize_search import (
    extreme_value,
    search_scale,
    search_scale_and_minimum,
    sum_of_squares,
    truncated,
    weigh,
)
from minillama.kernels.types import F32, I64, U8

_F = np.float32
_LARGEST = np.finfo(np.float32).max


@jit
def pack_nibbles(levels: I64, out: U8, at: int) -> None:
    """Of 32 levels, the low four bits: the first 16 to low nibbles, the others to high ones."""
    for j in range(16):
        out[at + j] = np.uint8((levels[j] & 15) | ((levels[j + 16] & 15) << 4))


@jit
def _pack_fifth_bits(levels: I64, out: U8, at: int) -> None:
    """Of 32 levels, bit 4: that of level j is bit j of a 32-bit integer."""
    for byte in range(4):
        packed = 0
        for bit in range(8):
            packed |= ((levels[8 * byte + bit] >> 4) & 1) << bit
        out[at + byte] = np.uint8(packed)


@jit
def _plain_symmetric(x: F32, n_levels: int, levels: I64) -> np.float32:
    """The value of largest magnitude becomes level 0 of 2 * n_levels; returns the scale."""
    _, extreme = extreme_value(x)
    d = extreme / _F(-n_levels)
    inverse = _F(1) / d if d != 0 else _F(0)
    for j in range(32):
        levels[j] = min(2 * n_levels - 1, truncated(x[j] * inverse + (_F(n_levels) + _F(0.5))))
    return d


@jit
def _plain_minimum(x: F32, max_level: int, levels: I64) -> tuple[np.float32, np.float32]:
    """The smallest value becomes level 0, the largest ``max_level``; returns the scale and the smallest value."""
    low, high = _F(_LARGEST), _F(-_LARGEST)
    for value in x:
        low = value if value < low else low
        high = value if value > high else high
    d = (high - low) / _F(max_level)
    inverse = _F(1) / d if d != 0 else _F(0)
    for j in range(32):
        levels[j] = min(max_level, truncated((x[j] - low) * inverse + _F(0.5)))
    return d, low


def _make_symmetric(layout: BlockLayout, n_levels: int) -> Kernel:
    size, at_d, at_qs = layout.type_size, layout.offset("d"), layout.offset("qs")
    has_fifth_bits = "qh" in dict(layout.fields)
    at_qh = layout.offset("qh") if has_fifth_bits else 0

    @jit(name=f"quantize_row_{layout.type.name}", allocates=True)
    def quantize_row(x: F32, importance: F32, out: U8) -> None:
        levels, weights = np.empty(32, np.int64), np.empty(32, np.float32)
        sigma2 = sum_of_squares(x) / _F(x.shape[0])
        for block in range(x.shape[0] // 32):
            first, start = block * 32, block * size
            values = x[first : first + 32]
            if importance.shape[0]:
                weigh(values, importance[first : first + 32], sigma2, weights)
                d = search_scale(values, weights, n_levels, levels)
            else:
                d = _plain_symmetric(values, n_levels, levels)
            store_u16(out, start + at_d, float_to_half(d))
            pack_nibbles(levels, out, start + at_qs)
            if has_fifth_bits:
                _pack_fifth_bits(levels, out, start + at_qh)

    return quantize_row


def _make_minimum(layout: BlockLayout, max_level: int) -> Kernel:
    size, at_d, at_m, at_qs = layout.type_size, *(layout.offset(field) for field in ("d", "m", "qs"))
    has_fifth_bits = "qh" in dict(layout.fields)
    at_qh = layout.offset("qh") if has_fifth_bits else 0

    @jit(name=f"quantize_row_{layout.type.name}", allocates=True)
    def quantize_row(x: F32, importance: F32, out: U8) -> None:
        levels, trial, weights = np.empty(32, np.int64), np.empty(32, np.int64), np.empty(32, np.float32)
        sigma2 = sum_of_squares(x) / _F(x.shape[0])
        for block in range(x.shape[0] // 32):
            first, start = block * 32, block * size
            values = x[first : first + 32]
            if importance.shape[0]:
                weigh(values, importance[first : first + 32], sigma2, weights)
                d, negative = search_scale_and_minimum(
                    values, weights, max_level, levels, trial, _F(-0.9), _F(0.05), 36, False
                )
                m = -negative
            else:
                d, m = _plain_minimum(values, max_level, levels)
            store_u16(out, start + at_d, float_to_half(d))
            store_u16(out, start + at_m, float_to_half(m))
            pack_nibbles(levels, out, start + at_qs)
            if has_fifth_bits:
                _pack_fifth_bits(levels, out, start + at_qh)

    return quantize_row


# quantize_row(x: float32 [n], importance: float32 [n] or [0], out: uint8 [row_bytes])
quantize_row_q4_0 = _make_symmetric(layouts.Q4_0, 8)
quantize_row_q5_0 = _make_symmetric(layouts.Q5_0, 16)
quantize_row_q4_1 = _make_minimum(layouts.Q4_1, 15)
quantize_row_q5_1 = _make_minimum(layouts.Q5_1, 31)
