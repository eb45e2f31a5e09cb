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
    add,
    as_i8,
    bit_or,
    bits_to_lanes,
    bytes_of,
    load_half,
    load_i8x16,
    load_u8x8,
    load_u8x16,
    load_u8x32,
    make_add_constant,
    make_and,
    make_shift_left,
    make_shift_right,
    make_shuffle,
    store,
    to_i32,
)
from minillama.kernels.types import I8, U8

Block32 = tuple[object, np.float32, np.float32]
Block256 = tuple[object, object, np.float32, np.float32]

_low_nibble, _two_bits, _one_bit = make_and(15), make_and(3), make_and(1)
_shift = {count: make_shift_right(count) for count in range(1, 8)}
_shift_1, _shift_2, _shift_3, _shift_4 = _shift[1], _shift[2], _shift[3], _shift[4]
_shift_5, _shift_6, _shift_7 = _shift[5], _shift[6], _shift[7]
_times_4, _times_16 = make_shift_left(2), make_shift_left(4)
_minus_4, _minus_8, _minus_16, _minus_32 = (make_add_constant(-n) for n in (4, 8, 16, 32))
_joined, _joined_16 = make_shuffle(range(32)), make_shuffle(range(16))
_each_twice = make_shuffle([lane // 2 for lane in range(16)])
_NO_MINIMUM = np.float32(-0.0)


@jit
def _nibbles_32(row: U8, start: int) -> object:
    packed = load_u8x16(row, start)
    return _joined(_low_nibble(packed), _shift_4(packed))


@jit
def _five_bits_32(row: U8, low_start: int, high_start: int) -> object:
    high = bits_to_lanes(load_u32(row, high_start))
    return bit_or(_nibbles_32(row, low_start), _times_16(high))


_Q4_0_D, _Q4_0_QS = layouts.Q4_0.offset("d"), layouts.Q4_0.offset("qs")


@jit
def unpack_q4_0(row: U8, start: int) -> Block32:
    """As ``reference.unpack.unpack_q4_0``."""
    return as_i8(_minus_8(_nibbles_32(row, start + _Q4_0_QS))), load_half(row, start + _Q4_0_D), _NO_MINIMUM


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
        as_i8(_minus_16(_five_bits_32(row, start + _Q5_0_QS, start + _Q5_0_QH))),
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
        store(quants, half * 128, _two_bits(packed))
        store(quants, half * 128 + 32, _two_bits(_shift_2(packed)))
        store(quants, half * 128 + 64, _two_bits(_shift_4(packed)))
        store(quants, half * 128 + 96, _shift_6(packed))


_Q2_K_SCALES, _Q2_K_QS, _Q2_K_D, _Q2_K_DMIN = (layouts.Q2_K.offset(field) for field in ("scales", "qs", "d", "dmin"))


@jit
def unpack_q2_k(row: U8, start: int, quants: I8) -> Block256:
    """As ``reference.unpack.unpack_q2_k``."""
    packed = load_u8x16(row, start + _Q2_K_SCALES)
    scales, mins = to_i32(_low_nibble(packed)), to_i32(_shift_4(packed))
    _two_bit_quants(row, start + _Q2_K_QS, quants)
    return scales, mins, load_half(row, start + _Q2_K_D), load_half(row, start + _Q2_K_DMIN)


_Q3_K_HMASK, _Q3_K_QS, _Q3_K_SCALES, _Q3_K_D = (layouts.Q3_K.offset(field) for field in ("hmask", "qs", "scales", "d"))


@jit
def _q3_k_scales(row: U8, base: int) -> object:
    nibbles, high = load_u8x8(row, base), load_u32(row, base + 8)
    pairs = np.uint32(0x03030303)
    first = bytes_of(np.uint32(high & pairs), np.uint32((high >> np.uint32(2)) & pairs))
    second = bytes_of(np.uint32((high >> np.uint32(4)) & pairs), np.uint32((high >> np.uint32(6)) & pairs))
    low_four = _joined_16(_low_nibble(nibbles), _shift_4(nibbles))
    six_bits = bit_or(low_four, _times_16(_joined_16(first, second)))
    return to_i32(as_i8(_minus_32(six_bits)))


@jit
def unpack_q3_k(row: U8, start: int, quants: I8) -> Block256:
    """As ``reference.unpack.unpack_q3_k``."""
    scales = _q3_k_scales(row, start + _Q3_K_SCALES)
    _two_bit_quants(row, start + _Q3_K_QS, quants)
    mask = load_u8x32(row, start + _Q3_K_HMASK)
    _add_high_bit(quants, 0, _one_bit(mask))
    _add_high_bit(quants, 32, _one_bit(_shift_1(mask)))
    _add_high_bit(quants, 64, _one_bit(_shift_2(mask)))
    _add_high_bit(quants, 96, _one_bit(_shift_3(mask)))
    _add_high_bit(quants, 128, _one_bit(_shift_4(mask)))
    _add_high_bit(quants, 160, _one_bit(_shift_5(mask)))
    _add_high_bit(quants, 192, _one_bit(_shift_6(mask)))
    _add_high_bit(quants, 224, _shift_7(mask))
    return scales, scales, load_half(row, start + _Q3_K_D), np.float32(0)


@jit
def _add_high_bit(quants: I8, at: int, bit: object) -> None:
    store(quants, at, _minus_4(add(load_u8x32(quants, at), _times_4(bit))))


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
        store(quants, chunk * 64, _low_nibble(packed))
        store(quants, chunk * 64 + 32, _shift_4(packed))


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
def _add_fifth_bit(quants: I8, at: int, bit: object) -> None:
    store(quants, at, bit_or(load_u8x32(quants, at), _times_16(bit)))


@jit
def unpack_q5_k(row: U8, start: int, quants: I8) -> Block256:
    """As ``reference.unpack.unpack_q5_k``."""
    scales, mins = _six_bit_scales(row, start + _Q5_K_SCALES)
    _four_bit_quants(row, start + _Q5_K_QS, quants)
    high = load_u8x32(row, start + _Q5_K_QH)
    _add_fifth_bit(quants, 0, _one_bit(high))
    _add_fifth_bit(quants, 32, _one_bit(_shift_1(high)))
    _add_fifth_bit(quants, 64, _one_bit(_shift_2(high)))
    _add_fifth_bit(quants, 96, _one_bit(_shift_3(high)))
    _add_fifth_bit(quants, 128, _one_bit(_shift_4(high)))
    _add_fifth_bit(quants, 160, _one_bit(_shift_5(high)))
    _add_fifth_bit(quants, 192, _one_bit(_shift_6(high)))
    _add_fifth_bit(quants, 224, _shift_7(high))
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
        store(quants, at, _six_bits(_low_nibble(first), _two_bits(high)))
        store(quants, at + 32, _six_bits(_low_nibble(second), _two_bits(_shift_2(high))))
        store(quants, at + 64, _six_bits(_shift_4(first), _two_bits(_shift_4(high))))
        store(quants, at + 96, _six_bits(_shift_4(second), _shift_6(high)))
    return scales, scales, load_half(row, start + _Q6_K_D), np.float32(0)


@jit
def _six_bits(four: object, two: object) -> object:
    return _minus_32(bit_or(four, _times_16(two)))


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
