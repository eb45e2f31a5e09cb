"""Blocks of the IQ types taken apart: quants that are entries of a codebook. See ``reference.unpack``.

The signs of IQ2's and IQ3's quants are stored apart, seven bits for eight values where the eighth sign makes the number
of minuses even. Their scales are odd numbers, 2 s + 1, which a factor puts into place: it is a power of two, and ggml
multiplies by it at the end of a dot. IQ1's values are -1, 0 and 1, each moved up or down by 1/8: as integers, eight
times the value plus or minus one.
"""

from __future__ import annotations

import numpy as np

from minillama.gguf.constants import GGMLType
from minillama.kernels import layouts
from minillama.kernels.bits import half_to_float, load_u16, load_u32
from minillama.kernels.jit import jit
from minillama.kernels.reference.codebooks import (
    iq1_grid,
    iq2_s_grid,
    iq2_xs_grid,
    iq2_xxs_grid,
    iq3_s_grid,
    iq3_xxs_grid,
    iq4_values,
)
from minillama.kernels.reference.unpack import NO_MINIMUM, Halves, load_half
from minillama.kernels.types import I8, I32, U8

# What the product of a type's scales and quants is to be multiplied by, beside the block's scale.
FACTOR = {
    GGMLType.IQ1_S: 1 / 8,
    GGMLType.IQ1_M: 1 / 8,
    GGMLType.IQ2_XXS: 1 / 8,
    GGMLType.IQ2_XS: 1 / 8,
    GGMLType.IQ2_S: 1 / 8,
    GGMLType.IQ3_XXS: 1 / 4,
}


@jit
def even_signs(seven: np.uint32) -> np.uint32:
    """Eight sign bits of which an even number is set, from the first seven: ggml's ``ksigns_iq2xs``."""
    parity = np.uint32(seven ^ (seven >> np.uint32(4)))
    parity = np.uint32(parity ^ (parity >> np.uint32(2)))
    parity = np.uint32(parity ^ (parity >> np.uint32(1)))
    return np.uint32(seven | ((parity & np.uint32(1)) << np.uint32(7)))


@jit
def _signed_entry(entry: I8, signs: np.uint32, quants: I8, at: int) -> None:
    """The values of a codebook's entry, negative where a bit of ``signs`` is set."""
    for j in range(len(entry)):
        minus = (signs >> np.uint32(j)) & np.uint32(1)
        quants[at + j] = np.int8(-entry[j] if minus else entry[j])


