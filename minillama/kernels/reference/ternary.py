"""Blocks of one- and two-bit and of ternary quants taken apart. See ``reference.unpack``."""

from __future__ import annotations

import numpy as np

from minillama.kernels import layouts
from minillama.kernels.jit import jit
from minillama.kernels.reference.unpack import NO_MINIMUM, Halves, load_half, one_scale, two_bit_quants
from minillama.kernels.types import I8, I32, U8

_Q1_0_D, _Q1_0_QS = layouts.Q1_0.offset("d"), layouts.Q1_0.offset("qs")


@jit
def unpack_q1_0(row: U8, start: int, quants: I8, scales: I32, mins: I32) -> Halves:
    """Q1_0: 128 bits, lowest first; a set one is 1, the others are -1."""
    for j in range(128):
        bit = (np.int32(row[start + _Q1_0_QS + j // 8]) >> (j % 8)) & 1
        quants[j] = np.int8(2 * bit - 1)
    return load_half(row, start + _Q1_0_D), NO_MINIMUM


_Q2_0_D, _Q2_0_QS = layouts.Q2_0.offset("d"), layouts.Q2_0.offset("qs")


@jit
def unpack_q2_0(row: U8, start: int, quants: I8, scales: I32, mins: I32) -> Halves:
    """Q2_0: 64 times two bits, lowest first, minus 1."""
    for j in range(64):
        two = (np.int32(row[start + _Q2_0_QS + j // 4]) >> (2 * (j % 4))) & 3
        quants[j] = np.int8(two - 1)
    return load_half(row, start + _Q2_0_D), NO_MINIMUM


@jit
def _ternary_digits(row: U8, start: int, n_bytes: int, n_digits: int, quants: I8, at: int) -> None:
    """A byte is a fraction of 256, written in base 3: multiplied by 3, its next digit comes out above the byte.

    The first digits of all bytes come first, then the second ones. A digit minus 1 is the quant.
    """
    power = 1
    for digit in range(n_digits):
        for j in range(n_bytes):
            rest = (np.int32(row[start + j]) * power) & 255
            quants[at + digit * n_bytes + j] = np.int8(((rest * 3) >> 8) - 1)
        power *= 3


_TQ1_0_QS, _TQ1_0_QH, _TQ1_0_D = (layouts.TQ1_0.offset(field) for field in ("qs", "qh", "d"))


@jit
def unpack_tq1_0(row: U8, start: int, quants: I8, scales: I32, mins: I32) -> Halves:
    """TQ1_0: five ternary quants to a byte, in 32 bytes and then 16; four to a byte in the last four bytes."""
    one_scale(scales, mins)
    _ternary_digits(row, start + _TQ1_0_QS, 32, 5, quants, 0)
    _ternary_digits(row, start + _TQ1_0_QS + 32, 16, 5, quants, 160)
    _ternary_digits(row, start + _TQ1_0_QH, 4, 4, quants, 240)
    return load_half(row, start + _TQ1_0_D), np.float32(0)


_TQ2_0_QS, _TQ2_0_D = layouts.TQ2_0.offset("qs"), layouts.TQ2_0.offset("d")


@jit
def unpack_tq2_0(row: U8, start: int, quants: I8, scales: I32, mins: I32) -> Halves:
    """TQ2_0: two-bit quants in the order of Q2_K's, minus 1."""
    one_scale(scales, mins)
    two_bit_quants(row, start + _TQ2_0_QS, quants)
    for j in range(256):
        quants[j] = np.int8(quants[j] - 1)
    return load_half(row, start + _TQ2_0_D), np.float32(0)
