"""Reading numbers out of packed bytes, and half-precision conversions with ggml's bits.

All helpers work on ``uint8`` arrays and little-endian values, compiled or as plain Python.
"""

from __future__ import annotations

import numpy as np

from minillama.kernels.jit import jit
from minillama.kernels.types import U8


@jit
def load_u16(data: U8, offset: int) -> np.uint32:
    """The 16-bit integer at a byte offset, as uint32."""
    return np.uint32(np.uint32(data[offset]) | (np.uint32(data[offset + 1]) << np.uint32(8)))


@jit
def load_u32(data: U8, offset: int) -> np.uint32:
    """The 32-bit integer at a byte offset."""
    return np.uint32(load_u16(data, offset) | (load_u16(data, offset + 2) << np.uint32(16)))


@jit
def load_f32(data: U8, offset: int) -> np.float32:
    """The float32 at a byte offset."""
    return np.uint32(load_u32(data, offset)).view(np.float32)


@jit
def store_u16(data: U8, offset: int, value: np.uint32) -> None:
    """Write a 16-bit integer at a byte offset."""
    data[offset] = np.uint8(value & np.uint32(0xFF))
    data[offset + 1] = np.uint8(value >> np.uint32(8))


@jit
def store_f32(data: U8, offset: int, value: np.float32) -> None:
    """Write a float32 at a byte offset."""
    bits = np.float32(value).view(np.uint32)
    store_u16(data, offset, np.uint32(bits & np.uint32(0xFFFF)))
    store_u16(data, offset + 2, np.uint32(bits >> np.uint32(16)))


@jit
def half_to_float(half: np.uint32) -> np.float32:
    """Float32 value of the half with these bits, as ``GGML_FP16_TO_FP32``; signalling NaNs come out quiet."""
    magnitude = np.uint32((half & np.uint32(0x7FFF)) << np.uint32(13))
    sign = np.uint32((half & np.uint32(0x8000)) << np.uint32(16))
    if magnitude >= np.uint32(0x7C00 << 13):
        quiet = np.uint32(0x00400000) if magnitude > np.uint32(0x7C00 << 13) else np.uint32(0)
        return np.uint32(sign | np.uint32(0x7F800000) | magnitude | quiet).view(np.float32)
    # As a float32 the pattern is 2^112 too small, for normal and subnormal halves alike.
    scaled = np.float32(magnitude.view(np.float32) * np.float32(2.0**112))
    return np.uint32(sign | scaled.view(np.uint32)).view(np.float32)


@jit
def float_to_half(value: np.float32) -> np.uint32:
    """Bits of the half nearest to a float32, ties to even, as ``GGML_FP32_TO_FP16``; any NaN becomes 0x7E00."""
    bits = np.float32(value).view(np.uint32)
    sign = np.uint32((bits >> np.uint32(16)) & np.uint32(0x8000))
    magnitude = np.uint32(bits & np.uint32(0x7FFFFFFF))
    if magnitude > np.uint32(0x7F800000):
        return np.uint32(sign | np.uint32(0x7E00))
    if magnitude >= np.uint32(0x477FF000):  # 65520 and above round to infinity
        return np.uint32(sign | np.uint32(0x7C00))
    if magnitude < np.uint32(0x38800000):  # subnormal half: adding 0.5 leaves multiples of 2^-24 in the mantissa
        shifted = np.float32(magnitude.view(np.float32) + np.float32(0.5))
        return np.uint32(sign | np.uint32(shifted.view(np.uint32) - np.uint32(0x3F000000)))
    odd = np.uint32((magnitude >> np.uint32(13)) & np.uint32(1))
    rounded = np.uint32((magnitude + np.uint32(0xFFF) + odd) >> np.uint32(13))
    return np.uint32(sign | np.uint32(rounded - np.uint32(112 << 10)))


@jit
def bfloat_to_float(bfloat: np.uint32) -> np.float32:
    """Float32 value of the bfloat16 with these bits, as ``GGML_BF16_TO_FP32``."""
    return np.uint32(bfloat << np.uint32(16)).view(np.float32)


@jit
def float_to_bfloat(value: np.float32) -> np.uint32:
    """Bits of the bfloat16 nearest to a float32, ties to even, as ``GGML_FP32_TO_BF16``; NaNs are made quiet."""
    bits = np.float32(value).view(np.uint32)
    if np.uint32(bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000):
        return np.uint32((bits >> np.uint32(16)) | np.uint32(64))
    odd = np.uint32((bits >> np.uint32(16)) & np.uint32(1))
    return np.uint32(np.uint64(np.uint64(bits) + np.uint64(0x7FFF) + np.uint64(odd)) >> np.uint64(16))


@jit
def round_half_away(value: np.float32) -> np.float32:
    """C's ``roundf``: the nearest integer, halves away from zero, as float32."""
    whole = np.float32(np.trunc(value))
    if abs(np.float32(value - whole)) >= np.float32(0.5):
        whole = np.float32(whole + np.copysign(np.float32(1), value))
    return whole


@jit
def nearest_int(value: np.float32) -> np.int32:
    """Ggml's ``nearest_int``: rounds halves to even by adding 1.5 * 2^23; valid for ``|value| < 2^22``."""
    shifted = np.float32(np.float32(value) + np.float32(12582912.0))
    return np.int32(np.uint32(shifted.view(np.uint32) & np.uint32(0x007FFFFF))) - np.int32(0x00400000)
