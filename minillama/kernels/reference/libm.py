"""Exponential, logarithm, power, sine and cosine with fixed bits, the same on every platform.

``exp_lane`` is the exponential ggml's SSE2 branch computes four at a time; ``expf``, ``logf``, ``powf``, ``sinf`` and
``cosf`` give the bits of glibc's functions of those names on a machine with fused multiply-add (the algorithms and
constants are those of Arm's optimized routines, which glibc uses: double-precision polynomials after a reduction). All
2^32 floats agree; of ``powf``, a large sample.
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
    if abs(n) > _F(192):
        return _F(0) if n <= 0 else _F(np.inf)
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


# Reciprocals near the middles of the 16 intervals between 0x3f330000 and twice that float, and their logarithms.
_RECIPROCALS = np.array(
    [
        float.fromhex(c)
        for c in (
            "0x1.661ec79f8f3bep+0", "0x1.571ed4aaf883dp+0", "0x1.49539f0f010bp+0", "0x1.3c995b0b80385p+0",
            "0x1.30d190c8864a5p+0", "0x1.25e227b0b8eap+0", "0x1.1bb4a4a1a343fp+0", "0x1.12358f08ae5bap+0",
            "0x1.0953f419900a7p+0", "0x1p+0", "0x1.e608cfd9a47acp-1", "0x1.ca4b31f026aap-1",
            "0x1.b2036576afce6p-1", "0x1.9c2d163a1aa2dp-1", "0x1.886e6037841edp-1", "0x1.767dcf5534862p-1",
        )
    ]
)  # fmt: skip
_LOG_START = np.int64(0x3F330000)


def _minus_logs(base: int | None) -> list[float]:
    """Doubles nearest to minus the logarithms of the reciprocals, natural without ``base``."""
    with decimal.localcontext(decimal.Context(prec=50)):
        unit = decimal.Decimal(1) if base is None else decimal.Decimal(base).ln()
        return [float(-decimal.Decimal(float(value)).ln() / unit) for value in _RECIPROCALS]


_LOGS, _LOGS2 = np.array(_minus_logs(None)), np.array(_minus_logs(2))
_LN2 = float.fromhex("0x1.62e42fefa39efp-1")
_L1, _L2, _L3 = (float.fromhex(c) for c in ("-0x1.00ea348b88334p-2", "0x1.5575b0be00b6ap-2", "-0x1.ffffef20a4123p-2"))
_B1, _B2, _B3, _B4, _B5 = (
    float.fromhex(c)
    for c in (
        "0x1.27616c9496e0bp-2", "-0x1.71969a075c67ap-2", "0x1.ec70a6ca7baddp-2", "-0x1.7154748bef6c8p-1",
        "0x1.71547652ab82bp0",
    )
)  # fmt: skip
_OVERFLOW = float.fromhex("0x1.fffffffd1d571p+6")


@jit
def _log_parts(x: np.float32) -> tuple[np.int64, np.int64, float]:
    """Interval i, exponent k and r of a positive finite float: x = 2^k z with z in interval i, r = z / c - 1."""
    bits = np.int64(np.float32(x).view(np.uint32))
    if bits < 0x00800000:  # subnormal
        bits = np.int64(np.float32(x * _F(2.0**23)).view(np.uint32)) - np.int64(23 << 23)
    offset = bits - _LOG_START
    i, k = (offset >> 19) & 15, offset >> 23
    z = np.uint32(bits - (k << 23)).view(np.float32)
    return i, k, fma(np.float64(z), _RECIPROCALS[i], -1.0)


@jit
def logf(x: np.float32) -> np.float32:
    """Glibc's ``logf``: a table by the leading bits and a quartic, in double."""
    if x == 0:
        return _F(-np.inf)
    if np.isnan(x) or x < 0:
        return _F(np.nan)
    if np.isinf(x):
        return x
    i, k, r = _log_parts(x)
    whole = fma(np.float64(k), _LN2, _LOGS[i])
    square = r * r
    return _F(fma(fma(_L1, square, fma(_L2, r, _L3)), square, whole + r))


@jit
def _log2(x: np.float32) -> float:
    i, k, r = _log_parts(x)
    square = r * r
    low = fma(fma(_B3, r, _B4), square, fma(_B5, r, _LOGS2[i] + np.float64(k)))
    return fma(fma(_B1, r, _B2), square * square, low)


@jit
def _exp2(x: np.float64) -> float:
    shifted = np.float64(x + _SHIFT / 32)
    k = shifted.view(np.int64)
    r = x - (shifted - _SHIFT / 32)
    scale = np.int64(_EXP2[k & 31] + (k << 47)).view(np.float64)
    return fma(fma(_P3 * 32**3, r, _P2 * 32**2), r * r, fma(_P1 * 32, r, 1.0)) * scale


@jit
def _odd(y: np.float32) -> bool:
    return bool(abs(y) < _F(2.0**24) and np.trunc(y) == y and np.int64(y) & 1 == 1)


@jit
def _pow_edge(x: np.float32, y: np.float32) -> np.float32:
    """``powf`` where x is zero or infinite, or y is infinite; y is not zero and neither is NaN."""
    if np.isinf(y):
        if abs(x) == 1:
            return _F(1)
        return _F(np.inf) if (abs(x) > 1) == (y > 0) else _F(0)
    size = _F(0) if (x == 0) == (y > 0) else _F(np.inf)
    return _F(-size) if _odd(y) and np.signbit(x) else size


@jit
def powf(x: np.float32, y: np.float32) -> np.float32:
    """Glibc's ``powf``: 2^(y log2 x), both functions in double by table and polynomial."""
    if y == 0 or x == 1:
        return _F(1)
    if np.isnan(x) or np.isnan(y) or (-np.inf < x < 0 and np.trunc(y) != y):
        return _F(np.nan)
    if x == 0 or np.isinf(x) or np.isinf(y):
        return _pow_edge(x, y)
    sign = np.float64(-1) if x < 0 and _odd(y) else np.float64(1)
    exponent = np.float64(y) * _log2(abs(x))
    if exponent > _OVERFLOW:
        return _F(sign * np.inf)
    if exponent <= -150:
        return _F(sign * 0.0)
    return _F(sign * _exp2(exponent))


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
