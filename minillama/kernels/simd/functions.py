"""``tanhf`` and ``expf`` of the C library, and GELU, on 16 lanes: the bits of ``reference.fdlibm`` and ``libm``."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from minillama.kernels.jit import jit
from minillama.kernels.reference import activations, fdlibm, libm
from minillama.kernels.simd.floats import (
    _llvm_call,
    absolute,
    divide,
    half_lanes,
    splat_f64x16,
    splat_u32x16,
    where_greater,
)
from minillama.kernels.simd.vectors import (
    Codegen,
    Vector,
    _address,
    _llvm,
    _make_cast,
    _make_splat,
    add,
    as_f32,
    as_u32,
    bit_or,
    intrinsic,
    keep_bits,
    multiply,
    shift_left,
    splat_f32x16,
    subtract,
    to_f32,
    to_f64,
)

i64x16 = Vector(types.int64, 16)
_as_i64, _as_f64, _splat_i64x16 = _make_cast(types.int64), _make_cast(types.float64), _make_splat(i64x16)


@intrinsic
def truncated(_typing: Any, x: Vector) -> tuple[Any, Codegen]:
    """Lanes (float32) without their fraction."""

    def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return _llvm_call(builder, f"llvm.trunc.v{x.lanes}f32", arguments[0].type, arguments)

    return x(x), codegen


@intrinsic
def negative(_typing: Any, x: Vector) -> tuple[Any, Codegen]:
    """Lanes with the other sign."""

    def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.fneg(arguments[0])

    return x(x), codegen


@intrinsic
def fused(_typing: Any, a: Vector, b: Vector, c: Vector) -> tuple[Any, Codegen] | None:
    """``fma.fma`` of every lane (float64)."""
    if not isinstance(a, Vector) or a != b or b != c:
        return None

    def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return _llvm_call(builder, f"llvm.fma.v{a.lanes}f64", arguments[0].type, arguments)

    return a(a, b, c), codegen


@intrinsic
def look_up(_typing: Any, table: Any, index: Vector) -> tuple[Any, Codegen]:
    """Entries of a contiguous array of int64, one for each lane."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        value = ir.Constant(_llvm(index), ir.Undefined)
        word = ir.IntType(64)
        for lane in range(index.lanes):
            place = builder.extract_element(arguments[1], ir.Constant(ir.IntType(32), lane))
            offset = builder.shl(place, ir.Constant(word, 3))
            entry = builder.load(_address(context, builder, signature.args[0], (arguments[0], offset), word))
            value = builder.insert_element(value, entry, ir.Constant(ir.IntType(32), lane))
        return value

    return index(table, index), codegen


@jit
def exp_c_lanes(x: object) -> object:
    """``reference.libm.expf``, whose table and polynomials are in double."""
    wide = to_f64(x)
    factor, shift = splat_f64x16(libm._INV_LN2_32), splat_f64x16(libm._SHIFT)
    shifted = fused(factor, wide, shift)
    k = _as_i64(shifted)
    r = fused(factor, wide, subtract(shift, shifted))
    scale = _as_f64(add(look_up(libm._EXP2, keep_bits(k, 31)), shift_left(k, 47)))
    low = fused(splat_f64x16(libm._P1), r, splat_f64x16(1.0))
    high = fused(splat_f64x16(libm._P3), r, splat_f64x16(libm._P2))
    value = to_f32(multiply(fused(high, multiply(r, r), low), scale))
    value = where_greater(x, splat_f32x16(_EXP_MOST), splat_f32x16(_INFINITY), value)
    return where_greater(splat_f32x16(_EXP_LEAST), x, splat_f32x16(_ZERO), value)


_ZERO, _HALF, _ONE, _TWO, _THREE, _SIX, _TEN, _INFINITY = (np.float32(v) for v in (0, 0.5, 1, 2, 3, 6, 10, np.inf))
_EXP_MOST, _EXP_LEAST = np.float32(88.72283172607422), np.float32(-103.97207641601562)
_LN2_HIGH, _LN2_LOW, _INV_LN2, _HALF_LN2 = fdlibm._LN2_HIGH, fdlibm._LN2_LOW, fdlibm._INV_LN2, fdlibm._HALF_LN2
_C0, _C1, _C2, _C3, _C4, _C5 = fdlibm._EXPM1
_ROUNDER, _ONE_BITS = libm._ROUNDER, np.uint32(0x3F800000)
_MINUS_HALF, _MINUS_3_2, _SIGN = np.float32(-0.5), np.float32(-1.5), 0x80000000


@jit
def _with_sign(size: object, x: object) -> object:
    return as_f32(bit_or(as_u32(absolute(size)), keep_bits(as_u32(x), _SIGN)))


