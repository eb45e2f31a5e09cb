"""SIMD vector types and operations for numba kernels.

A :class:`Vector` is an LLVM vector of a fixed number of lanes. Operations on it are LLVM instructions on whole vectors,
which LLVM lowers to what the machine has: one AVX-512 instruction, two of AVX2 or NEON, or a plain loop. Nothing is
contracted and no sum is reordered: float operations are those that are written, lane by lane.

Inside a kernel::

    x = load_f32x16(array, offset)          # offset in bytes from the array's first byte
    total = add(total, to_f64(mul(x, splat_f32x16(value))))
    store(array, offset, total)

Loads and stores take contiguous arrays of any type, assume nothing of alignment and check no bounds.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.datamodel import models
from numba.extending import intrinsic as numba_intrinsic
from numba.extending import register_model

from minillama.kernels import tiers

# What numba makes of an intrinsic is called without the first argument it is written with; types cannot say that.
intrinsic: Any = numba_intrinsic

_INDEX = ir.IntType(32)
_BYTE = ir.IntType(8)


class Vector(types.Type):
    """Numba type of a vector of ``lanes`` numbers."""

    def __init__(self, element: Any, lanes: int) -> None:
        self.element, self.lanes = element, lanes
        super().__init__(name=f"vector<{element} x {lanes}>")


def _llvm_element(element: Any) -> ir.Type:
    if isinstance(element, types.Float):
        return ir.FloatType() if element.bitwidth == 32 else ir.DoubleType()
    return ir.IntType(element.bitwidth)


def _llvm(vector: Vector) -> ir.VectorType:
    return ir.VectorType(_llvm_element(vector.element), vector.lanes)


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager: Any, vector: Vector) -> None:
        super().__init__(manager, vector, _llvm(vector))


Codegen = Callable[[Any, Any, Any, Any], Any]
i8x16, i8x32, i8x64 = Vector(types.int8, 16), Vector(types.int8, 32), Vector(types.int8, 64)
u8x16, u8x32, u8x64 = Vector(types.uint8, 16), Vector(types.uint8, 32), Vector(types.uint8, 64)
i16x8, i16x16, u16x16 = Vector(types.int16, 8), Vector(types.int16, 16), Vector(types.uint16, 16)
u8x8 = Vector(types.uint8, 8)
i32x8, i32x16 = Vector(types.int32, 8), Vector(types.int32, 16)
f32x8, f32x16, f64x16 = Vector(types.float32, 8), Vector(types.float32, 16), Vector(types.float64, 16)


def _address(context: Any, builder: Any, array_type: Any, place: Any, vector: ir.Type) -> Any:
    array, offset = place
    data = builder.bitcast(context.make_array(array_type)(context, builder, array).data, _BYTE.as_pointer())
    return builder.bitcast(builder.gep(data, [offset]), vector.as_pointer())


def _make_load(vector: Vector) -> Any:
    @intrinsic
    def load(_typing: Any, array: Any, offset: Any) -> tuple[Any, Codegen]:
        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            pointer = _address(context, builder, signature.args[0], arguments, _llvm(vector))
            value = builder.load(pointer)
            value.align = 1
            return value

        return vector(array, types.int64), codegen

    return load


load_i8x16, load_i8x32 = _make_load(i8x16), _make_load(i8x32)
load_i16x8, load_i16x16, load_u8x8 = _make_load(i16x8), _make_load(i16x16), _make_load(u8x8)
load_u8x16, load_u8x32 = _make_load(u8x16), _make_load(u8x32)
load_u16x16, load_i32x16 = _make_load(u16x16), _make_load(i32x16)
load_f32x8, load_f32x16 = _make_load(f32x8), _make_load(f32x16)


@intrinsic
def store(_typing: Any, array: Any, offset: Any, vector: Vector) -> tuple[Any, Codegen]:
    """Write a vector at a byte offset."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = _address(context, builder, signature.args[0], arguments[:2], _llvm(vector))
        builder.store(arguments[2], pointer).align = 1
        return context.get_dummy_value()

    return types.void(array, types.int64, vector), codegen


def _splat(builder: Any, value: Any, vector: Vector) -> Any:
    undefined = ir.Constant(_llvm(vector), ir.Undefined)
    first = builder.insert_element(undefined, value, ir.Constant(_INDEX, 0))
    return builder.shuffle_vector(first, undefined, _indices([0] * vector.lanes))


def _make_splat(vector: Vector) -> Any:
    @intrinsic
    def splat(_typing: Any, _value: Any) -> tuple[Any, Codegen]:
        def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            return _splat(builder, arguments[0], vector)

        return vector(vector.element), codegen

    return splat


