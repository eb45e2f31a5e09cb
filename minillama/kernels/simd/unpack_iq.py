"""Blocks of the IQ1, IQ2, IQ3 and ternary types taken apart, into the numbers of reference.iq and reference.ternary.

The functions are as those of :mod:`minillama.kernels.simd.unpack`: quants in four vectors of 64 bytes, made unsigned,
and sixteen scales. Indices into a codebook are numbers of their own; signs, a bit for a value, are together in 64 bits.
"""

from __future__ import annotations

import numpy as np

from minillama.gguf.constants import GGMLType
from minillama.kernels import layouts
from minillama.kernels.bits import half_to_float, load_u16
from minillama.kernels.jit import Kernel, jit
from minillama.kernels.reference.codebooks import codebook
from minillama.kernels.simd.entries import less_two_where, make_entries, negated_where
from minillama.kernels.simd.lanes import load_i8x64, load_u32, load_u64, narrow_u8, splat_i32x16, words_as_i32
from minillama.kernels.simd.unpack import Block, two_bits
from minillama.kernels.simd.vectors import (
    add,
    add_number,
    bytes_of,
    keep_bits,
    load_half,
    load_i16x8,
    load_u8x8,
    load_u8x16,
    load_u8x32,
    make_shuffle,
    shift_left,
    shift_right,
    to_i16,
    to_i32,
)
from minillama.kernels.types import U8

_U = np.uint64
Indices = tuple[_U, _U, _U, _U, _U, _U, _U, _U]

_iq2_xxs_entries = make_entries("IQ2_XXS", lambda: codebook("IQ2_XXS"), 8)
_iq2_xs_entries = make_entries("IQ2_XS", lambda: codebook("IQ2_XS"), 8)
_iq2_s_entries = make_entries("IQ2_S", lambda: codebook("IQ2_S"), 8)
_iq3_xxs_entries = make_entries("IQ3_XXS", lambda: codebook("IQ3_XXS"), 4)
_iq3_s_entries = make_entries("IQ3_S", lambda: codebook("IQ3_S"), 4)
# Eight times a value, and as much more as makes it unsigned once it is moved down (0) or up (2).
_IQ1_OFFSET = 9
_iq1_entries = make_entries("IQ1", lambda: 8 * codebook("IQ1_S") + np.int8(_IQ1_OFFSET + 1), 8)


@jit
def _bytes(word: np.uint64) -> Indices:
    return (
        word & _U(255), (word >> _U(8)) & _U(255), (word >> _U(16)) & _U(255), (word >> _U(24)) & _U(255),
        (word >> _U(32)) & _U(255), (word >> _U(40)) & _U(255), (word >> _U(48)) & _U(255), word >> _U(56),
    )  # fmt: skip


@jit
def _with_high_bits(word: np.uint64, high: np.uint64, width: np.uint64) -> Indices:
    """Bytes, above each of which are ``width`` bits of another number."""
    mask = (_U(1) << width) - _U(1)
    a, b, c, d, e, f, g, h = _bytes(word)
    return (
        a | ((high & mask) << _U(8)),
        b | (((high >> width) & mask) << _U(8)),
        c | (((high >> _U(2) * width) & mask) << _U(8)),
        d | (((high >> _U(3) * width) & mask) << _U(8)),
        e | (((high >> _U(4) * width) & mask) << _U(8)),
        f | (((high >> _U(5) * width) & mask) << _U(8)),
        g | (((high >> _U(6) * width) & mask) << _U(8)),
        h | (((high >> _U(7) * width) & mask) << _U(8)),
    )


@jit
def _even_signs(sevens: np.uint64) -> np.uint64:
    """As ``reference.iq.even_signs``, of eight bytes."""
    parity = (sevens ^ (sevens >> _U(4))) & _U(0x0F0F0F0F0F0F0F0F)
    parity = (parity ^ (parity >> _U(2))) & _U(0x0303030303030303)
    parity = (parity ^ (parity >> _U(1))) & _U(0x0101010101010101)
    return sevens | (parity << _U(7))


