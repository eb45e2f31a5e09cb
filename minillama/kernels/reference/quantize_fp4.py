"""Quantizing weights to blocks of 4-bit floats (E2M1): MXFP4 and NVFP4."""

from __future__ import annotations

import numpy as np

from minillama.kernels import layouts
from minillama.kernels.jit import jit
from minillama.kernels.reference.float4 import doubled_e2m1, half_of_e8m0, half_of_ue4m3
from minillama.kernels.reference.quantize_search import extreme_value, truncated
from minillama.kernels.types import F32, U8

_F = np.float32


@jit
def _nearest_level(value: np.float32, scale: np.float32) -> int:
    """``best_index_mxfp4``: the first of the levels that comes nearest."""
    best, best_error = 0, _F(abs(_F(0) * scale - value))
    for code in range(1, 16):
        error = _F(abs(_F(doubled_e2m1(code)) * scale - value))
        if error < best_error:
            best, best_error = code, error
    return best


@jit
def _pack_levels(x: F32, scale: np.float32, out: U8, at: int) -> None:
    """Values 0 to n/2 in low nibbles, the others in high ones."""
    half = x.shape[0] // 2
    for j in range(half):
        out[at + j] = np.uint8(_nearest_level(x[j], scale) | (_nearest_level(x[half + j], scale) << 4))


_MXFP4_SIZE, _MXFP4_E, _MXFP4_QS = layouts.MXFP4.type_size, layouts.MXFP4.offset("e"), layouts.MXFP4.offset("qs")


@jit
def quantize_row_mxfp4(x: F32, importance: F32, out: U8) -> None:
    """``quantize_row_mxfp4_ref``: the scale is a power of two, from ``floor(log2f(max|x|))``.

    The logarithm is taken in double and rounded to float32, which can lift it to the next integer. So does ``log2f``
    just below a power of two, at the same values: there log2(2^k - m ulps) is k - 1.4427 m 2^-24, and no integer m
    lands near enough to the middle of two floats for an error below 1e-9 to matter.

    The exponent wraps at 256 when the largest magnitude is below 2^-125, as in ggml's bytes.
    """
    for block in range(x.shape[0] // 32):
        start, values = block * _MXFP4_SIZE, x[block * 32 : block * 32 + 32]
        largest, _ = extreme_value(values)
        exponent = 0
        if largest > 0:
            exponent = (int(np.floor(_F(np.log2(np.float64(largest))))) + 125) & 255
        out[start + _MXFP4_E] = np.uint8(exponent)
        _pack_levels(values, half_of_e8m0(np.uint8(exponent)), out, start + _MXFP4_QS)


@jit
def _to_ue4m3(value: np.float32) -> int:
    """``ggml_fp32_to_ue4m3``: the byte of an unsigned float of 4 exponent and 3 mantissa bits, halves rounded up."""
    if not value > 0:
        return 0
    value = _F(448) if value > _F(448) else value
    bits = int(np.float32(value).view(np.uint32))
    exponent, mantissa = ((bits >> 23) & 0xFF) - 120, ((bits >> 20) & 7) + ((bits >> 19) & 1)
    if exponent <= 0:
        return min(7, truncated(value * _F(512) + _F(0.5)))
    if mantissa > 7:
        exponent, mantissa = exponent + 1, 0
    return 0x7E if exponent >= 15 else (exponent << 3) | mantissa


_NVFP4_SIZE, _NVFP4_D, _NVFP4_QS = layouts.NVFP4.type_size, layouts.NVFP4.offset("d"), layouts.NVFP4.offset("qs")


@jit
def quantize_row_nvfp4(x: F32, importance: F32, out: U8) -> None:
    """``quantize_row_nvfp4_ref``: groups of 16 with an 8-bit float as scale, the one nearest to max|x| / 6."""
    for block in range(x.shape[0] // 64):
        for group in range(4):
            start, first = block * _NVFP4_SIZE, block * 64 + group * 16
            values = x[first : first + 16]
            largest, _ = extreme_value(values)
            scale = _to_ue4m3(largest / _F(6))
            out[start + _NVFP4_D + group] = np.uint8(scale)
            half_scale = _F(half_of_ue4m3(scale)) * _F(2.0**-10)
            _pack_levels(values, half_scale, out, start + _NVFP4_QS + group * 8)
