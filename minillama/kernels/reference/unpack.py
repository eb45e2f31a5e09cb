"""Taking one block apart: these modules are the only code that knows where the bits are.

Here are the types whose quants are integers of 4 to 8 bits, and the K-quants; ``reference.ternary`` has those of one
and two bits, ``reference.float4`` the 4-bit floats, ``reference.iq`` the codebooks; ``reference.blocks`` lists all.

Each ``unpack_*(row, start, quants, scales, mins)`` reads the block that starts at byte ``start`` of a row (uint8) and
fills ``quants`` (int8, one per value). It returns ``(scale, minimum)`` as float32, so that

- types with one scale decode as ``quants * scale + minimum``; without a minimum it is -0.0, which changes no sum;
- types with scales per group also fill ``scales`` and ``mins`` (int32, one per 16 values) and decode as
  ``(scale * scales) * quants - (minimum * mins)``, some times a power of two.
"""

from __future__ import annotations

import numpy as np

from minillama.kernels import layouts
from minillama.kernels.bits import half_to_float, load_f32, load_u16, load_u32
from minillama.kernels.jit import jit
from minillama.kernels.types import I8, I32, U8

Halves = tuple[np.float32, np.float32]

NO_MINIMUM = np.float32(-0.0)


@jit
def load_half(row: U8, offset: int) -> np.float32:
    """The half at a byte offset, as float32."""
    return half_to_float(load_u16(row, offset))


@jit
def one_scale(scales: I32, mins: I32) -> None:
    """Blocks of 256 values without scales of their own for each 16."""
    scales[:] = 1
    mins[:] = 0


@jit
def _nibbles(row: U8, start: int, offset: int, quants: I8) -> None:
    """16 bytes: low nibbles are values 0 to 15, high nibbles 16 to 31, shifted down by ``offset``."""
    for j in range(16):
        packed = np.int32(row[start + j])
        quants[j] = np.int8((packed & 15) - offset)
        quants[j + 16] = np.int8((packed >> 4) - offset)


@jit
def _fifth_bits(row: U8, start: int, quants: I8) -> None:
    """Bit j of a 32-bit integer adds 16 to value j."""
    high = load_u32(row, start)
    for j in range(32):
        quants[j] = np.int8(quants[j] + np.int32((high >> np.uint32(j)) & np.uint32(1)) * 16)


_Q4_0_D, _Q4_0_QS = layouts.Q4_0.offset("d"), layouts.Q4_0.offset("qs")


@jit
def unpack_q4_0(row: U8, start: int, quants: I8, scales: I32, mins: I32) -> Halves:
    """Q4_0: 4-bit quants minus 8."""
    _nibbles(row, start + _Q4_0_QS, 8, quants)
    return load_half(row, start + _Q4_0_D), NO_MINIMUM


_Q4_1_D, _Q4_1_M, _Q4_1_QS = (layouts.Q4_1.offset(field) for field in ("d", "m", "qs"))


@jit
def unpack_q4_1(row: U8, start: int, quants: I8, scales: I32, mins: I32) -> Halves:
    """Q4_1: 4-bit quants and a minimum."""
    _nibbles(row, start + _Q4_1_QS, 0, quants)
    return load_half(row, start + _Q4_1_D), load_half(row, start + _Q4_1_M)


_Q5_0_D, _Q5_0_QH, _Q5_0_QS = (layouts.Q5_0.offset(field) for field in ("d", "qh", "qs"))


@jit
def unpack_q5_0(row: U8, start: int, quants: I8, scales: I32, mins: I32) -> Halves:
    """Q5_0: 5-bit quants minus 16."""
    _nibbles(row, start + _Q5_0_QS, 16, quants)
    _fifth_bits(row, start + _Q5_0_QH, quants)
    return load_half(row, start + _Q5_0_D), NO_MINIMUM


_Q5_1_D, _Q5_1_M, _Q5_1_QH, _Q5_1_QS = (layouts.Q5_1.offset(field) for field in ("d", "m", "qh", "qs"))


@jit
def unpack_q5_1(row: U8, start: int, quants: I8, scales: I32, mins: I32) -> Halves:
    """Q5_1: 5-bit quants and a minimum."""
    _nibbles(row, start + _Q5_1_QS, 0, quants)
    _fifth_bits(row, start + _Q5_1_QH, quants)
    return load_half(row, start + _Q5_1_D), load_half(row, start + _Q5_1_M)


