"""``tanhf`` and ``erff`` with the bits of glibc before 2.41, in float32 throughout.

Up to 2.40 glibc computes both by the algorithms of Sun's fdlibm (rational approximations on intervals), without fused
multiply-add on any x86-64 machine; 2.41 replaced them by correctly rounded functions. The coefficients are fdlibm's.
"""

from __future__ import annotations

import numpy as np

from minillama.kernels.jit import jit
from minillama.kernels.reference.libm import expf
from minillama.kernels.types import F32

_F = np.float32


def _floats(*bits: int) -> F32:
    """Coefficients by their bits, constant term first."""
    return np.array(bits, np.uint32).view(np.float32)


@jit
def _polynomial(x: np.float32, coefficients: F32) -> np.float32:
    """Horner's rule from the highest coefficient down."""
    value = coefficients[len(coefficients) - 1]
    for i in range(len(coefficients) - 2, -1, -1):
        value = _F(coefficients[i] + _F(x * value))
    return value


@jit
def _add_to_exponent(x: np.float32, k: np.int64) -> np.float32:
    return np.uint32((np.int64(np.float32(x).view(np.uint32)) + (k << 23)) & np.int64(0xFFFFFFFF)).view(np.float32)


@jit
def _power_of_2(k: np.int64) -> np.float32:
    return np.uint32((127 + k) << 23).view(np.float32)


_HALF, _ONE, _TWO = _F(0.5), _F(1), _F(2)
_LN2_HIGH, _LN2_LOW, _INV_LN2 = _floats(0x3F317180, 0x3717F7D1, 0x3FB8AA3B)
_HALF_LN2, _LN2_3_2 = _floats(0x3EB17218, 0x3F851592)
_EXPM1 = _floats(0x3F800000, 0xBD088889, 0x3AD00D01, 0xB8A670CD, 0x36867E54, 0xB457EDBB)


@jit
def _scaled_expm1(x: np.float32, e: np.float32, k: np.int64) -> np.float32:
    """2^k (1 + x - e) - 1, so that the larger terms cancel first."""
    if k == -1:
        return _F(_F(_HALF * _F(x - e)) - _HALF)
    if k == 1:
        if x < _F(-0.25):
            return _F(-_TWO * _F(e - _F(x + _HALF)))
        return _F(_ONE + _F(_TWO * _F(x - e)))
    if k <= -2 or k > 56:
        return _F(_add_to_exponent(_F(_ONE - _F(e - x)), k) - _ONE)
    if k < 23:
        return _add_to_exponent(_F(_F(_ONE - _power_of_2(-k)) - _F(e - x)), k)
    return _add_to_exponent(_F(_F(x - _F(e + _power_of_2(-k))) + _ONE), k)


@jit
def _expm1f(x: np.float32) -> np.float32:
    """exp(x) - 1 for -2 <= x < 44, which is all that ``tanhf`` asks for."""
    if abs(x) < _F(2.0**-25):
        return x
    k, correction = np.int64(0), _F(0)
    if abs(x) > _HALF_LN2:  # x = k ln 2 + rest, the rest in two floats
        if abs(x) < _LN2_3_2:
            k = np.int64(1) if x > 0 else np.int64(-1)
        else:
            k = np.int64(_F(_F(_INV_LN2 * x) + np.copysign(_HALF, x)))
        high, low = _F(x - _F(_F(k) * _LN2_HIGH)), _F(_F(k) * _LN2_LOW)
        x = _F(high - low)
        correction = _F(_F(high - x) - low)
    half = _F(_HALF * x)
    square = _F(x * half)
    r = _polynomial(square, _EXPM1)
    t = _F(_F(3) - _F(r * half))
    e = _F(square * _F(_F(r - t) / _F(_F(6) - _F(x * t))))
    if k == 0:
        return _F(x - _F(_F(x * e) - square))
    e = _F(_F(_F(x * _F(e - correction)) - correction) - square)
    return _scaled_expm1(x, e, k)


