"""Vector operations on floats: comparisons, selections, sums in order, roundings, and ggml's exponential.

They add to :mod:`minillama.kernels.simd.vectors` what the kernels between matrix products need. Vectors of more lanes
than the machine's registers have are several registers, that is several independent sums in flight.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from minillama.kernels import tiers
from minillama.kernels.jit import jit
from minillama.kernels.reference import libm
from minillama.kernels.simd import vectors
from minillama.kernels.simd.vectors import (
    Codegen,
    Vector,
    add,
    as_f32,
    as_u32,
    intrinsic,
    load_f32x16,
    make_shuffle,
    multiply,
    shift_left,
    splat_f32x16,
    store,
    subtract,
)
from minillama.kernels.types import F32

_HAS_AVX512 = tiers.has("avx512f")
# Lanes of a double sum that fill eight registers (AVX-512, AVX2) or sixteen (NEON): enough to hide an addition's time.
WIDE = 64 if _HAS_AVX512 else 32

_LLVM_WORD = {types.float32: "f32", types.float64: "f64"}


def load_floats(lanes: int) -> Any:
    """``load(array, offset)`` of float32 lanes."""
    return vectors._make_load(Vector(types.float32, lanes))


def load_doubles(lanes: int) -> Any:
    """``load(array, offset)`` of float64 lanes."""
    return vectors._make_load(Vector(types.float64, lanes))


def splat_floats(lanes: int) -> Any:
    """``splat(number)`` to float32 lanes."""
    return vectors._make_splat(Vector(types.float32, lanes))


def splat_doubles(lanes: int) -> Any:
    """``splat(number)`` to float64 lanes."""
    return vectors._make_splat(Vector(types.float64, lanes))


load_f64x16 = load_doubles(16)
splat_u32x16, splat_f64x16 = vectors._make_splat(Vector(types.uint32, 16)), vectors.splat_f64x16


def _llvm_call(builder: Any, name: str, result: Any, arguments: Sequence[Any]) -> Any:
    signature = ir.FunctionType(result, [argument.type for argument in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, signature, name), arguments)


@intrinsic
def divide(_typing: Any, left: Vector, right: Vector) -> tuple[Any, Codegen] | None:
    """Quotient lane by lane."""
    if not isinstance(left, Vector) or left != right:
        return None

    def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.fdiv(*arguments)

    return left(left, right), codegen


@intrinsic
def absolute(_typing: Any, x: Vector) -> tuple[Any, Codegen]:
    """Lanes without their sign."""

    def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return _llvm_call(builder, f"llvm.fabs.v{x.lanes}{_LLVM_WORD[x.element]}", arguments[0].type, arguments)

    return x(x), codegen


@intrinsic
def where_greater(_typing: Any, a: Vector, b: Vector, x: Vector, y: Vector) -> tuple[Any, Codegen] | None:
    """Lane of x where ``a > b``, else (also where one of them is NaN) of y."""
    if not isinstance(x, Vector) or a != b or x != y:
        return None

    def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.select(builder.fcmp_ordered(">", *arguments[:2]), *arguments[2:])

    return x(a, b, x, y), codegen


def _mask(builder: Any, count: Any, lanes: int) -> Any:
    """Which of the lanes are the first ``count``."""
    index = ir.Constant(ir.VectorType(ir.IntType(64), lanes), list(range(lanes)))
    return builder.icmp_signed("<", index, vectors._splat(builder, count, Vector(types.int64, lanes)))


@intrinsic
def where_before(_typing: Any, count: Any, x: Vector, y: Vector) -> tuple[Any, Codegen] | None:
    """Lane of x in the first ``count`` lanes, else of y."""
    if not isinstance(x, Vector) or x != y:
        return None

    def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.select(_mask(builder, arguments[0], x.lanes), *arguments[1:])

    return x(types.int64, x, y), codegen


@intrinsic
def load_first(_typing: Any, array: Any, _offset: Any, _count: Any) -> tuple[Any, Codegen]:
    """The first lanes of float32 x 16 at a byte offset, zeros in the others, whose memory is not touched."""
    vector = vectors.f32x16

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        llvm = vectors._llvm(vector)
        pointer = vectors._address(context, builder, signature.args[0], arguments[:2], llvm)
        zeros, mask = ir.Constant(llvm, None), _mask(builder, arguments[2], vector.lanes)
        align = ir.Constant(ir.IntType(32), 1)
        return _llvm_call(builder, "llvm.masked.load.v16f32.p0", llvm, (pointer, align, mask, zeros))

    return vector(array, types.int64, types.int64), codegen


@intrinsic
def store_first(_typing: Any, array: Any, _offset: Any, _count: Any, x: Vector) -> tuple[Any, Codegen]:
    """Write the first lanes of float32 x 16."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = vectors._address(context, builder, signature.args[0], arguments[:2], arguments[3].type)
        align, mask = ir.Constant(ir.IntType(32), 1), _mask(builder, arguments[2], x.lanes)
        _llvm_call(builder, "llvm.masked.store.v16f32.p0", ir.VoidType(), (arguments[3], pointer, align, mask))
        return context.get_dummy_value()

    return types.void(array, types.int64, types.int64, x), codegen


