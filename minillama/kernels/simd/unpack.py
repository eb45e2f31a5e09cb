"""Blocks taken apart with vector operations, into the same numbers as in reference.unpack.

Blocks of 32 values come back as a vector of int8, with the scale and the minimum. Blocks of 256 fill an array of int8
and come back as vectors of the sixteen scales and minimums (types without minimums return the scales again).
"""

from __future__ import annotations

import numpy as np

from minillama.gguf.constants import GGMLType
from minillama.kernels import layouts
from minillama.kernels.bits import load_u32
from minillama.kernels.jit import jit
from minillama.kernels.simd.vectors import (
    add_number,
    as_i8,
    bit_or,
    bits_to_lanes,
    bytes_of,
    keep_bits,
    load_half,
    load_i8x16,
    load_u8x8,
    load_u8x16,
    load_u8x32,
    make_shuffle,
    shift_left,
    shift_right,
    store,
    to_i32,
)
from minillama.kernels.types import I8, U8

Block32 = tuple[object, np.float32, np.float32]
Block256 = tuple[object, object, np.float32, np.float32]

_joined, _joined_16 = make_shuffle(range(32)), make_shuffle(range(16))
_each_twice = make_shuffle([lane // 2 for lane in range(16)])
_NO_MINIMUM = np.float32(-0.0)


@jit
def _nibbles_32(row: U8, start: int) -> object:
    packed = load_u8x16(row, start)
    return _joined(keep_bits(packed, 15), shift_right(packed, 4))


@jit
def _five_bits_32(row: U8, low_start: int, high_start: int) -> object:
    high = bits_to_lanes(load_u32(row, high_start))
    return bit_or(_nibbles_32(row, low_start), shift_left(high, 4))


_Q4_0_D, _Q4_0_QS = layouts.Q4_0.offset("d"), layouts.Q4_0.offset("qs")


@jit
def unpack_q4_0(row: U8, start: int) -> Block32:
    """As ``reference.unpack.unpack_q4_0``."""
    return as_i8(add_number(_nibbles_32(row, start + _Q4_0_QS), -8)), load_half(row, start + _Q4_0_D), _NO_MINIMUM


_Q4_1_D, _Q4_1_M, _Q4_1_QS = (layouts.Q4_1.offset(field) for field in ("d", "m", "qs"))


@jit
def unpack_q4_1(row: U8, start: int) -> Block32:
    """As ``reference.unpack.unpack_q4_1``."""
    return as_i8(_nibbles_32(row, start + _Q4_1_QS)), load_half(row, start + _Q4_1_D), load_half(row, start + _Q4_1_M)


_Q5_0_D, _Q5_0_QH, _Q5_0_QS = (layouts.Q5_0.offset(field) for field in ("d", "qh", "qs"))


@jit
def unpack_q5_0(row: U8, start: int) -> Block32:
    """As ``reference.unpack.unpack_q5_0``."""
    return (
        as_i8(add_number(_five_bits_32(row, start + _Q5_0_QS, start + _Q5_0_QH), -16)),
        load_half(row, start + _Q5_0_D),
        _NO_MINIMUM,
    )


_Q5_1_D, _Q5_1_M, _Q5_1_QH, _Q5_1_QS = (layouts.Q5_1.offset(field) for field in ("d", "m", "qh", "qs"))


@jit
def unpack_q5_1(row: U8, start: int) -> Block32:
    """As ``reference.unpack.unpack_q5_1``."""
    return (
        as_i8(_five_bits_32(row, start + _Q5_1_QS, start + _Q5_1_QH)),
        load_half(row, start + _Q5_1_D),
        load_half(row, start + _Q5_1_M),
    )


_Q8_0_D, _Q8_0_QS = layouts.Q8_0.offset("d"), layouts.Q8_0.offset("qs")


@jit
def unpack_q8_0(row: U8, start: int) -> Block32:
    """As ``reference.unpack.unpack_q8_0``."""
    return as_i8(load_u8x32(row, start + _Q8_0_QS)), load_half(row, start + _Q8_0_D), _NO_MINIMUM


@jit
def _two_bit_quants(row: U8, start: int, quants: I8) -> None:
    for half in range(2):
        packed = load_u8x32(row, start + half * 32)
        for quarter in range(4):
            store(quants, half * 128 + quarter * 32, keep_bits(shift_right(packed, 2 * quarter), 3))


_Q2_K_SCALES, _Q2_K_QS, _Q2_K_D, _Q2_K_DMIN = (layouts.Q2_K.offset(field) for field in ("scales", "qs", "d", "dmin"))


@jit
def unpack_q2_k(row: U8, start: int, quants: I8) -> Block256:
    """As ``reference.unpack.unpack_q2_k``."""
    packed = load_u8x16(row, start + _Q2_K_SCALES)
    scales, mins = to_i32(keep_bits(packed, 15)), to_i32(shift_right(packed, 4))
    _two_bit_quants(row, start + _Q2_K_QS, quants)
    return scales, mins, load_half(row, start + _Q2_K_D), load_half(row, start + _Q2_K_DMIN)


_Q3_K_HMASK, _Q3_K_QS, _Q3_K_SCALES, _Q3_K_D = (layouts.Q3_K.offset(field) for field in ("hmask", "qs", "scales", "d"))


@jit
def _q3_k_scales(row: U8, base: int) -> object:
    nibbles, high = load_u8x8(row, base), load_u32(row, base + 8)
    pairs = np.uint32(0x03030303)
    first = bytes_of(np.uint32(high & pairs), np.uint32((high >> np.uint32(2)) & pairs))
    second = bytes_of(np.uint32((high >> np.uint32(4)) & pairs), np.uint32((high >> np.uint32(6)) & pairs))
    low_four = _joined_16(keep_bits(nibbles, 15), shift_right(nibbles, 4))
    six_bits = bit_or(low_four, shift_left(_joined_16(first, second), 4))
    return to_i32(as_i8(add_number(six_bits, -32)))


@jit
def unpack_q3_k(row: U8, start: int, quants: I8) -> Block256:
    """As ``reference.unpack.unpack_q3_k``."""
    scales = _q3_k_scales(row, start + _Q3_K_SCALES)
    _two_bit_quants(row, start + _Q3_K_QS, quants)
    mask = load_u8x32(row, start + _Q3_K_HMASK)
    for plane in range(8):
        high = shift_left(keep_bits(shift_right(mask, plane), 1), 2)
        store(quants, plane * 32, add_number(bit_or(load_u8x32(quants, plane * 32), high), -4))
    return scales, scales, load_half(row, start + _Q3_K_D), np.float32(0)


@jit
def _six_bit_scales(row: U8, base: int) -> tuple[object, object]:
    first, second, third = load_u32(row, base), load_u32(row, base + 4), load_u32(row, base + 8)
    six, four, two = np.uint32(0x3F3F3F3F), np.uint32(0x0F0F0F0F), np.uint32(0x03030303)
    scales_high = np.uint32((third & four) | (((first >> np.uint32(6)) & two) << np.uint32(4)))
    mins_high = np.uint32(((third >> np.uint32(4)) & four) | (((second >> np.uint32(6)) & two) << np.uint32(4)))
    scales, mins = bytes_of(np.uint32(first & six), scales_high), bytes_of(np.uint32(second & six), mins_high)
    return to_i32(_each_twice(scales, scales)), to_i32(_each_twice(mins, mins))


@jit
def _four_bit_quants(row: U8, start: int, quants: I8) -> None:
    for chunk in range(4):
        packed = load_u8x32(row, start + chunk * 32)
        store(quants, chunk * 64, keep_bits(packed, 15))
        store(quants, chunk * 64 + 32, shift_right(packed, 4))


_Q4_K_D, _Q4_K_DMIN, _Q4_K_SCALES, _Q4_K_QS = (layouts.Q4_K.offset(field) for field in ("d", "dmin", "scales", "qs"))


@jit
def unpack_q4_k(row: U8, start: int, quants: I8) -> Block256:
    """As ``reference.unpack.unpack_q4_k``."""
    scales, mins = _six_bit_scales(row, start + _Q4_K_SCALES)
    _four_bit_quants(row, start + _Q4_K_QS, quants)
    return scales, mins, load_half(row, start + _Q4_K_D), load_half(row, start + _Q4_K_DMIN)


_Q5_K_D, _Q5_K_DMIN, _Q5_K_SCALES = (layouts.Q5_K.offset(field) for field in ("d", "dmin", "scales"))
_Q5_K_QH, _Q5_K_QS = layouts.Q5_K.offset("qh"), layouts.Q5_K.offset("qs")


@jit
def unpack_q5_k(row: U8, start: int, quants: I8) -> Block256:
    """As ``reference.unpack.unpack_q5_k``."""
    scales, mins = _six_bit_scales(row, start + _Q5_K_SCALES)
    _four_bit_quants(row, start + _Q5_K_QS, quants)
    planes = load_u8x32(row, start + _Q5_K_QH)
    for plane in range(8):
        high = shift_left(keep_bits(shift_right(planes, plane), 1), 4)
        store(quants, plane * 32, bit_or(load_u8x32(quants, plane * 32), high))
    return scales, mins, load_half(row, start + _Q5_K_D), load_half(row, start + _Q5_K_DMIN)


_Q6_K_QL, _Q6_K_QH, _Q6_K_SCALES, _Q6_K_D = (layouts.Q6_K.offset(field) for field in ("ql", "qh", "scales", "d"))


@jit
def unpack_q6_k(row: U8, start: int, quants: I8) -> Block256:
    """As ``reference.unpack.unpack_q6_k``."""
    scales = to_i32(load_i8x16(row, start + _Q6_K_SCALES))
    for half in range(2):
        first = load_u8x32(row, start + _Q6_K_QL + half * 64)
        second = load_u8x32(row, start + _Q6_K_QL + half * 64 + 32)
        high = load_u8x32(row, start + _Q6_K_QH + half * 32)
        at = half * 128
        store(quants, at, _six_bits(keep_bits(first, 15), keep_bits(high, 3)))
        store(quants, at + 32, _six_bits(keep_bits(second, 15), keep_bits(shift_right(high, 2), 3)))
        store(quants, at + 64, _six_bits(shift_right(first, 4), keep_bits(shift_right(high, 4), 3)))
        store(quants, at + 96, _six_bits(shift_right(second, 4), shift_right(high, 6)))
    return scales, scales, load_half(row, start + _Q6_K_D), np.float32(0)


@jit
def _six_bits(four: object, two: object) -> object:
    return add_number(bit_or(four, shift_left(two, 4)), -32)


# unpack(row, start) -> (quants: int8 x 32, scale, minimum)
UNPACK_32 = {
    GGMLType.Q4_0: unpack_q4_0,
    GGMLType.Q4_1: unpack_q4_1,
    GGMLType.Q5_0: unpack_q5_0,
    GGMLType.Q5_1: unpack_q5_1,
    GGMLType.Q8_0: unpack_q8_0,
}
# unpack(row, start, quants) -> (scales: int32 x 16, minimums: int32 x 16, scale, scale of the minimums)
UNPACK_256 = {
    GGMLType.Q2_K: unpack_q2_k,
    GGMLType.Q3_K: unpack_q3_k,
    GGMLType.Q4_K: unpack_q4_k,
    GGMLType.Q5_K: unpack_q5_k,
    GGMLType.Q6_K: unpack_q6_k,
}