@jit
def _four_sevens_each(both: np.uint64) -> np.uint64:
    """The lowest four times seven bits of each half, a byte each."""
    return (
        (both & _U(0x0000007F0000007F))
        | ((both & _U(0x00003F8000003F80)) << _U(1))
        | ((both & _U(0x001FC000001FC000)) << _U(2))
        | ((both & _U(0x0FE000000FE00000)) << _U(3))
    )


_odd_words_twice = make_shuffle([2 * (i // 2) + 1 for i in range(16)])
_nibbles_in_turn = make_shuffle([i // 2 + 8 * (i % 2) for i in range(16)])
_nibbles_twice = make_shuffle([i // 4 + 8 * (i // 2 % 2) for i in range(16)])
_each_twice = make_shuffle([i // 2 for i in range(16)])


@jit
def _odd(scales: object) -> object:
    return add_number(shift_left(scales, 1), 1)


@jit
def _top_bits_odd(words: object) -> object:
    """Of int32 lanes, two times the highest four bits plus one."""
    return _odd(shift_right(words, 28))


def _make_half(at: int) -> Kernel:
    """A block's scale that lies at a place of its own."""

    @jit(name=f"half_at_{at}")
    def half(row: U8, start: int) -> np.float32:
        return load_half(row, start + at)

    return half


def _make_unpack(name: str, quants_of: Kernel, scales_of: Kernel, d_of: Kernel) -> Kernel:
    """A type's function, of ``quants_of(row, start, quarter)``, ``scales_of(row, start)`` and ``d_of(row, start)``."""

    @jit(name=f"unpack_{name}")
    def unpack(row: U8, start: int) -> Block:
        scales, d = scales_of(row, start), d_of(row, start)
        return (
            quants_of(row, start, 0), quants_of(row, start, 1), quants_of(row, start, 2), quants_of(row, start, 3),
            scales, scales, d, np.float32(0),
        )  # fmt: skip

    return unpack


_IQ2_XXS_D, _IQ2_XXS_QS = layouts.IQ2_XXS.offset("d"), layouts.IQ2_XXS.offset("qs")


@jit
def _iq2_xxs_quants(row: U8, start: int, quarter: int) -> object:
    at = start + _IQ2_XXS_QS + 16 * quarter
    first, second = load_u64(row, at), load_u64(row, at + 8)
    indices = (first & _U(0xFFFFFFFF)) | (second << _U(32))
    signs = _even_signs(_four_sevens_each((first >> _U(32)) | (second & _U(0xFFFFFFFF00000000))))
    return add_number(negated_where(_iq2_xxs_entries(_bytes(indices)), signs), 64)


@jit
def _iq2_xxs_scales(row: U8, start: int) -> object:
    words = words_as_i32(load_i8x64(row, start + _IQ2_XXS_QS))
    return _top_bits_odd(_odd_words_twice(words, words))


# As reference.iq.unpack_iq2_xxs, 64 added to the quants.
unpack_iq2_xxs = _make_unpack("iq2_xxs", _iq2_xxs_quants, _iq2_xxs_scales, _make_half(_IQ2_XXS_D))


def _make_sixteen_scales(at: int) -> Kernel:
    """Nibbles of eight bytes, the low one first."""

    @jit(name=f"sixteen_scales_at_{at}")
    def scales(row: U8, start: int) -> object:
        packed = load_u8x8(row, start + at)
        return _odd(to_i32(_nibbles_in_turn(keep_bits(packed, 15), shift_right(packed, 4))))

    return scales


_IQ2_XS_D, _IQ2_XS_QS, _IQ2_XS_SCALES = (layouts.IQ2_XS.offset(field) for field in ("d", "qs", "scales"))


@jit
def _four_sevens(word: np.uint64) -> np.uint64:
    """The highest seven bits of four times sixteen, a byte each."""
    fields = (word >> _U(9)) & _U(0x007F007F007F007F)
    fields = (fields | (fields >> _U(8))) & _U(0x0000FFFF0000FFFF)
    return (fields | (fields >> _U(16))) & _U(0xFFFFFFFF)


@jit
def _iq2_xs_quants(row: U8, start: int, quarter: int) -> object:
    at, nine = start + _IQ2_XS_QS + 16 * quarter, _U(511)
    a, b = load_u64(row, at), load_u64(row, at + 8)
    indices = (
        a & nine, (a >> _U(16)) & nine, (a >> _U(32)) & nine, (a >> _U(48)) & nine,
        b & nine, (b >> _U(16)) & nine, (b >> _U(32)) & nine, (b >> _U(48)) & nine,
    )  # fmt: skip
    signs = _even_signs(_four_sevens(a) | (_four_sevens(b) << _U(32)))
    return add_number(negated_where(_iq2_xs_entries(indices), signs), 64)


# As reference.iq.unpack_iq2_xs, 64 added to the quants.
unpack_iq2_xs = _make_unpack("iq2_xs", _iq2_xs_quants, _make_sixteen_scales(_IQ2_XS_SCALES), _make_half(_IQ2_XS_D))


_IQ2_S_D, _IQ2_S_QS, _IQ2_S_SIGNS = (layouts.IQ2_S.offset(field) for field in ("d", "qs", "signs"))
_IQ2_S_QH, _IQ2_S_SCALES = layouts.IQ2_S.offset("qh"), layouts.IQ2_S.offset("scales")


@jit
def _iq2_s_quants(row: U8, start: int, quarter: int) -> object:
    high = _U(load_u16(row, start + _IQ2_S_QH + 2 * quarter))
    indices = _with_high_bits(load_u64(row, start + _IQ2_S_QS + 8 * quarter), high, _U(2))
    signs = load_u64(row, start + _IQ2_S_SIGNS + 8 * quarter)
    return add_number(negated_where(_iq2_s_entries(indices), signs), 64)


# As reference.iq.unpack_iq2_s, 64 added to the quants.
unpack_iq2_s = _make_unpack("iq2_s", _iq2_s_quants, _make_sixteen_scales(_IQ2_S_SCALES), _make_half(_IQ2_S_D))


_IQ3_XXS_D, _IQ3_XXS_QS, _IQ3_XXS_SCALES = (layouts.IQ3_XXS.offset(field) for field in ("d", "qs", "scales"))


@jit
def _iq3_xxs_quants(row: U8, start: int, quarter: int) -> object:
    at = start + _IQ3_XXS_QS + 16 * quarter
    indices = _bytes(load_u64(row, at)) + _bytes(load_u64(row, at + 8))
    signs = _even_signs(_four_sevens_each(load_u64(row, start + _IQ3_XXS_SCALES + 8 * quarter)))
    return add_number(negated_where(_iq3_xxs_entries(indices), signs), 64)


@jit
def _iq3_xxs_scales(row: U8, start: int) -> object:
    words = words_as_i32(load_u8x32(row, start + _IQ3_XXS_SCALES))
    return _top_bits_odd(_each_twice(words, words))


# As reference.iq.unpack_iq3_xxs, 64 added to the quants.
unpack_iq3_xxs = _make_unpack("iq3_xxs", _iq3_xxs_quants, _iq3_xxs_scales, _make_half(_IQ3_XXS_D))


_IQ3_S_D, _IQ3_S_QS, _IQ3_S_QH = (layouts.IQ3_S.offset(field) for field in ("d", "qs", "qh"))
_IQ3_S_SIGNS, _IQ3_S_SCALES = layouts.IQ3_S.offset("signs"), layouts.IQ3_S.offset("scales")


@jit
def _iq3_s_quants(row: U8, start: int, quarter: int) -> object:
    at, high = start + _IQ3_S_QS + 16 * quarter, _U(load_u16(row, start + _IQ3_S_QH + 2 * quarter))
    first = _with_high_bits(load_u64(row, at), high, _U(1))
    indices = first + _with_high_bits(load_u64(row, at + 8), high >> _U(8), _U(1))
    signs = load_u64(row, start + _IQ3_S_SIGNS + 8 * quarter)
    return add_number(negated_where(_iq3_s_entries(indices), signs), 64)


@jit
def _iq3_s_scales(row: U8, start: int) -> object:
    packed = bytes_of(load_u32(row, start + _IQ3_S_SCALES), np.uint32(0))
    return _odd(to_i32(_nibbles_twice(keep_bits(packed, 15), shift_right(packed, 4))))


# As reference.iq.unpack_iq3_s, 64 added to the quants.
unpack_iq3_s = _make_unpack("iq3_s", _iq3_s_quants, _iq3_s_scales, _make_half(_IQ3_S_D))


_IQ1_S_D, _IQ1_S_QS, _IQ1_S_QH = (layouts.IQ1_S.offset(field) for field in ("d", "qs", "qh"))


@jit
def _iq1_s_quants(row: U8, start: int, quarter: int) -> object:
    both = _U(load_u32(row, start + _IQ1_S_QH + 4 * quarter))
    high = (both & _U(0xFFF)) | (((both >> _U(16)) & _U(0xFFF)) << _U(12))
    indices = _with_high_bits(load_u64(row, start + _IQ1_S_QS + 8 * quarter), high, _U(3))
    down = ((both >> _U(15)) & _U(1)) * _U(0xFFFFFFFF) | ((both >> _U(31)) * _U(0xFFFFFFFF)) << _U(32)
    return less_two_where(_iq1_entries(indices), down)


@jit
def _iq1_s_scales(row: U8, start: int) -> object:
    numbers = to_i32(keep_bits(shift_right(load_i16x8(row, start + _IQ1_S_QH), 12), 7))
    return _odd(_each_twice(numbers, numbers))


# As reference.iq.unpack_iq1_s, 9 added to the quants.
unpack_iq1_s = _make_unpack("iq1_s", _iq1_s_quants, _iq1_s_scales, _make_half(_IQ1_S_D))


_IQ1_M_QS, _IQ1_M_QH, _IQ1_M_SCALES = (layouts.IQ1_M.offset(field) for field in ("qs", "qh", "scales"))


@jit
def _iq1_m_quants(row: U8, start: int, quarter: int) -> object:
    high = _U(load_u32(row, start + _IQ1_M_QH + 4 * quarter))
    down = (high >> _U(3)) & _U(0x11111111)
    down = (down | (down << _U(16))) & _U(0x0000FFFF0000FFFF)
    down = (down | (down << _U(8))) & _U(0x00FF00FF00FF00FF)
    down = (down | (down << _U(4))) & _U(0x0101010101010101)
    indices = _with_high_bits(load_u64(row, start + _IQ1_M_QS + 8 * quarter), high & _U(0x77777777), _U(4))
    return less_two_where(_iq1_entries(indices), down * _U(255))


@jit
def _four_threes(packed: np.uint64) -> np.uint64:
    """The lowest four times three bits, a byte each."""
    return (
        (packed & _U(7))
        | ((packed & _U(0o70)) << _U(5))
        | ((packed & _U(0o700)) << _U(10))
        | ((packed & _U(0o7000)) << _U(15))
    )


@jit
def _iq1_m_scales(row: U8, start: int) -> object:
    packed = load_u64(row, start + _IQ1_M_SCALES)
    first = _four_threes(packed) | (_four_threes(packed >> _U(16)) << _U(32))
    second = _four_threes(packed >> _U(32)) | (_four_threes(packed >> _U(48)) << _U(32))
    return _odd(to_i32(bytes_of(first, second)))


@jit
def _iq1_m_d(row: U8, start: int) -> np.float32:
    packed = load_u64(row, start + _IQ1_M_SCALES)
    d = ((packed >> _U(12)) & _U(15)) | ((packed >> _U(24)) & _U(0xF0))
    d |= ((packed >> _U(36)) & _U(0xF00)) | ((packed >> _U(48)) & _U(0xF000))
    return half_to_float(np.uint32(d))


# As reference.iq.unpack_iq1_m, 9 added to the quants.
unpack_iq1_m = _make_unpack("iq1_m", _iq1_m_quants, _iq1_m_scales, _iq1_m_d)


_TQ2_0_QS, _TQ2_0_D = layouts.TQ2_0.offset("qs"), layouts.TQ2_0.offset("d")


@jit
def unpack_tq2_0(row: U8, start: int) -> Block:
    """As ``reference.ternary.unpack_tq2_0``, 1 added to the quants."""
    ones = splat_i32x16(np.int32(1))
    q0, q1, q2, q3 = two_bits(row, start + _TQ2_0_QS)
    return q0, q1, q2, q3, ones, ones, load_half(row, start + _TQ2_0_D), np.float32(0)


_TQ1_0_QS, _TQ1_0_QH, _TQ1_0_D = (layouts.TQ1_0.offset(field) for field in ("qs", "qh", "d"))
_lower_32, _joined_32 = make_shuffle(range(32)), make_shuffle(range(64))
_joined_8, _joined_16 = make_shuffle(range(16)), make_shuffle(range(32))
_both_lower_32 = make_shuffle([*range(32), *range(64, 96)])
_both_next_16 = make_shuffle([*range(32, 48), *range(96, 112)])
_next_16 = make_shuffle(range(32, 48))
# The last four bytes are there four times: the first digit is taken of the first time, and so on.
_last_0_1, _last_2_3 = (
    make_shuffle([*range(48, 52), *range(116, 120)]),
    make_shuffle([*range(56, 60), *range(124, 128)]),
)


@jit
def _digits(bytes_: object) -> tuple[object, object]:
    """The first ternary digit of each byte, and what is left of the byte: see ``reference.ternary``."""
    once = to_i16(bytes_)
    tripled = add(add(once, once), once)
    return narrow_u8(shift_right(tripled, 8)), narrow_u8(tripled)


@jit
def unpack_tq1_0(row: U8, start: int) -> Block:
    """As ``reference.ternary.unpack_tq1_0``, 1 added to the quants."""
    last = load_u32(row, start + _TQ1_0_QH)
    twice = bytes_of(last, last)
    rest = _joined_16(load_u8x16(row, start + _TQ1_0_QS + 32), _joined_8(twice, twice))
    d0, left = _digits(_joined_32(load_u8x32(row, start + _TQ1_0_QS), rest))
    d1, left = _digits(left)
    d2, left = _digits(left)
    d3, left = _digits(left)
    d4, _ = _digits(left)
    fifth_and_last = _joined_16(_next_16(d4, d4), _joined_8(_last_0_1(d0, d1), _last_2_3(d2, d3)))
    ones = splat_i32x16(np.int32(1))
    return (
        _both_lower_32(d0, d1), _both_lower_32(d2, d3),
        _joined_32(_lower_32(d4, d4), _both_next_16(d0, d1)), _joined_32(_both_next_16(d2, d3), fifth_and_last),
        ones, ones, load_half(row, start + _TQ1_0_D), np.float32(0),
    )  # fmt: skip


# By type: the function, and what it added to the quants.
UNPACK = {
    GGMLType.IQ1_S: (unpack_iq1_s, _IQ1_OFFSET),
    GGMLType.IQ1_M: (unpack_iq1_m, _IQ1_OFFSET),
    GGMLType.IQ2_XXS: (unpack_iq2_xxs, 64),
    GGMLType.IQ2_XS: (unpack_iq2_xs, 64),
    GGMLType.IQ2_S: (unpack_iq2_s, 64),
    GGMLType.IQ3_XXS: (unpack_iq3_xxs, 64),
    GGMLType.IQ3_S: (unpack_iq3_s, 64),
    GGMLType.TQ1_0: (unpack_tq1_0, 1),
    GGMLType.TQ2_0: (unpack_tq2_0, 1),
}
