"""Quantizing weights to the types of one and two bits without a search: TQ1_0, TQ2_0, Q1_0 and Q2_0."""

from __future__ import annotations

import numpy as np

from minillama.kernels import layouts
from minillama.kernels.bits import float_to_half, round_half_away, store_u16
from minillama.kernels.jit import jit
from minillama.kernels.reference.quantize_search import clamped, extreme_value, truncated
from minillama.kernels.types import F32, U8

_F = np.float32


@jit
def _ternary(scaled: np.float32) -> int:
    """``lroundf(scaled) + 1``: 0, 1 or 2; what overflows because the scale is subnormal becomes 1, as on x86-64."""
    whole = round_half_away(scaled)
    return int(whole) + 1 if abs(whole) <= _F(1) else 1


@jit
def _pack_trits(x: F32, stride: int, inverse: np.float32, out: U8, at: int) -> None:
    """Up to five digits of base 3 to a byte, values l, l + stride, ...: their number spread over 0 to 255.

    Multiplied by 3, such a byte brings its digits to the top one by one. Without a fifth value that digit is zero.
    """
    for m in range(stride):
        number = 0
        for n in range(5):
            number *= 3
            if n * stride < x.shape[0]:
                number += _ternary(x[n * stride + m] * inverse)
        out[at + m] = np.uint8((number * 256 + 242) // 243)


_TQ1_0_SIZE, _TQ1_0_D = layouts.TQ1_0.type_size, layouts.TQ1_0.offset("d")
_TQ1_0_QS, _TQ1_0_QH = layouts.TQ1_0.offset("qs"), layouts.TQ1_0.offset("qh")


@jit
def quantize_row_tq1_0(x: F32, importance: F32, out: U8) -> None:
    """``quantize_row_tq1_0_ref``: five ternary digits to a byte, in strides of 32, of 16, and four in strides of 4."""
    for block in range(x.shape[0] // 256):
        start, values = block * _TQ1_0_SIZE, x[block * 256 : block * 256 + 256]
        d, _ = extreme_value(values)
        inverse = _F(1) / d if d != 0 else _F(0)
        store_u16(out, start + _TQ1_0_D, float_to_half(d))
        _pack_trits(values[:160], 32, inverse, out, start + _TQ1_0_QS)
        _pack_trits(values[160:240], 16, inverse, out, start + _TQ1_0_QS + 32)
        _pack_trits(values[240:], 4, inverse, out, start + _TQ1_0_QH)


_TQ2_0_SIZE, _TQ2_0_D, _TQ2_0_QS = layouts.TQ2_0.type_size, layouts.TQ2_0.offset("d"), layouts.TQ2_0.offset("qs")


@jit
def quantize_row_tq2_0(x: F32, importance: F32, out: U8) -> None:
    """``quantize_row_tq2_0_ref``: four ternary digits to a byte, values l, l + 32, l + 64 and l + 96 of each 128."""
    for block in range(x.shape[0] // 256):
        start, values = block * _TQ2_0_SIZE, x[block * 256 : block * 256 + 256]
        d, _ = extreme_value(values)
        inverse = _F(1) / d if d != 0 else _F(0)
        store_u16(out, start + _TQ2_0_D, float_to_half(d))
        for half in range(2):
            for m in range(32):
                packed = 0
                for n in range(4):
                    packed |= _ternary(values[half * 128 + n * 32 + m] * inverse) << (2 * n)
                out[start + _TQ2_0_QS + half * 32 + m] = np.uint8(packed)


_Q1_0_SIZE, _Q1_0_D, _Q1_0_QS = layouts.Q1_0.type_size, layouts.Q1_0.offset("d"), layouts.Q1_0.offset("qs")


@jit
def quantize_row_q1_0(x: F32, importance: F32, out: U8) -> None:
    """``quantize_row_q1_0_ref``: the scale is the mean magnitude (a float32 sum in order), a bit says not negative."""
    for block in range(x.shape[0] // 128):
        start, values = block * _Q1_0_SIZE, x[block * 128 : block * 128 + 128]
        total = _F(0)
        for value in values:
            total += _F(abs(value))
        store_u16(out, start + _Q1_0_D, float_to_half(total / _F(128)))
        for byte in range(16):
            packed = 0
            for bit in range(8):
                if values[8 * byte + bit] >= 0:
                    packed |= 1 << bit
            out[start + _Q1_0_QS + byte] = np.uint8(packed)


_Q2_0_SIZE, _Q2_0_D, _Q2_0_QS = layouts.Q2_0.type_size, layouts.Q2_0.offset("d"), layouts.Q2_0.offset("qs")


@jit
def quantize_row_q2_0(x: F32, importance: F32, out: U8) -> None:
    """``quantize_row_q2_0_ref``: the scale is the largest magnitude; levels -1 to 2 as two bits, four to a byte."""
    for block in range(x.shape[0] // 64):
        start, values = block * _Q2_0_SIZE, x[block * 64 : block * 64 + 64]
        d, _ = extreme_value(values)
        inverse = _F(1) / d if d > 0 else _F(0)
        store_u16(out, start + _Q2_0_D, float_to_half(d))
        for byte in range(16):
            packed = 0
            for j in range(4):
                level = truncated(round_half_away(values[4 * byte + j] * inverse)) + 1
                packed |= clamped(level, 0, 3) << (2 * j)
            out[start + _Q2_0_QS + byte] = np.uint8(packed)
