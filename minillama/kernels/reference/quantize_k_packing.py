"""Putting the levels and scales of a K-quant block where its layout has them: the inverse of ``unpack.py``."""

from __future__ import annotations

import numpy as np

from minillama.kernels.jit import jit
from minillama.kernels.types import I64, U8


@jit
def pack_two_bits(levels: I64, out: U8, at: int) -> None:
    """Bits 0 and 1: byte l of each 32 holds levels l, l + 32, l + 64 and l + 96 of its 128."""
    for half in range(2):
        for j in range(32):
            packed = 0
            for quarter in range(4):
                packed |= (levels[half * 128 + quarter * 32 + j] & 3) << (2 * quarter)
            out[at + half * 32 + j] = np.uint8(packed)


@jit
def pack_four_bits(levels: I64, out: U8, at: int) -> None:
    """Bits 0 to 3: of each 64 levels, the first 32 to the low nibbles of 32 bytes, the others to the high ones."""
    for chunk in range(4):
        for j in range(32):
            low, high = levels[chunk * 64 + j] & 15, levels[chunk * 64 + 32 + j] & 15
            out[at + chunk * 32 + j] = np.uint8(low | (high << 4))


@jit
def pack_one_bit(levels: I64, bit: int, out: U8, at: int) -> None:
    """One bit of each level: bit c of byte l is that of level 32 c + l."""
    for j in range(32):
        packed = 0
        for chunk in range(8):
            packed |= ((levels[chunk * 32 + j] >> bit) & 1) << chunk
        out[at + j] = np.uint8(packed)


@jit
def pack_six_bits(levels: I64, out: U8, at_low: int, at_high: int) -> None:
    """Q6_K: low nibbles in 128 bytes, the next two bits in 64, each half of the block by itself."""
    for half in range(2):
        low, high = at_low + half * 64, at_high + half * 32
        for j in range(32):
            first, second = levels[half * 128 + j], levels[half * 128 + 32 + j]
            third, fourth = levels[half * 128 + 64 + j], levels[half * 128 + 96 + j]
            out[low + j] = np.uint8((first & 15) | ((third & 15) << 4))
            out[low + 32 + j] = np.uint8((second & 15) | ((fourth & 15) << 4))
            two_bits = (first >> 4) | ((second >> 4) << 2) | ((third >> 4) << 4) | ((fourth >> 4) << 6)
            out[high + j] = np.uint8(two_bits & 255)


@jit
def pack_q2_k_scales(scales: I64, mins: I64, out: U8, at: int) -> None:
    """Sixteen bytes, each a 4-bit scale and a 4-bit minimum."""
    for group in range(16):
        out[at + group] = np.uint8((scales[group] | (mins[group] << 4)) & 255)


@jit
def pack_six_bit_scales(scales: I64, mins: I64, out: U8, at: int) -> None:
    """Eight 6-bit scales and minimums in 12 bytes, of Q4_K and Q5_K."""
    for j in range(4):
        scale, minimum = scales[j + 4], mins[j + 4]
        out[at + j] = np.uint8((scales[j] | ((scale >> 4) << 6)) & 255)
        out[at + 4 + j] = np.uint8((mins[j] | ((minimum >> 4) << 6)) & 255)
        out[at + 8 + j] = np.uint8((scale & 15) | ((minimum & 15) << 4))


@jit
def pack_q3_k_scales(scales: I64, out: U8, at: int) -> None:
    """Sixteen 6-bit scales in 12 bytes: low nibbles in the first eight, four high pairs of bits in each other."""
    for j in range(8):
        out[at + j] = np.uint8((scales[j] & 15) | ((scales[j + 8] & 15) << 4))
    for j in range(4):
        packed = 0
        for quarter in range(4):
            packed |= ((scales[quarter * 4 + j] >> 4) & 3) << (2 * quarter)
        out[at + 8 + j] = np.uint8(packed)