@jit
def _signed_bytes(row: U8, start: int, n: int, quants: I8) -> None:
    for j in range(n):
        quants[j] = np.int8(np.int32(row[start + j] ^ np.uint8(128)) - 128)


_Q8_0_D, _Q8_0_QS = layouts.Q8_0.offset("d"), layouts.Q8_0.offset("qs")


@jit
def unpack_q8_0(row: U8, start: int, quants: I8, scales: I32, mins: I32) -> Halves:
    """Q8_0: 8-bit signed quants."""
    _signed_bytes(row, start + _Q8_0_QS, 32, quants)
    return load_half(row, start + _Q8_0_D), NO_MINIMUM


_Q2_K_SCALES, _Q2_K_QS, _Q2_K_D, _Q2_K_DMIN = (layouts.Q2_K.offset(field) for field in ("scales", "qs", "d", "dmin"))


@jit
def q2_k_scales(row: U8, base: int, scales: I32, mins: I32) -> None:
    """Sixteen bytes, each a 4-bit scale and a 4-bit minimum."""
    for group in range(16):
        packed = np.int32(row[base + group])
        scales[group] = packed & 15
        mins[group] = packed >> 4


@jit
def unpack_q2_k(row: U8, start: int, quants: I8, scales: I32, mins: I32) -> Halves:
    """Q2_K: 2-bit quants; each byte of ``scales`` is a 4-bit scale and a 4-bit minimum for 16 values."""
    q2_k_scales(row, start + _Q2_K_SCALES, scales, mins)
    two_bit_quants(row, start + _Q2_K_QS, quants)
    return load_half(row, start + _Q2_K_D), load_half(row, start + _Q2_K_DMIN)


@jit
def two_bit_quants(row: U8, start: int, quants: I8) -> None:
    """64 bytes: byte l of each 32 holds values l, l + 32, l + 64 and l + 96 of its 128."""
    for half in range(2):
        for shift in range(4):
            for j in range(32):
                packed = np.int32(row[start + half * 32 + j])
                quants[half * 128 + shift * 32 + j] = np.int8((packed >> (2 * shift)) & 3)


_Q3_K_HMASK, _Q3_K_QS, _Q3_K_SCALES, _Q3_K_D = (layouts.Q3_K.offset(field) for field in ("hmask", "qs", "scales", "d"))


@jit
def q3_k_scales(row: U8, base: int, scales: I32, mins: I32) -> None:
    """Low four bits: nibbles of bytes 0 to 7; high two bits: bytes 8 to 11, four groups to a byte."""
    for group in range(16):
        low = np.int32(row[base + (group & 7)]) >> (4 * (group >> 3))
        high = np.int32(row[base + 8 + (group & 3)]) >> (2 * (group >> 2))
        scales[group] = ((low & 15) | ((high & 3) << 4)) - 32
        mins[group] = 0


@jit
def unpack_q3_k(row: U8, start: int, quants: I8, scales: I32, mins: I32) -> Halves:
    """Q3_K: 3-bit quants minus 4 and sixteen 6-bit scales minus 32; a set bit of ``hmask`` is the quant's high bit."""
    q3_k_scales(row, start + _Q3_K_SCALES, scales, mins)
    two_bit_quants(row, start + _Q3_K_QS, quants)
    for plane in range(8):
        for j in range(32):
            high_bit = (np.int32(row[start + _Q3_K_HMASK + j]) >> plane) & 1
            quants[plane * 32 + j] = np.int8(quants[plane * 32 + j] + high_bit * 4 - 4)
    return load_half(row, start + _Q3_K_D), np.float32(0)


@jit
def six_bit_scales(row: U8, base: int, scales: I32, mins: I32) -> None:
    """Q4_K's and Q5_K's 12 bytes: eight 6-bit scales and eight 6-bit minimums, each for 32 values."""
    for j in range(4):
        first, second, third = np.int32(row[base + j]), np.int32(row[base + 4 + j]), np.int32(row[base + 8 + j])
        scales[2 * j] = scales[2 * j + 1] = first & 63
        mins[2 * j] = mins[2 * j + 1] = second & 63
        scales[8 + 2 * j] = scales[9 + 2 * j] = (third & 15) | ((first >> 6) << 4)
        mins[8 + 2 * j] = mins[9 + 2 * j] = (third >> 4) | ((second >> 6) << 4)


