"""Floats to whole numbers in vector lanes, as ggml's quantization rounds them."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from minillama.kernels.simd.vectors import Codegen, Vector, _llvm, intrinsic


def _call(builder: Any, name: str, *arguments: Any) -> Any:
    type_ = arguments[0].type
    signature = ir.FunctionType(type_, [argument.type for argument in arguments])
    full = f"llvm.{name}.v{type_.count}f32"
    return builder.call(cgutils.get_or_insert_function(builder.module, signature, full), arguments)


# The largest float32 below 1/2: added to a number, it carries halves over the next whole number, and nothing less.
_ALMOST_HALF = 0.5 - 2.0**-25


@intrinsic
def round_half_away(_typing: Any, x: Vector) -> tuple[Any, Codegen]:
    """``bits.round_half_away`` of every lane, as int32, for magnitudes below 2^22."""
    whole_type = Vector(types.int32, x.lanes)

    def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        half = _call(builder, "copysign", ir.Constant(arguments[0].type, [_ALMOST_HALF] * x.lanes), arguments[0])
        return builder.fptosi(builder.fadd(arguments[0], half), _llvm(whole_type))

    return whole_type(x), codegen


@intrinsic
def nearest_int(_typing: Any, x: Vector) -> tuple[Any, Codegen]:
    """``bits.nearest_int`` of every lane: halves to even, for magnitudes below 2^22."""
    whole_type = Vector(types.int32, x.lanes)

    def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        shifted = builder.fadd(arguments[0], ir.Constant(arguments[0].type, [12582912.0] * x.lanes))
        bits = builder.bitcast(shifted, _llvm(whole_type))
        mantissa = builder.and_(bits, ir.Constant(bits.type, [0x007FFFFF] * x.lanes))
        return builder.sub(mantissa, ir.Constant(bits.type, [0x00400000] * x.lanes))

    return whole_type(x), codegen


@intrinsic
def magnitude_bits(_typing: Any, x: Vector) -> tuple[Any, Codegen]:
    """Bits of the magnitudes, which as int32 are in the order of the magnitudes themselves; NaNs are the largest."""
    bits_type = Vector(types.int32, x.lanes)

    def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        bits = builder.bitcast(arguments[0], _llvm(bits_type))
        return builder.and_(bits, ir.Constant(bits.type, [0x7FFFFFFF] * x.lanes))

    return bits_type(x), codegen


@intrinsic
def bits_of(_typing: Any, x: Vector) -> tuple[Any, Codegen]:
    """The bits of float32 lanes, as int32."""
    bits_type = Vector(types.int32, x.lanes)

    def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], _llvm(bits_type))

    return bits_type(x), codegen


def _make_choice(order: str) -> Any:
    """The larger (``">"``) or smaller (``"<"``) of two int32 lanes."""

    @intrinsic
    def choice(_typing: Any, left: Vector, right: Vector) -> tuple[Any, Codegen]:
        def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            return builder.select(builder.icmp_signed(order, *arguments), *arguments)

        return left(left, right), codegen

    return choice


larger, smaller = _make_choice(">"), _make_choice("<")


@intrinsic
def largest_lane(_typing: Any, vector: Vector) -> tuple[Any, Codegen]:
    """The largest lane of an int32 vector."""

    def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        signature = ir.FunctionType(ir.IntType(32), [_llvm(vector)])
        name = f"llvm.vector.reduce.smax.v{vector.lanes}i32"
        return builder.call(cgutils.get_or_insert_function(builder.module, signature, name), arguments)

    return types.int32(vector), codegen
