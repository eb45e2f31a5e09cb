"""Exponential, sine and cosine with fixed bits, the same on every platform.

``exp_lane`` is the exponential ggml's SSE2 branch computes four at a time; ``expf``, ``sinf`` and ``cosf`` give the
bits of glibc's functions of those names on a machine with fused multiply-add (the algorithms and constants are those of
Arm's optimized routines, which glibc uses: double-precision polynomials after a reduction). All 2^32 floats agree.
"""

from __future__ import annotations

import decimal

import numpy as np

from minillama.kernels.fma import fma
from minillama.kernels.jit import jit

_F = np.float32

_INV_LN2 = _F(float.fromhex("0x1.715476p+0"))
_LN2_HIGH, _LN2_LOW = _F(float.fromhex("0x1.62e4p-1")), _F(float.fromhex("0x1.7f7d1cp-20"))
_ROUNDER = _F(float.fromhex("0x1.8p23"))
_E1, _E2, _E3, _E4, _E5 = (
    _F(float.fromhex(c)) for c in ("0x1.ffffecp-1", "0x1.fffdb6p-2", "0x1.555e66p-3", "0x1.573e2ep-5", "0x1.0e4020p-7")
)


@jit
def _low32(value: np.int64) -> np.uint32:
    return np.uint32(value & np.int64(0xFFFFFFFF))


@jit
def exp_lane(x: np.float32) -> np.float32:
    """One lane of ggml's SSE2 ``ggml_v_expf``, multiply and add rounded apart.

    exp(x) = 2^n * (1 + p(b)) with n = round(x / ln 2) and b the rest; beyond |n| = 126 the power is applied in two
    halves, beyond 192 the result is zero or infinity.
    """
    z = _F(_F(x * _INV_LN2) + _ROUNDER)
    n = _F(z - _ROUNDER)
    b = _F(_F(x - _F(n * _LN2_HIGH)) - _F(n * _LN2_LOW))
    exponent = np.int64(_low32(np.int64(z.view(np.uint32)) << 23))
    u = _F(b * b)
    upper = _F(_F(_F(_E5 * b) + _E4) * u)
    middle = _F(_F(_E3 * b) + _E2)
    polynomial = _F(_F(_F(upper + middle) * u) + _F(_E1 * b))
    if not abs(n) > _F(126):
        power = np.uint32(_low32(exponent + 0x3F800000)).view(np.float32)
        return _F(_F(polynomial * power) + power)
    shift = np.int64(0x82000000) if n <= 0 else np.int64(0)
    first = np.uint32(_low32(shift + 0x7F000000)).view(np.float32)
    if abs(n) > _F(192):
        return _F(first * first)
    second = np.uint32(_low32(exponent - shift)).view(np.float32)
    return _F(_F(_F(second * polynomial) + second) * first)


def _power_table() -> tuple[int, ...]:
    """Bits of the doubles nearest to 2^(i/32), less i in the exponent's last five places, for i = 0 to 31."""
    with decimal.localcontext(decimal.Context(prec=50)):
        powers = [float(decimal.Decimal(2) ** (decimal.Decimal(i) / 32)) for i in range(32)]
    return tuple(int(np.float64(power).view(np.int64)) - (i << 47) for i, power in enumerate(powers))


_EXP2 = np.array(_power_table(), np.int64)
_INV_LN2_32 = float.fromhex("0x1.71547652b82fep+0") * 32
_SHIFT = float.fromhex("0x1.8p+52")
_P3, _P2, _P1 = (
    float.fromhex("0x1.c6af84b912394p-5") / 32**3,
    float.fromhex("0x1.ebfce50fac4f3p-3") / 32**2,
    float.fromhex("0x1.62e42ff0c52d6p-1") / 32,
)


@jit
def expf(x: np.float32) -> np.float32:
    """Glibc's ``expf``: 2^(k/32) from a table times a cubic, in double."""
    if np.isnan(x):
        return x
    if x > _F(88.72283172607422):
        return _F(np.inf)
    if x < _F(-103.97207641601562):
        return _F(0)
    shifted = np.float64(fma(_INV_LN2_32, np.float64(x), _SHIFT))
    k = shifted.view(np.int64)
    r = fma(_INV_LN2_32, np.float64(x), -(shifted - _SHIFT))
    scale = np.int64(_EXP2[k & 31] + (k << 47)).view(np.float64)
    return _F(fma(fma(_P3, r, _P2), r * r, fma(_P1, r, 1.0)) * scale)