@jit
def _four_bit_quants(row: U8, start: int, quants: I8) -> None:
    """128 bytes: of each 32, the low nibbles are 32 values and the high nibbles the next 32."""
    for chunk in range(4):
        for j in range(32):
            packed = np.int32(row[start + chunk * 32 + j])
            quants[chunk * 64 + j] = np.int8(packed & 15)
            quants[chunk * 64 + 32 + j] = np.int8(packed >> 4)


_Q4_K_D, _Q4_K_DMIN, _Q4_K_SCALES, _Q4_K_QS = (layouts.Q4_K.offset(field) for field in ("d", "dmin", "scales", "qs"))


@jit
def unpack_q4_k(row: U8, start: int, quants: I8, scales: I32, mins: I32) -> Halves:
    """Q4_K: 4-bit quants, eight 6-bit scales and minimums."""
    six_bit_scales(row, start + _Q4_K_SCALES, scales, mins)
    _four_bit_quants(row, start + _Q4_K_QS, quants)
    return load_half(row, start + _Q4_K_D), load_half(row, start + _Q4_K_DMIN)


_Q5_K_D, _Q5_K_DMIN, _Q5_K_SCALES = (layouts.Q5_K.offset(field) for field in ("d", "dmin", "scales"))
_Q5_K_QH, _Q5_K_QS = layouts.Q5_K.offset("qh"), layouts.Q5_K.offset("qs")


@jit
def unpack_q5_k(row: U8, start: int, quants: I8, scales: I32, mins: I32) -> Halves:
    """Q5_K: as Q4_K, and bit c of ``qh``'s byte l is the fifth bit of value 32 c + l."""
    six_bit_scales(row, start + _Q5_K_SCALES, scales, mins)
    _four_bit_quants(row, start + _Q5_K_QS, quants)
    for chunk in range(8):
        for j in range(32):
            high = (np.int32(row[start + _Q5_K_QH + j]) >> chunk) & 1
            quants[chunk * 32 + j] = np.int8(quants[chunk * 32 + j] + high * 16)
    return load_half(row, start + _Q5_K_D), load_half(row, start + _Q5_K_DMIN)


_Q6_K_QL, _Q6_K_QH, _Q6_K_SCALES, _Q6_K_D = (layouts.Q6_K.offset(field) for field in ("ql", "qh", "scales", "d"))


@jit
def q6_k_scales(row: U8, base: int, scales: I32, mins: I32) -> None:
    """Sixteen signed bytes."""
    for group in range(16):
        scales[group] = np.int32(row[base + group] ^ np.uint8(128)) - 128
        mins[group] = 0


@jit
def unpack_q6_k(row: U8, start: int, quants: I8, scales: I32, mins: I32) -> Halves:
    """Q6_K: 6-bit quants minus 32 and sixteen 8-bit signed scales."""
    q6_k_scales(row, start + _Q6_K_SCALES, scales, mins)
    for half in range(2):
        low, high = start + _Q6_K_QL + half * 64, start + _Q6_K_QH + half * 32
        for quarter in range(4):
            for j in range(32):
                # Quarters 0 and 1 are the low nibbles of the 64 bytes, 2 and 3 the high ones.
                four = np.int32(row[low + (quarter & 1) * 32 + j]) >> (4 * (quarter >> 1))
                two = np.int32(row[high + j]) >> (2 * quarter)
                quants[half * 128 + quarter * 32 + j] = np.int8(((four & 15) | ((two & 3) << 4)) - 32)
    return load_half(row, start + _Q6_K_D), np.float32(0)


_Q8_1_D, _Q8_1_QS = layouts.Q8_1.offset("d"), layouts.Q8_1.offset("qs")


@jit
def unpack_q8_1(row: U8, start: int, quants: I8, scales: I32, mins: I32) -> Halves:
    """Q8_1: as Q8_0; the sum beside the scale is not needed to decode."""
    _signed_bytes(row, start + _Q8_1_QS, 32, quants)
    return load_half(row, start + _Q8_1_D), NO_MINIMUM


_Q8_K_D, _Q8_K_QS = layouts.Q8_K.offset("d"), layouts.Q8_K.offset("qs")


@jit
def unpack_q8_k(row: U8, start: int, quants: I8, scales: I32, mins: I32) -> Halves:
    """Q8_K: 8-bit signed quants; the scale is a float32."""
    one_scale(scales, mins)
    _signed_bytes(row, start + _Q8_K_QS, 256, quants)
    return load_f32(row, start + _Q8_K_D), np.float32(0)
