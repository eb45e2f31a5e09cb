"""K-quant blocks of 256 values taken apart with vector operations, into the numbers of reference.unpack.

``unpack_*(row, start)`` returns the quants as four vectors of 64 bytes in the order of the values, made unsigned by the
type's offset; the sixteen scales and minimums as int32 x 16; and the two factors. Types without minimums return the
scales again.
"""

from __future__ import annotations

import numpy as np

from minillama.gguf.constants import GGMLType
from minillama.kernels import layouts
from minillama.kernels.jit import jit
from minillama.kernels.simd.lanes import load_twice, load_u8x64, load_u32, load_u64, make_take_bits
from minillama.kernels.simd.vectors import (
    add_number,
    as_i8,
    bit_or,
    bytes_of,
    keep_bits,
    load_half,
    load_half_pair,
    load_i8x16,
    load_u8x8,
    load_u8x16,
    make_shuffle,
    shift_left,
    shift_right,
    to_i32,
)
from minillama.kernels.types import U8

Block = tuple[object, object, object, object, object, object, np.float32, np.float32]

_joined_16 = make_shuffle(range(16))
_scales_twice = make_shuffle([(i // 2) % 4 + 8 * (i // 8) for i in range(16)])
_mins_of = make_shuffle([i % 4 + 8 * (i // 4) + 4 for i in range(8)])

# By what the two halves of a vector, which begin the same, are shifted down (up, if negative), and the bits kept.
_two_0_2, _two_4_6, _four_0_4 = make_take_bits(0, 2, 3), make_take_bits(4, 6, 3), make_take_bits(0, 4, 15)
_third_0_1, _third_2_3 = make_take_bits(-2, -1, 4), make_take_bits(0, 1, 4)  # to where the third bit of a number is
_third_4_5, _third_6_7 = make_take_bits(2, 3, 4), make_take_bits(4, 5, 4)
_fifth_0_1, _fifth_2_3 = make_take_bits(-4, -3, 16), make_take_bits(-2, -1, 16)
_fifth_4_5, _fifth_6_7 = make_take_bits(0, 1, 16), make_take_bits(2, 3, 16)
_fifth_two_0_2, _fifth_two_4_6 = make_take_bits(-4, -2, 48), make_take_bits(0, 2, 48)


_Q2_K_SCALES, _Q2_K_QS, _Q2_K_D, _Q2_K_DMIN = (layouts.Q2_K.offset(field) for field in ("scales", "qs", "d", "dmin"))


@jit
def two_bits(row: U8, start: int) -> tuple[object, object, object, object]:
    """256 numbers of two bits, in the order of Q2_K's."""
    first, second = load_twice(row, start), load_twice(row, start + 32)
    return _two_0_2(first), _two_4_6(first), _two_0_2(second), _two_4_6(second)


@jit
def unpack_q2_k(row: U8, start: int) -> Block:
    """As ``reference.unpack.unpack_q2_k``."""
    packed = load_u8x16(row, start + _Q2_K_SCALES)
    q0, q1, q2, q3 = two_bits(row, start + _Q2_K_QS)
    d, dmin = load_half_pair(row, start + _Q2_K_D)
    return (
        q0, q1, q2, q3,
        to_i32(keep_bits(packed, 15)), to_i32(shift_right(packed, 4)),
        d, dmin,
    )  # fmt: skip


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
def unpack_q3_k(row: U8, start: int) -> Block:
    """As ``reference.unpack.unpack_q3_k``, 4 added to the quants."""
    scales, mask = _q3_k_scales(row, start + _Q3_K_SCALES), load_twice(row, start + _Q3_K_HMASK)
    first, second = load_twice(row, start + _Q3_K_QS), load_twice(row, start + _Q3_K_QS + 32)
    return (
        bit_or(_two_0_2(first), _third_0_1(mask)),
        bit_or(_two_4_6(first), _third_2_3(mask)),
        bit_or(_two_0_2(second), _third_4_5(mask)),
        bit_or(_two_4_6(second), _third_6_7(mask)),
        scales, scales, load_half(row, start + _Q3_K_D), np.float32(0),
    )  # fmt: skip


@jit
def _six_bit_scales(row: U8, base: int) -> tuple[object, object]:
    """Scales in the first four bytes, minimums in the next, and four bits of eight more numbers in the last."""
    two_words, third = load_u64(row, base), np.uint64(load_u32(row, base + 8))
    six, four, two = np.uint64(0x3F3F3F3F3F3F3F3F), np.uint64(0x0F0F0F0F0F0F0F0F), np.uint64(0x3030303030303030)
    low_bits = (third | (third << np.uint64(28))) & four
    packed = bytes_of(two_words & six, low_bits | ((two_words >> np.uint64(2)) & two))
    return to_i32(_scales_twice(packed, packed)), to_i32(_mins_of(packed, packed))


@jit
def _four_bits(row: U8, start: int) -> tuple[object, object, object, object]:
    return (
        _four_0_4(load_twice(row, start)), _four_0_4(load_twice(row, start + 32)),
        _four_0_4(load_twice(row, start + 64)), _four_0_4(load_twice(row, start + 96)),
    )  # fmt: skip


_Q4_K_D, _Q4_K_DMIN, _Q4_K_SCALES, _Q4_K_QS = (layouts.Q4_K.offset(field) for field in ("d", "dmin", "scales", "qs"))


@jit
def unpack_q4_k(row: U8, start: int) -> Block:
    """As ``reference.unpack.unpack_q4_k``."""
    scales, mins = _six_bit_scales(row, start + _Q4_K_SCALES)
    q0, q1, q2, q3 = _four_bits(row, start + _Q4_K_QS)
    d, dmin = load_half_pair(row, start + _Q4_K_D)
    return q0, q1, q2, q3, scales, mins, d, dmin


_Q5_K_D, _Q5_K_DMIN, _Q5_K_SCALES = (layouts.Q5_K.offset(field) for field in ("d", "dmin", "scales"))
_Q5_K_QH, _Q5_K_QS = layouts.Q5_K.offset("qh"), layouts.Q5_K.offset("qs")


@jit
def unpack_q5_k(row: U8, start: int) -> Block:
    """As ``reference.unpack.unpack_q5_k``."""
    scales, mins = _six_bit_scales(row, start + _Q5_K_SCALES)
    q0, q1, q2, q3 = _four_bits(row, start + _Q5_K_QS)
    high = load_twice(row, start + _Q5_K_QH)
    d, dmin = load_half_pair(row, start + _Q5_K_D)
    return (
        bit_or(q0, _fifth_0_1(high)), bit_or(q1, _fifth_2_3(high)),
        bit_or(q2, _fifth_4_5(high)), bit_or(q3, _fifth_6_7(high)),
        scales, mins, d, dmin,
    )  # fmt: skip


_Q6_K_QL, _Q6_K_QH, _Q6_K_SCALES, _Q6_K_D = (layouts.Q6_K.offset(field) for field in ("ql", "qh", "scales", "d"))


@jit
def _six_bits(row: U8, low: int, high: int) -> tuple[object, object]:
    """128 values: nibbles of 64 bytes, the low ones first, and two bits each of 32 bytes."""
    four, two = load_u8x64(row, low), load_twice(row, high)
    return (
        bit_or(keep_bits(four, 15), _fifth_two_0_2(two)),
        bit_or(keep_bits(shift_right(four, 4), 15), _fifth_two_4_6(two)),
    )


@jit
def unpack_q6_k(row: U8, start: int) -> Block:
    """As ``reference.unpack.unpack_q6_k``, 32 added to the quants."""
    scales = to_i32(load_i8x16(row, start + _Q6_K_SCALES))
    q0, q1 = _six_bits(row, start + _Q6_K_QL, start + _Q6_K_QH)
    q2, q3 = _six_bits(row, start + _Q6_K_QL + 64, start + _Q6_K_QH + 32)
    return q0, q1, q2, q3, scales, scales, load_half(row, start + _Q6_K_D), np.float32(0)


# By type: the function, and what it added to the quants.
UNPACK = {
    GGMLType.Q2_K: (unpack_q2_k, 0),
    GGMLType.Q3_K: (unpack_q3_k, 4),
    GGMLType.Q4_K: (unpack_q4_k, 0),
    GGMLType.Q5_K: (unpack_q5_k, 0),
    GGMLType.Q6_K: (unpack_q6_k, 32),
}
