"""K-quant blocks of 256 values taken apart with vector operations, into the numbers of reference.unpack.

``unpack_*(row, start)`` returns the quants as four vectors of 64 bytes in the order of the values, made unsigned by the
type's offset; the sixteen scales and minimums as int32 x 16; and the two factors. Types without minimums return the
scales again.
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
    to_i32,
)
from minillama.kernels.types import U8

Block = tuple[object, object, object, object, object, object, np.float32, np.float32]

_joined, _joined_16 = make_shuffle(range(64)), make_shuffle(range(16))
_each_twice = make_shuffle([lane // 2 for lane in range(16)])


@jit
def _planes(packed: object, first: int, second: int, mask: int) -> object:
    """Bits of 32 bytes, shifted down by two numbers: 64 bytes."""
    return _joined(keep_bits(shift_right(packed, first), mask), keep_bits(shift_right(packed, second), mask))


_Q2_K_SCALES, _Q2_K_QS, _Q2_K_D, _Q2_K_DMIN = (layouts.Q2_K.offset(field) for field in ("scales", "qs", "d", "dmin"))


@jit
def unpack_q2_k(row: U8, start: int) -> Block:
    """As ``reference.unpack.unpack_q2_k``."""
    packed = load_u8x16(row, start + _Q2_K_SCALES)
    first, second = load_u8x32(row, start + _Q2_K_QS), load_u8x32(row, start + _Q2_K_QS + 32)
    return (
        _planes(first, 0, 2, 3), _planes(first, 4, 6, 3), _planes(second, 0, 2, 3), _planes(second, 4, 6, 3),
        to_i32(keep_bits(packed, 15)), to_i32(shift_right(packed, 4)),
        load_half(row, start + _Q2_K_D), load_half(row, start + _Q2_K_DMIN),
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
def _third_bit(two: object, mask: object, first: int) -> object:
    return bit_or(two, shift_left(_planes(mask, first, first + 1, 1), 2))


@jit
def unpack_q3_k(row: U8, start: int) -> Block:
    """As ``reference.unpack.unpack_q3_k``, 4 added to the quants."""
    scales, mask = _q3_k_scales(row, start + _Q3_K_SCALES), load_u8x32(row, start + _Q3_K_HMASK)
    first, second = load_u8x32(row, start + _Q3_K_QS), load_u8x32(row, start + _Q3_K_QS + 32)
    return (
        _third_bit(_planes(first, 0, 2, 3), mask, 0), _third_bit(_planes(first, 4, 6, 3), mask, 2),
        _third_bit(_planes(second, 0, 2, 3), mask, 4), _third_bit(_planes(second, 4, 6, 3), mask, 6),
        scales, scales, load_half(row, start + _Q3_K_D), np.float32(0),
    )  # fmt: skip


@jit
def _six_bit_scales(row: U8, base: int) -> tuple[object, object]:
    first, second, third = load_u32(row, base), load_u32(row, base + 4), load_u32(row, base + 8)
    six, four, two = np.uint32(0x3F3F3F3F), np.uint32(0x0F0F0F0F), np.uint32(0x03030303)
    scales_high = np.uint32((third & four) | (((first >> np.uint32(6)) & two) << np.uint32(4)))
    mins_high = np.uint32(((third >> np.uint32(4)) & four) | (((second >> np.uint32(6)) & two) << np.uint32(4)))
    scales, mins = bytes_of(np.uint32(first & six), scales_high), bytes_of(np.uint32(second & six), mins_high)
    return to_i32(_each_twice(scales, scales)), to_i32(_each_twice(mins, mins))


@jit
def _four_bits(row: U8, start: int) -> tuple[object, object, object, object]:
    return (
        _planes(load_u8x32(row, start), 0, 4, 15), _planes(load_u8x32(row, start + 32), 0, 4, 15),
        _planes(load_u8x32(row, start + 64), 0, 4, 15), _planes(load_u8x32(row, start + 96), 0, 4, 15),
    )  # fmt: skip


_Q4_K_D, _Q4_K_DMIN, _Q4_K_SCALES, _Q4_K_QS = (layouts.Q4_K.offset(field) for field in ("d", "dmin", "scales", "qs"))


@jit
def unpack_q4_k(row: U8, start: int) -> Block:
    """As ``reference.unpack.unpack_q4_k``."""
    scales, mins = _six_bit_scales(row, start + _Q4_K_SCALES)
    q0, q1, q2, q3 = _four_bits(row, start + _Q4_K_QS)
    return q0, q1, q2, q3, scales, mins, load_half(row, start + _Q4_K_D), load_half(row, start + _Q4_K_DMIN)


_Q5_K_D, _Q5_K_DMIN, _Q5_K_SCALES = (layouts.Q5_K.offset(field) for field in ("d", "dmin", "scales"))
_Q5_K_QH, _Q5_K_QS = layouts.Q5_K.offset("qh"), layouts.Q5_K.offset("qs")


@jit
def _fifth_bit(four: object, planes: object, first: int) -> object:
    return bit_or(four, shift_left(_planes(planes, first, first + 1, 1), 4))


@jit
def unpack_q5_k(row: U8, start: int) -> Block:
    """As ``reference.unpack.unpack_q5_k``."""
    scales, mins = _six_bit_scales(row, start + _Q5_K_SCALES)
    q0, q1, q2, q3 = _four_bits(row, start + _Q5_K_QS)
    high = load_u8x32(row, start + _Q5_K_QH)
    return (
        _fifth_bit(q0, high, 0), _fifth_bit(q1, high, 2), _fifth_bit(q2, high, 4), _fifth_bit(q3, high, 6),
        scales, mins, load_half(row, start + _Q5_K_D), load_half(row, start + _Q5_K_DMIN),
    )  # fmt: skip


_Q6_K_QL, _Q6_K_QH, _Q6_K_SCALES, _Q6_K_D = (layouts.Q6_K.offset(field) for field in ("ql", "qh", "scales", "d"))


@jit
def _six_bits(row: U8, low: int, high: int) -> tuple[object, object]:
    """128 values: nibbles of 64 bytes, the low ones first, and two bits each of 32 bytes."""
    first, second = load_u8x32(row, low), load_u8x32(row, low + 32)
    four, two = _joined(first, second), load_u8x32(row, high)
    return (
        bit_or(keep_bits(four, 15), shift_left(_planes(two, 0, 2, 3), 4)),
        bit_or(shift_right(four, 4), shift_left(_planes(two, 4, 6, 3), 4)),
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