splat_i32x8, splat_f32x8, splat_f32x16 = _make_splat(i32x8), _make_splat(f32x8), _make_splat(f32x16)
splat_f64x16, splat_u8x32 = _make_splat(f64x16), _make_splat(u8x32)


def _make_binary(integer: str, floating: str | None) -> Any:
    @intrinsic
    def operation(_typing: Any, left: Vector, right: Vector) -> tuple[Any, Codegen] | None:
        if not isinstance(left, Vector) or left != right:
            return None

        def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            name = floating if isinstance(left.element, types.Float) else integer
            return getattr(builder, name)(*arguments)  # type: ignore[arg-type]

        return left(left, right), codegen

    return operation


add, subtract, multiply = _make_binary("add", "fadd"), _make_binary("sub", "fsub"), _make_binary("mul", "fmul")
bit_or = _make_binary("or_", None)


def _make_with_number(instruction: str) -> Any:
    """``operation(vector, number)`` on integer lanes, the number being the same for all of them."""

    @intrinsic
    def operation(_typing: Any, vector: Vector, number: Any) -> tuple[Any, Codegen] | None:
        if not isinstance(vector, Vector) or not isinstance(number, types.Integer):
            return None

        def codegen(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            value = context.cast(builder, arguments[1], types.int64, vector.element)
            return getattr(builder, instruction)(arguments[0], _splat(builder, value, vector))

        return vector(vector, types.int64), codegen

    return operation


# Lanes shifted (right: zeros come in), masked, or moved by a number; LLVM folds numbers that are constants.
shift_right, shift_left = _make_with_number("lshr"), _make_with_number("shl")
keep_bits, add_number = _make_with_number("and_"), _make_with_number("add")


def _indices(lanes: Sequence[int]) -> ir.Constant:
    return ir.Constant(ir.VectorType(_INDEX, len(lanes)), list(lanes))


def make_shuffle(lanes: Sequence[int]) -> Any:
    """``shuffled(x, y)``: lane i of the result is lane ``lanes[i]`` of x followed by y."""
    chosen = tuple(lanes)

    @intrinsic
    def shuffled(_typing: Any, x: Vector, y: Vector) -> tuple[Any, Codegen] | None:
        if not isinstance(x, Vector) or x != y:
            return None

        def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            return builder.shuffle_vector(*arguments, _indices(chosen))

        return Vector(x.element, len(chosen))(x, y), codegen

    return shuffled


def _make_convert(element: Any) -> Any:
    """Lanes converted to another element type, by value; a wider integer keeps the sign of a signed one."""

    @intrinsic
    def convert(_typing: Any, vector: Vector) -> tuple[Any, Codegen]:
        target = Vector(element, vector.lanes)

        def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            if isinstance(vector.element, types.Float):
                wider = element.bitwidth > vector.element.bitwidth
                return (builder.fpext if wider else builder.fptrunc)(arguments[0], _llvm(target))
            if isinstance(element, types.Float):
                return builder.sitofp(arguments[0], _llvm(target))
            widen = builder.sext if vector.element.signed else builder.zext
            return widen(arguments[0], _llvm(target))

        return target(vector), codegen

    return convert


to_i16, to_i32, to_u32 = _make_convert(types.int16), _make_convert(types.int32), _make_convert(types.uint32)
to_f32, to_f64 = _make_convert(types.float32), _make_convert(types.float64)


def _make_cast(element: Any) -> Any:
    """The same bits as lanes of another element type of the same width."""

    @intrinsic
    def cast(_typing: Any, vector: Vector) -> tuple[Any, Codegen]:
        target = Vector(element, vector.lanes)

        def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            return builder.bitcast(arguments[0], _llvm(target))

        return target(vector), codegen

    return cast


as_i8, as_f32, as_u32 = _make_cast(types.int8), _make_cast(types.float32), _make_cast(types.uint32)


@intrinsic
def lane_sum(_typing: Any, vector: Vector) -> tuple[Any, Codegen]:
    """Sum of the lanes of an int32 vector, exact modulo 2^32."""

    def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        signature = ir.FunctionType(_llvm_element(vector.element), [_llvm(vector)])
        name = f"llvm.vector.reduce.add.v{vector.lanes}i32"
        return builder.call(cgutils.get_or_insert_function(builder.module, signature, name), arguments)

    return vector.element(vector), codegen


@intrinsic
def ordered_sum(_typing: Any, start: Any, vector: Vector) -> tuple[Any, Codegen]:
    """``start + lane 0 + lane 1 + ...`` of a float32 vector, rounded after every addition."""

    def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        single = ir.FloatType()
        signature = ir.FunctionType(single, [single, _llvm(vector)])
        name = f"llvm.vector.reduce.fadd.v{vector.lanes}f32"
        return builder.call(cgutils.get_or_insert_function(builder.module, signature, name), arguments)

    return types.float32(types.float32, vector), codegen


@intrinsic
def bits_to_lanes(_typing: Any, bits: Any) -> tuple[Any, Codegen]:
    """A 32-bit integer as 32 lanes of 0 or 1 (uint8), lowest bit first."""

    def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        flags = builder.bitcast(arguments[0], ir.VectorType(ir.IntType(1), 32))
        return builder.zext(flags, _llvm(u8x32))

    return u8x32(types.uint32), codegen


def _converts_halves() -> bool:
    """Whether the machine turns halves into floats in one instruction; it gives the same bits, NaNs included."""
    return tiers.has("f16c") or tiers.has("fullfp16") or platform.machine() in ("aarch64", "arm64")


_HARDWARE_HALVES = _converts_halves()


def _half_bits_to_float(builder: Any, bits: Any, lanes: int) -> Any:
    """LLVM code for ``bits.half_to_float`` on a vector of 16-bit integers."""
    wide, floats = _llvm(Vector(types.uint32, lanes)), _llvm(Vector(types.float32, lanes))
    if _HARDWARE_HALVES:
        return builder.fpext(builder.bitcast(bits, ir.VectorType(ir.HalfType(), lanes)), floats)

    def constant(value: int) -> ir.Constant:
        return ir.Constant(wide, [value] * lanes)

    bits = builder.zext(bits, wide)
    magnitude = builder.shl(builder.and_(bits, constant(0x7FFF)), constant(13))
    sign = builder.shl(builder.and_(bits, constant(0x8000)), constant(16))
    scaled = builder.fmul(builder.bitcast(magnitude, floats), ir.Constant(floats, [2.0**112] * lanes))
    special = builder.or_(magnitude, constant(0x7F800000))
    is_nan = builder.icmp_unsigned(">", magnitude, constant(0x0F800000))
    special = builder.select(is_nan, builder.or_(special, constant(0x00400000)), special)
    is_special = builder.icmp_unsigned(">=", magnitude, constant(0x0F800000))
    value = builder.select(is_special, special, builder.bitcast(scaled, wide))
    return builder.bitcast(builder.or_(sign, value), floats)


@intrinsic
def bytes_of(_typing: Any, low: Any, high: Any) -> tuple[Any, Codegen]:
    """The bytes of two integers of 32 or 64 bits, lowest first: uint8 x 8 or 16."""
    result = Vector(types.uint8, 2 * low.bitwidth // 8)

    def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        undefined = ir.Constant(ir.VectorType(arguments[0].type, 2), ir.Undefined)
        first = builder.insert_element(undefined, arguments[0], ir.Constant(_INDEX, 0))
        both = builder.insert_element(first, arguments[1], ir.Constant(_INDEX, 1))
        return builder.bitcast(both, _llvm(result))

    return result(low, low), codegen


@intrinsic
def halves_to_f32(_typing: Any, halves: Vector) -> tuple[Any, Codegen]:
    """Values of half-precision bits (uint16 lanes), as ``bits.half_to_float``."""

    def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return _half_bits_to_float(builder, arguments[0], halves.lanes)

    return Vector(types.float32, halves.lanes)(halves), codegen


@intrinsic
def load_half(_typing: Any, array: Any, offset: Any) -> tuple[Any, Codegen]:
    """The half at a byte offset, as float32."""
    single = ir.VectorType(ir.IntType(16), 1)

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        bits = builder.load(_address(context, builder, signature.args[0], arguments, single))
        bits.align = 1
        return builder.extract_element(_half_bits_to_float(builder, bits, 1), ir.Constant(_INDEX, 0))

    return types.float32(array, types.int64), codegen


@intrinsic
def load_half_pair(_typing: Any, array: Any, offset: Any) -> tuple[Any, Codegen]:
    """Two halves that follow each other, as float32."""
    pair, result = ir.VectorType(ir.IntType(16), 2), types.UniTuple(types.float32, 2)

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        bits = builder.load(_address(context, builder, signature.args[0], arguments, pair))
        bits.align = 1
        floats = _half_bits_to_float(builder, bits, 2)
        both = [builder.extract_element(floats, ir.Constant(_INDEX, i)) for i in range(2)]
        return context.make_tuple(builder, result, both)

    return result(array, types.int64), codegen