@jit
def _expm1_polynomial(square: object) -> object:
    value = add(splat_f32x16(_C4), multiply(square, splat_f32x16(_C5)))
    value = add(splat_f32x16(_C3), multiply(square, value))
    value = add(splat_f32x16(_C2), multiply(square, value))
    value = add(splat_f32x16(_C1), multiply(square, value))
    return add(splat_f32x16(_C0), multiply(square, value))


@jit
def _expm1_lanes(y: object) -> object:
    """``reference.fdlibm._expm1f`` for -2 < y < 20, its branches computed for all lanes and selected from."""
    half, one = splat_f32x16(_HALF), splat_f32x16(_ONE)
    rounded = truncated(add(multiply(splat_f32x16(_INV_LN2), y), _with_sign(half, y)))
    k = where_greater(absolute(y), splat_f32x16(_HALF_LN2), rounded, splat_f32x16(_ZERO))
    high, low = subtract(y, multiply(k, splat_f32x16(_LN2_HIGH))), multiply(k, splat_f32x16(_LN2_LOW))
    x = subtract(high, low)
    correction = subtract(subtract(high, x), low)
    half_x = multiply(half, x)
    square = multiply(x, half_x)
    r = _expm1_polynomial(square)
    t = subtract(splat_f32x16(_THREE), multiply(r, half_x))
    e = multiply(square, divide(subtract(r, t), subtract(splat_f32x16(_SIX), multiply(x, t))))
    near = subtract(x, subtract(multiply(x, e), square))
    e = subtract(subtract(multiply(x, subtract(e, correction)), correction), square)
    exponent = shift_left(as_u32(add(k, splat_f32x16(_ROUNDER))), 23)
    power = as_f32(add(exponent, splat_u32x16(_ONE_BITS)))
    inverse = as_f32(subtract(splat_u32x16(_ONE_BITS), exponent))
    above = multiply(subtract(subtract(one, inverse), subtract(e, x)), power)
    below = subtract(multiply(subtract(one, subtract(e, x)), power), one)
    at_minus_1 = subtract(multiply(half, subtract(x, e)), half)
    below = where_greater(k, splat_f32x16(_MINUS_3_2), at_minus_1, below)
    value = where_greater(k, splat_f32x16(_HALF), above, near)
    return where_greater(splat_f32x16(_MINUS_HALF), k, below, value)


@jit
def tanh_lanes(x: object) -> object:
    """``reference.fdlibm.tanhf``; from 10 on, where it is 1, the argument is taken as 10."""
    one, two, size = splat_f32x16(_ONE), splat_f32x16(_TWO), absolute(x)
    bounded = where_greater(size, splat_f32x16(_TEN), splat_f32x16(_TEN), size)
    twice = multiply(two, bounded)
    is_small = where_greater(one, size, one, splat_f32x16(_ZERO))
    t = _expm1_lanes(where_greater(one, size, negative(twice), twice))
    numerator = where_greater(is_small, splat_f32x16(_ZERO), negative(t), two)
    quotient = divide(numerator, add(t, two))
    return _with_sign(where_greater(is_small, splat_f32x16(_ZERO), quotient, subtract(one, quotient)), x)


_CUBIC, _SQRT_2_OVER_PI, _QUICK = activations._CUBIC, activations._SQRT_2_OVER_PI, activations._QUICK
ABOVE_MINUS_10 = np.nextafter(np.float32(-10), np.float32(0))  # below it GELU is taken as 0


@jit
def gelu_lanes(x: object) -> object:
    """``reference.activations.gelu_of``."""
    one = splat_f32x16(_ONE)
    h = half_lanes(x)
    cubic = add(one, multiply(multiply(splat_f32x16(_CUBIC), h), h))
    inner = tanh_lanes(multiply(multiply(splat_f32x16(_SQRT_2_OVER_PI), h), cubic))
    value = half_lanes(multiply(multiply(splat_f32x16(_HALF), h), add(one, inner)))
    value = where_greater(splat_f32x16(_TEN), x, value, x)
    return where_greater(splat_f32x16(ABOVE_MINUS_10), x, splat_f32x16(_ZERO), value)


@jit
def gelu_quick_lanes(x: object) -> object:
    """``reference.activations.gelu_quick_of``."""
    h, one = half_lanes(x), splat_f32x16(_ONE)
    power = exp_c_lanes(multiply(splat_f32x16(_QUICK), h))
    return half_lanes(multiply(h, divide(one, add(one, power))))


@jit
def sigmoid_lanes(x: object) -> object:
    """``reference.activations.sigmoid_of``."""
    one = splat_f32x16(_ONE)
    return divide(one, add(one, exp_c_lanes(negative(x))))


@jit
def relu_lanes(x: object) -> object:
    """``reference.activations.relu_of``."""
    zero = splat_f32x16(_ZERO)
    return where_greater(x, zero, x, zero)