@jit
def _odd_scales(row: U8, base: int, scales: I32) -> None:
    """Eight bytes: nibbles, the low one first, each the scale of 16 values."""
    for group in range(16):
        nibble = (np.int32(row[base + group // 2]) >> (4 * (group % 2))) & 15
        scales[group] = 2 * nibble + 1


_IQ2_XXS_D, _IQ2_XXS_QS = layouts.IQ2_XXS.offset("d"), layouts.IQ2_XXS.offset("qs")


@jit(allocates=True)
def unpack_iq2_xxs(row: U8, start: int, quants: I8, scales: I32, mins: I32) -> Halves:
    """IQ2_XXS: of 32 values, four indices of 8 bits, then four times seven signs and a 4-bit scale."""
    grid = iq2_xxs_grid()
    mins[:] = 0
    for part in range(8):
        base = start + _IQ2_XXS_QS + part * 8
        packed = load_u32(row, base + 4)
        scales[2 * part] = scales[2 * part + 1] = 2 * np.int32(packed >> np.uint32(28)) + 1
        for i in range(4):
            signs = even_signs(np.uint32((packed >> np.uint32(7 * i)) & np.uint32(127)))
            _signed_entry(grid[row[base + i]], signs, quants, part * 32 + i * 8)
    return load_half(row, start + _IQ2_XXS_D), np.float32(0)


_IQ2_XS_D, _IQ2_XS_QS, _IQ2_XS_SCALES = (layouts.IQ2_XS.offset(field) for field in ("d", "qs", "scales"))


@jit(allocates=True)
def unpack_iq2_xs(row: U8, start: int, quants: I8, scales: I32, mins: I32) -> Halves:
    """IQ2_XS: for 8 values, an index of 9 bits and seven signs; sixteen 4-bit scales."""
    grid = iq2_xs_grid()
    mins[:] = 0
    _odd_scales(row, start + _IQ2_XS_SCALES, scales)
    for i in range(32):
        packed = load_u16(row, start + _IQ2_XS_QS + 2 * i)
        entry = grid[packed & np.uint32(511)]
        _signed_entry(entry, even_signs(np.uint32(packed >> np.uint32(9))), quants, i * 8)
    return load_half(row, start + _IQ2_XS_D), np.float32(0)


_IQ2_S_D, _IQ2_S_QS, _IQ2_S_SIGNS = (layouts.IQ2_S.offset(field) for field in ("d", "qs", "signs"))
_IQ2_S_QH, _IQ2_S_SCALES = layouts.IQ2_S.offset("qh"), layouts.IQ2_S.offset("scales")


@jit(allocates=True)
def unpack_iq2_s(row: U8, start: int, quants: I8, scales: I32, mins: I32) -> Halves:
    """IQ2_S: for 8 values, an index of 8 and 2 bits and a byte of signs; sixteen 4-bit scales."""
    grid = iq2_s_grid()
    mins[:] = 0
    _odd_scales(row, start + _IQ2_S_SCALES, scales)
    for i in range(32):
        high = (np.int32(row[start + _IQ2_S_QH + i // 4]) >> (2 * (i % 4))) & 3
        entry = grid[np.int32(row[start + _IQ2_S_QS + i]) | (high << 8)]
        _signed_entry(entry, np.uint32(row[start + _IQ2_S_SIGNS + i]), quants, i * 8)
    return load_half(row, start + _IQ2_S_D), np.float32(0)


_IQ3_XXS_D, _IQ3_XXS_QS, _IQ3_XXS_SCALES = (layouts.IQ3_XXS.offset(field) for field in ("d", "qs", "scales"))


@jit(allocates=True)
def unpack_iq3_xxs(row: U8, start: int, quants: I8, scales: I32, mins: I32) -> Halves:
    """IQ3_XXS: for 4 values, an index of 8 bits; of 32 values, four times seven signs and a 4-bit scale."""
    grid = iq3_xxs_grid()
    mins[:] = 0
    for part in range(8):
        packed = load_u32(row, start + _IQ3_XXS_SCALES + 4 * part)
        scales[2 * part] = scales[2 * part + 1] = 2 * np.int32(packed >> np.uint32(28)) + 1
        for i in range(8):
            signs = even_signs(np.uint32((packed >> np.uint32(7 * (i // 2))) & np.uint32(127)))
            entry = grid[row[start + _IQ3_XXS_QS + part * 8 + i]]
            _signed_entry(entry, np.uint32(signs >> np.uint32(4 * (i % 2))), quants, part * 32 + i * 4)
    return load_half(row, start + _IQ3_XXS_D), np.float32(0)


_IQ3_S_D, _IQ3_S_QS, _IQ3_S_QH = (layouts.IQ3_S.offset(field) for field in ("d", "qs", "qh"))
_IQ3_S_SIGNS, _IQ3_S_SCALES = layouts.IQ3_S.offset("signs"), layouts.IQ3_S.offset("scales")


@jit(allocates=True)
def unpack_iq3_s(row: U8, start: int, quants: I8, scales: I32, mins: I32) -> Halves:
    """IQ3_S: for 4 values, an index of 8 bits and 1 and a nibble of signs; eight 4-bit scales."""
    grid = iq3_s_grid()
    mins[:] = 0
    for part in range(8):
        nibble = (np.int32(row[start + _IQ3_S_SCALES + part // 2]) >> (4 * (part % 2))) & 15
        scales[2 * part] = scales[2 * part + 1] = 2 * nibble + 1
        for i in range(8):
            high = (np.int32(row[start + _IQ3_S_QH + part]) >> i) & 1
            entry = grid[np.int32(row[start + _IQ3_S_QS + part * 8 + i]) | (high << 8)]
            signs = np.uint32(row[start + _IQ3_S_SIGNS + part * 4 + i // 2])
            _signed_entry(entry, np.uint32(signs >> np.uint32(4 * (i % 2))), quants, part * 32 + i * 4)
    return load_half(row, start + _IQ3_S_D), np.float32(0)


@jit
def _moved_entry(entry: I8, minus: int, quants: I8, at: int) -> None:
    """Eight times the values of a codebook's entry, less one if ``minus``, else plus one."""
    for j in range(8):
        quants[at + j] = np.int8(8 * np.int32(entry[j]) + (-1 if minus else 1))


_IQ1_S_D, _IQ1_S_QS, _IQ1_S_QH = (layouts.IQ1_S.offset(field) for field in ("d", "qs", "qh"))


@jit(allocates=True)
def unpack_iq1_s(row: U8, start: int, quants: I8, scales: I32, mins: I32) -> Halves:
    """IQ1_S: for 8 values, an index of 8 bits and 3; for 32 values, a 3-bit scale and the direction they move."""
    grid = iq1_grid()
    mins[:] = 0
    for part in range(8):
        high = np.int32(load_u16(row, start + _IQ1_S_QH + 2 * part))
        scales[2 * part] = scales[2 * part + 1] = 2 * ((high >> 12) & 7) + 1
        for i in range(4):
            index = np.int32(row[start + _IQ1_S_QS + part * 4 + i]) | (((high >> (3 * i)) & 7) << 8)
            _moved_entry(grid[index], high >> 15, quants, part * 32 + i * 8)
    return load_half(row, start + _IQ1_S_D), np.float32(0)


_IQ1_M_QS, _IQ1_M_QH, _IQ1_M_SCALES = (layouts.IQ1_M.offset(field) for field in ("qs", "qh", "scales"))


@jit(allocates=True)
def unpack_iq1_m(row: U8, start: int, quants: I8, scales: I32, mins: I32) -> Halves:
    """IQ1_M: for 8 values, an index of 8 bits and 3 and the direction they move.

    Each 16-bit integer of ``scales`` holds four 3-bit scales and, in its top four bits, a quarter of the block's scale.
    """
    grid = iq1_grid()
    mins[:] = 0
    d = np.uint32(0)
    for quarter in range(4):
        packed = load_u16(row, start + _IQ1_M_SCALES + 2 * quarter)
        d = np.uint32(d | ((packed >> np.uint32(12)) << np.uint32(4 * quarter)))
        for i in range(4):
            scales[quarter * 4 + i] = 2 * ((np.int32(packed) >> (3 * i)) & 7) + 1
    for i in range(32):
        high = np.int32(row[start + _IQ1_M_QH + i // 2]) >> (4 * (i % 2))
        index = np.int32(row[start + _IQ1_M_QS + i]) | ((high & 7) << 8)
        _moved_entry(grid[index], high & 8, quants, i * 8)
    return half_to_float(d), np.float32(0)


@jit(allocates=True)
def _nibble_values(row: U8, start: int, quants: I8, at: int) -> None:
    """16 bytes: the codebook's values of the low nibbles, then of the high ones."""
    values = iq4_values()
    for j in range(16):
        packed = np.int32(row[start + j])
        quants[at + j] = values[packed & 15]
        quants[at + 16 + j] = values[packed >> 4]


_IQ4_NL_D, _IQ4_NL_QS = layouts.IQ4_NL.offset("d"), layouts.IQ4_NL.offset("qs")


@jit
def unpack_iq4_nl(row: U8, start: int, quants: I8, scales: I32, mins: I32) -> Halves:
    """IQ4_NL: 4-bit indices into sixteen unevenly spaced values."""
    _nibble_values(row, start + _IQ4_NL_QS, quants, 0)
    return load_half(row, start + _IQ4_NL_D), NO_MINIMUM


_IQ4_XS_D, _IQ4_XS_QS = layouts.IQ4_XS.offset("d"), layouts.IQ4_XS.offset("qs")
_IQ4_XS_HIGH, _IQ4_XS_LOW = layouts.IQ4_XS.offset("scales_h"), layouts.IQ4_XS.offset("scales_l")


@jit
def unpack_iq4_xs(row: U8, start: int, quants: I8, scales: I32, mins: I32) -> Halves:
    """IQ4_XS: quants as IQ4_NL and eight 6-bit scales minus 32."""
    mins[:] = 0
    high_bits = np.int32(load_u16(row, start + _IQ4_XS_HIGH))
    for part in range(8):
        low = np.int32(row[start + _IQ4_XS_LOW + part // 2]) >> (4 * (part % 2))
        high = high_bits >> (2 * part)
        scales[2 * part] = scales[2 * part + 1] = ((low & 15) | ((high & 3) << 4)) - 32
        _nibble_values(row, start + _IQ4_XS_QS + part * 16, quants, part * 32)
    return load_half(row, start + _IQ4_XS_D), np.float32(0)