@jit
def tanhf(x: np.float32) -> np.float32:
    """Glibc's ``tanhf`` before 2.41: by exp(2 |x|) - 1, or its reciprocal below 1."""
    if np.isnan(x) or abs(x) < _F(2.0**-55):
        return x
    if abs(x) >= _F(22):
        value = _ONE
    elif abs(x) >= _ONE:
        value = _F(_ONE - _F(_TWO / _F(_expm1f(_F(_TWO * abs(x))) + _TWO)))
    else:
        t = _expm1f(_F(-_TWO * abs(x)))
        value = _F(_F(-t) / _F(t + _TWO))
    return _F(np.copysign(value, x))


_ERF_FACTOR, _ERF_1 = _floats(0x3E0375D4, 0x3F58560B)
_SPLIT_1, _SPLIT_2, _SPLIT_3 = _floats(0x3F580000, 0x3FA00000, 0x4036DB6E)  # 0.84375, 1.25, 1 / 0.35
_PP = _floats(0x3E0375D4, 0xBEA66BEB, 0xBCE9528F, 0xBBBD1489, 0xB7C756B1)
_QQ = _floats(0x3F800000, 0x3ECBBBCE, 0x3D852A63, 0x3BA68116, 0x390AEE49, 0xB684E21A)
_PA = _floats(0xBB1ACDC6, 0x3ED46805, 0xBEBE9208, 0x3EA2FE54, 0xBDE31CC2, 0x3D1151B3, 0xBB0DF9C0)
_QA = _floats(0x3F800000, 0x3DD9F331, 0x3F0A5785, 0x3D931AE7, 0x3E013307, 0x3C5F6E13, 0x3C445AA3)
_RA = _floats(0xBC21A093, 0xBF31A0B7, 0xC128F022, 0xC2798057, 0xC322658C, 0xC3389AE7, 0xC2A2932B, 0xC11D077E)
_SA = _floats(
    0x3F800000, 0x419D35CE, 0x4309A863, 0x43D9486F, 0x442158C9, 0x43D6810B, 0x42D9451F, 0x40D23F7C, 0xBD777F97
)
_RB = _floats(0xBC21A092, 0xBF4C9DD4, 0xC18E104B, 0xC320A2EA, 0xC41F6441, 0xC480230B, 0xC3F1C275)
_SB = _floats(0x3F800000, 0x41F2B459, 0x43A2E571, 0x44C01759, 0x4547FDBB, 0x451F90CE, 0x43ED43A7, 0xC1B38712)


@jit
def erff(x: np.float32) -> np.float32:
    """Glibc's ``erff`` before 2.41: four intervals, beyond 1.25 by the complement with two exponentials."""
    size = abs(x)
    if size < _F(2.0**-28):
        if size < _F(2.0**-119):
            return _F(_F(0.0625) * _F(_F(_F(16) * x) + _F(_F(_F(16) * _ERF_FACTOR) * x)))
        return _F(x + _F(_ERF_FACTOR * x))
    if size < _SPLIT_1:
        square = _F(x * x)
        return _F(x + _F(x * _F(_polynomial(square, _PP) / _polynomial(square, _QQ))))
    if np.isnan(x):
        return x
    if size < _SPLIT_2:
        s = _F(size - _ONE)
        value = _F(_ERF_1 + _F(_polynomial(s, _PA) / _polynomial(s, _QA)))
    elif size >= _F(6):
        value = _ONE
    else:
        s = _F(_ONE / _F(size * size))
        if size < _SPLIT_3:
            ratio = _F(_polynomial(s, _RA) / _polynomial(s, _SA))
        else:
            ratio = _F(_polynomial(s, _RB) / _polynomial(s, _SB))
        z = np.uint32(np.float32(size).view(np.uint32) & np.uint32(0xFFFFF000)).view(np.float32)
        first = expf(_F(_F(_F(-z) * z) - _F(0.5625)))
        second = expf(_F(_F(_F(z - size) * _F(z + size)) + ratio))
        value = _F(_ONE - _F(_F(first * second) / size))
    return _F(np.copysign(value, x))