def _make_reduction(operation: str, *, with_start: bool) -> Any:
    def codegen(_context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector = signature.args[-1]
        name = f"llvm.vector.reduce.{operation}.v{vector.lanes}{_LLVM_WORD[vector.element]}"
        return _llvm_call(builder, name, arguments[-1].type.element, arguments)

    if with_start:

        @intrinsic
        def reduction_from(_typing: Any, _start: Any, vector: Vector) -> tuple[Any, Codegen]:
            return vector.element(vector.element, vector), codegen

        return reduction_from

    @intrinsic
    def reduction(_typing: Any, vector: Vector) -> tuple[Any, Codegen]:
        return vector.element(vector), codegen

    return reduction


# largest_lane(vector): lanes that are NaN count only if all are. sum_in_order(start, vector): start + lane 0 + lane 1
# + ..., rounded after every addition.
largest_lane = _make_reduction("fmax", with_start=False)
sum_in_order = _make_reduction("fadd", with_start=True)

_HAS_FMA = tiers.has("fma") or platform.machine() in ("aarch64", "arm64")


@intrinsic
def add_exact_product(_typing: Any, total: Vector, x: Vector, y: Vector) -> tuple[Any, Codegen] | None:
    """``total + x * y`` of doubles whose product has at most 53 bits, so that fused or not it is rounded once."""
    if not isinstance(total, Vector) or total != x or x != y:
        return None

    def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        sum_, left, right = arguments
        if _HAS_FMA:
            return _llvm_call(builder, f"llvm.fma.v{total.lanes}f64", sum_.type, (left, right, sum_))
        return builder.fadd(sum_, builder.fmul(left, right))

    return total(total, x, y), codegen


@intrinsic
def unknown_one(_typing: Any) -> tuple[Any, Codegen]:
    """1.0, which LLVM takes for any number, where processors add and convert on some units and multiply on others.

    ``add_exact_product(total, x, one)`` then stays a multiply-add, with the bits of ``total + x``.
    """
    double = ir.DoubleType()

    def codegen(_context: Any, builder: Any, _signature: Any, _arguments: Any) -> Any:
        one = ir.Constant(double, 1.0)
        if not _HAS_AVX512:
            return one
        return builder.call(ir.InlineAsm(ir.FunctionType(double, [double]), "", "=v,0"), [one])

    return types.float64(), codegen


@intrinsic
def _through_half(_typing: Any, x: Vector) -> tuple[Any, Codegen]:
    def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        half = builder.fptrunc(arguments[0], ir.VectorType(ir.HalfType(), x.lanes))
        return builder.fpext(half, arguments[0].type)

    return x(x), codegen


@intrinsic
def _through_half_bits(_typing: Any, x: Vector) -> tuple[Any, Codegen]:
    """As ``_through_half``, by whole-number operations, for machines that do not convert."""
    wide = ir.VectorType(ir.IntType(32), x.lanes)

    def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        floats = arguments[0].type

        def constant(value: int) -> ir.Constant:
            return ir.Constant(wide, [value] * x.lanes)

        bits = builder.bitcast(arguments[0], wide)
        size = builder.and_(bits, constant(0x7FFFFFFF))
        odd = builder.and_(builder.lshr(size, constant(13)), constant(1))
        usual = builder.and_(builder.add(builder.add(size, constant(0xFFF)), odd), constant(~0x1FFF))
        half = ir.Constant(floats, [0.5] * x.lanes)  # a sum with it has an ulp of the smallest half
        small = builder.fsub(builder.fadd(builder.bitcast(size, floats), half), half)
        is_small = builder.icmp_unsigned("<", size, constant(0x38800000))
        usual = builder.select(is_small, builder.bitcast(small, wide), usual)
        usual = builder.select(builder.icmp_unsigned(">=", size, constant(0x477FF000)), constant(0x7F800000), usual)
        usual = builder.select(builder.icmp_unsigned(">", size, constant(0x7F800000)), constant(0x7FC00000), usual)
        return builder.bitcast(builder.or_(usual, builder.and_(bits, constant(0x80000000))), floats)

    return x(x), codegen


# half_lanes(x): the value of the half nearest to every lane.
half_lanes = _through_half if vectors._HARDWARE_HALVES else _through_half_bits


@jit
def round_to_half(x: F32, offset: int) -> None:
    """Round 16 floats in place, each to the value of the half nearest to it."""
    store(x, offset, half_lanes(load_f32x16(x, offset)))


even_lanes, odd_lanes = make_shuffle(range(0, 32, 2)), make_shuffle(range(1, 32, 2))
_even_of_16, _odd_of_16 = make_shuffle(range(0, 16, 2)), make_shuffle(range(1, 16, 2))
_even_of_8, _odd_of_8 = make_shuffle(range(0, 8, 2)), make_shuffle(range(1, 8, 2))


@jit
def sums_of_fours(x: object) -> object:
    """``(x0 + x1) + (x2 + x3)`` of every four of 16 lanes: float32 x 4."""
    pairs = add(_even_of_16(x, x), _odd_of_16(x, x))
    return add(_even_of_8(pairs, pairs), _odd_of_8(pairs, pairs))


_INV_LN2, _ROUNDER = libm._INV_LN2, libm._ROUNDER
_LN2_HIGH, _LN2_LOW = libm._LN2_HIGH, libm._LN2_LOW
_E1, _E2, _E3, _E4, _E5 = libm._E1, libm._E2, libm._E3, libm._E4, libm._E5
_ZERO, _ONE, _INFINITY, _FAR, _NEAR = (np.float32(v) for v in (0, 1, np.inf, 192, 126))
_ONE_BITS, _HALF_RANGE, _BELOW = np.uint32(0x3F800000), np.uint32(0x7F000000), np.uint32(0x82000000)


@jit
def exp_lanes(x: object) -> object:
    """``reference.libm.exp_lane`` of 16 lanes; its branches are computed for all lanes and selected from."""
    z = add(multiply(x, splat_f32x16(_INV_LN2)), splat_f32x16(_ROUNDER))
    n = subtract(z, splat_f32x16(_ROUNDER))
    b = subtract(x, multiply(n, splat_f32x16(_LN2_HIGH)))
    b = subtract(b, multiply(n, splat_f32x16(_LN2_LOW)))
    exponent = shift_left(as_u32(z), 23)
    u = multiply(b, b)
    upper = multiply(add(multiply(splat_f32x16(_E5), b), splat_f32x16(_E4)), u)
    middle = add(multiply(splat_f32x16(_E3), b), splat_f32x16(_E2))
    polynomial = add(multiply(add(upper, middle), u), multiply(splat_f32x16(_E1), b))
    power = as_f32(add(exponent, splat_u32x16(_ONE_BITS)))
    usual = add(multiply(polynomial, power), power)
    zero, size = splat_f32x16(_ZERO), absolute(n)
    shift = where_greater(n, zero, splat_u32x16(np.uint32(0)), splat_u32x16(_BELOW))
    first = as_f32(add(shift, splat_u32x16(_HALF_RANGE)))
    # In lanes that do not need it the second half could be a subnormal, which costs the processor 100 cycles and more.
    second = where_greater(size, splat_f32x16(_NEAR), as_f32(subtract(exponent, shift)), splat_f32x16(_ONE))
    halves = multiply(add(multiply(second, polynomial), second), first)
    limit = where_greater(n, zero, splat_f32x16(_INFINITY), zero)
    result = where_greater(size, splat_f32x16(_NEAR), halves, usual)
    return where_greater(size, splat_f32x16(_FAR), limit, result)
