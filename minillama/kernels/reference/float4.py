"""Blocks of 4-bit floats taken apart. See ``reference.unpack``.

The values are E2M1 floats (a sign, two bits of exponent, one of mantissa), doubled so that they are integers. The
scales, halved to make up for it, are floats of 8 bits: E8M0 (only an exponent) or unsigned E4M3.
"""

from __future__ import annotations

import numpy as np

from minillama.kernels import layouts
from minillama.kernels.jit import jit
from minillama.kernels.reference.unpack import NO_MINIMUM, Halves
from minillama.kernels.types import I8, I32, U8


@jit
def doubled_e2m1(code: np.int32) -> np.int8:
    """Twice the value of an E2M1 float: 0, 1, 2, 3, 4, 6, 8, 12 and their negatives; ggml's ``kvalues_mxfp4``."""
    exponent, mantissa = (code >> 1) & 3, code & 1
    magnitude = mantissa if exponent == 0 else (2 + mantissa) << (exponent - 1)
    return np.int8(-magnitude if code & 8 else magnitude)


@jit
def half_of_e8m0(exponent: np.uint8) -> np.float32:
    """2^(exponent - 128), as ``GGML_E8M0_TO_FP32_HALF``: subnormal for 0 and 1; 255 is not taken for NaN."""
    bits = np.uint32(exponent)
    if bits < np.uint32(2):
        return np.uint32(np.uint32(0x00200000) << bits).view(np.float32)
    return np.uint32((bits - np.uint32(1)) << np.uint32(23)).view(np.float32)


@jit
def half_of_ue4m3(code: np.int32) -> np.int32:
    """Half the value of an unsigned E4M3 float as a number of 1024ths; ``ggml_ue4m3_to_fp32``, where 0x7F is zero."""
    exponent, mantissa = (code >> 3) & 15, code & 7
    if code == 0x7F:
        return np.int32(0)
    return np.int32(mantissa if exponent == 0 else (8 + mantissa) << (exponent - 1))


@jit
def _nibbles(row: U8, start: int, n_bytes: int, quants: I8, at: int) -> None:
    """The values of the low nibbles, then of the high ones."""
    for j in range(n_bytes):
        packed = np.int32(row[start + j])
        quants[at + j] = doubled_e2m1(packed & 15)
        quants[at + n_bytes + j] = doubled_e2m1(packed >> 4)


_MXFP4_E, _MXFP4_QS = layouts.MXFP4.offset("e"), layouts.MXFP4.offset("qs")


@jit
def unpack_mxfp4(row: U8, start: int, quants: I8, scales: I32, mins: I32) -> Halves:
    """MXFP4: one scale that is a power of two."""
    _nibbles(row, start + _MXFP4_QS, 16, quants, 0)
    return half_of_e8m0(row[start + _MXFP4_E]), NO_MINIMUM


_NVFP4_D, _NVFP4_QS = layouts.NVFP4.offset("d"), layouts.NVFP4.offset("qs")


@jit
def unpack_nvfp4(row: U8, start: int, quants: I8, scales: I32, mins: I32) -> Halves:
    """NVFP4: a scale for each 16 values, and 8 bytes; whole numbers of 1024ths."""
    mins[:] = 0
    for group in range(4):
        scales[group] = half_of_ue4m3(np.int32(row[start + _NVFP4_D + group]))
        _nibbles(row, start + _NVFP4_QS + group * 8, 8, quants, group * 16)
    return np.float32(2.0**-10), np.float32(0)