_TWO_OVER_PI_24 = float.fromhex("0x1.45F306DC9C883p+23")
_HALF_PI = float.fromhex("0x1.921FB54442D18p0")
_PI_63 = float.fromhex("0x1.921FB54442D18p-62")
_QUARTER_PI = _F(float.fromhex("0x1.921FB6p-1"))
_TINY = _F(2.0**-12)
# 2/pi in binary: 24 overlapping 32-bit windows, eight bits apart.
_TWO_OVER_PI = 0xA2F9836E4E441529FC2757D1F534DDC0DB6295993C439041FE
_INVERSE_PI = np.array([(_TWO_OVER_PI >> (200 - 8 - 8 * i)) & 0xFFFFFFFF for i in range(24)], np.uint64)
_C1, _C2, _C3, _C4 = (
    float.fromhex(c)
    for c in ("-0x1.ffffffd0c621cp-2", "0x1.55553e1068f19p-5", "-0x1.6c087e89a359dp-10", "0x1.99343027bf8c3p-16")
)
_S1, _S2, _S3 = (float.fromhex(c) for c in ("-0x1.555545995a603p-3", "0x1.1107605230bc4p-7", "-0x1.994eb3774cf24p-13"))


@jit
def _sine(x: np.float64, square: np.float64) -> np.float32:
    cube = x * square
    return _F(fma(cube * square, fma(square, _S3, _S2), fma(cube, _S1, x)))


@jit
def _cosine(square: np.float64, sign: np.float64) -> np.float32:
    fourth = square * square
    head = fma(fourth, sign * _C2, fma(square, sign * _C1, sign))
    return _F(fma(fourth * square, fma(square, sign * _C4, sign * _C3), head))


@jit
def _reduce(x: np.float32) -> tuple[float, np.int64]:
    """The rest of |x| after n multiples of pi/2, and n: for |x| < 120 in double, beyond by 2/pi to 192 bits."""
    if abs(x) < _F(120):
        n = (np.int64(np.int32(np.float64(x) * _TWO_OVER_PI_24)) + 0x800000) >> 24
        return fma(-np.float64(n), _HALF_PI, np.float64(x)), n
    bits = np.int64(np.float32(x).view(np.uint32))
    word = (bits >> 26) & 15
    mantissa = np.uint64(((bits & 0xFFFFFF) | 0x800000) << ((bits >> 23) & 7))
    low32 = np.uint64(0xFFFFFFFF)
    high = np.uint64(mantissa * _INVERSE_PI[word]) & low32
    middle = mantissa * _INVERSE_PI[word + 4]
    low = mantissa * _INVERSE_PI[word + 8]
    # Added in 32-bit halves: numpy's scalars warn about a sum that wraps, which compiled code lets pass.
    lower = (low >> np.uint64(32)) + (middle & low32)
    upper = (high + (middle >> np.uint64(32)) + (lower >> np.uint64(32))) & low32
    turns = ((upper + np.uint64(1 << 29)) & low32) >> np.uint64(30)
    rest = np.int64(((upper & np.uint64(0x3FFFFFFF)) << np.uint64(32)) | (lower & low32))
    if rest >= np.int64(1 << 61):
        rest -= np.int64(1 << 62)
    return np.float64(rest) * _PI_63, np.int64(turns)


@jit
def sinf(x: np.float32) -> np.float32:
    """Glibc's ``sinf``."""
    if not np.isfinite(x):
        return _F(np.nan)
    y = np.float64(x)
    if abs(x) < _QUARTER_PI:
        return x if abs(x) < _TINY else _sine(y, y * y)
    rest, n = _reduce(x)
    negative = x < 0 and abs(x) >= _F(120)
    quadrant = n & 3
    if quadrant & 1:
        value = _cosine(rest * rest, np.float64(1 - (quadrant & 2)))
    else:
        value = _sine(rest * np.float64(1 - (quadrant & 2)), rest * rest)
    return _F(-value) if negative else value


@jit
def cosf(x: np.float32) -> np.float32:
    """Glibc's ``cosf``."""
    if not np.isfinite(x):
        return _F(np.nan)
    y = np.float64(x)
    if abs(x) < _QUARTER_PI:
        return _F(1) if abs(x) < _TINY else _cosine(y * y, np.float64(1))
    rest, n = _reduce(x)
    quadrant = n & 3
    if quadrant & 1:
        return _sine(rest * np.float64((quadrant & 2) - 1), rest * rest)
    return _cosine(rest * rest, np.float64(1 - (quadrant & 2)))
