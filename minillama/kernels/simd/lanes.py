"""Vector lanes from and to places apart in memory, made narrower, or looked at as another type."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from minillama.kernels import tiers
from minillama.kernels.simd.vectors import (
    Codegen,
    Vector,
    _address,
    _indices,
    _llvm,
    _make_load,
    _make_splat,
    _splat,
    intrinsic,
)

_BYTE, _INDEX, _OFFSET = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_GATHERED = 16

i8x64, u8x64, i16x32 = Vector(types.int8, 64), Vector(types.uint8, 64), Vector(types.int16, 32)
i32x16, u32x16 = Vector(types.int32, 16), Vector(types.uint32, 16)
load_i8x64, load_u8x64, load_i16x32 = _make_load(i8x64), _make_load(u8x64), _make_load(i16x32)
splat_i32x16, splat_i16x32, splat_u8x64 = _make_splat(i32x16), _make_splat(i16x32), _make_splat(u8x64)


def joined(builder: Any, parts: list[Any]) -> Any:
    """LLVM vectors one after another, their number a power of two."""
    while len(parts) > 1:
        lanes = _indices(range(2 * parts[0].type.count))
        parts = [builder.shuffle_vector(a, b, lanes) for a, b in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


def after(builder: Any, place: Any, index: int) -> Any:
    """Array and offset of the ``index``-th item of (array, offset, stride)."""
    array, offset, stride = place
    return array, builder.add(offset, builder.mul(stride, ir.Constant(_OFFSET, index)))


def load_code(context: Any, builder: Any, array_type: Any, place: Any, type_: ir.Type) -> Any:
    """LLVM code that loads from (array, offset), whatever the alignment."""
    value = builder.load(_address(context, builder, array_type, place, type_))
    value.align = 1
    return value


def _make_load_number(element: Any, llvm: ir.Type) -> Any:
    """``load(array, offset)``: a number at a byte offset, whatever the alignment."""

    @intrinsic
    def load(_typing: Any, array: Any, _offset: Any) -> tuple[Any, Codegen]:
        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return load_code(context, builder, signature.args[0], arguments, llvm)

        return element(array, types.int64), codegen

    return load


load_u32, load_u64 = _make_load_number(types.uint32, _INDEX), _make_load_number(types.uint64, _OFFSET)
load_f32 = _make_load_number(types.float32, ir.FloatType())


@intrinsic
def settled(_typing: Any, vector: Vector) -> tuple[Any, Codegen]:
    """The vector, as it is: shuffles before and after are not merged.

    LLVM makes of two cheap shuffles one that costs more than both (vpermt2b takes three steps, vpermb and vpermd one).
    """

    def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        if not tiers.has("avx512vbmi"):
            return arguments[0]
        nothing = ir.InlineAsm(ir.FunctionType(_llvm(vector), [_llvm(vector)]), "", "=v,0")
        return builder.call(nothing, arguments)

    return vector(vector), codegen


def _bit_matrix(shift: int, mask: int) -> int:
    """Of a byte, shifted down and masked, as vgf2p8affineqb takes it: a row of bits for every bit, the last first."""
    rows = [1 << (bit + shift) if mask >> bit & 1 and 0 <= bit + shift < 8 else 0 for bit in range(8)]
    return int.from_bytes(bytes(reversed(rows)), "little")


def make_take_bits(first: int, second: int, mask: int) -> Any:
    """``taken(bytes)``: of uint8 x 64, each shifted down by one number, in the upper half by another, and masked.

    Negative numbers shift up; both have the same sign.
    """

    def shifted_pairs(builder: Any, value: Any) -> Any:
        """Shifts of 16-bit lanes: what comes from the neighbouring byte is masked away."""
        pairs = ir.VectorType(ir.IntType(16), 32)
        counts = ir.Constant(pairs, [abs(first)] * 16 + [abs(second)] * 16)
        shift = builder.shl if min(first, second) < 0 else builder.lshr
        moved = builder.bitcast(shift(builder.bitcast(value, pairs), counts), value.type)
        return builder.and_(moved, ir.Constant(value.type, [mask] * 64))

    def affine(builder: Any, value: Any) -> Any:
        rows = [_bit_matrix(first, mask)] * 4 + [_bit_matrix(second, mask)] * 4
        matrix = builder.bitcast(ir.Constant(ir.VectorType(_OFFSET, 8), rows), value.type)
        signature = ir.FunctionType(value.type, [value.type, value.type, _BYTE])
        name = "llvm.x86.vgf2p8affineqb.512"
        function = cgutils.get_or_insert_function(builder.module, signature, name)
        return builder.call(function, [value, matrix, ir.Constant(_BYTE, 0)])

    @intrinsic
    def taken(_typing: Any, vector: Vector) -> tuple[Any, Codegen] | None:
        if vector != u8x64:
            return None

        def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            has_affine = tiers.has("gfni", "avx512bw")
            return (affine if has_affine else shifted_pairs)(builder, arguments[0])

        return vector(vector), codegen

    return taken


def _of_sixteen(builder: Any, indices: Any, table: Any) -> Any:
    """LLVM code for the entry of a table of sixteen bytes that each byte below 16 chooses."""
    if tiers.has("avx512bw"):
        signature = ir.FunctionType(indices.type, [indices.type, indices.type])
        function = cgutils.get_or_insert_function(builder.module, signature, "llvm.x86.avx512.pshuf.b.512")
        return builder.call(function, [ir.Constant(indices.type, 4 * table), indices])
    value = ir.Constant(indices.type, [table[0]] * 64)
    for i, entry in enumerate(table[1:], 1):
        is_it = builder.icmp_unsigned("==", indices, ir.Constant(indices.type, [i] * 64))
        value = builder.select(is_it, ir.Constant(indices.type, [entry] * 64), value)
    return value


def make_look_up(values: Callable[[], Sequence[int]]) -> Any:
    """``looked_up(indices)``: of uint8 x 64 below 16, bytes of a table that is asked for when compiled."""

    @intrinsic
    def looked_up(_typing: Any, indices: Vector) -> tuple[Any, Codegen]:
        def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            return _of_sixteen(builder, arguments[0], [int(value) for value in values()])

        return indices(indices), codegen

    return looked_up


@intrinsic
def gather_u32(_typing: Any, array: Any, _offset: Any, _stride: Any) -> tuple[Any, Codegen]:
    """Sixteen 32-bit integers, ``stride`` bytes apart."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        value = ir.Constant(_llvm(i32x16), ir.Undefined)
        for i in range(_GATHERED):
            place = after(builder, arguments, i)
            number = load_code(context, builder, signature.args[0], place, _INDEX)
            value = builder.insert_element(value, number, ir.Constant(_INDEX, i))
        return value

    return u32x16(array, types.int64, types.int64), codegen


@intrinsic
def gather_near_u32(_typing: Any, array: Any, _offset: Any, _stride: Any) -> tuple[Any, Codegen]:
    """As ``gather_u32``, where all bytes between the integers and eight strides of 18 or more may be read.

    A lane is blended out of eight that are loaded at once, which takes no shuffle.
    """
    eight = ir.VectorType(_INDEX, 8)

    def half(context: Any, builder: Any, array_type: Any, place: Any) -> Any:
        array, offset, stride = place
        less = builder.sub(stride, ir.Constant(_OFFSET, 4))
        value = ir.Constant(eight, ir.Undefined)
        for i in range(8):
            loaded = load_code(context, builder, array_type, after(builder, (array, offset, less), i), eight)
            value = builder.shuffle_vector(value, loaded, _indices([8 + j if j == i else j for j in range(8)]))
        return value

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, offset, stride = arguments
        second = builder.add(offset, builder.mul(stride, ir.Constant(_OFFSET, 8)))
        return joined(
            builder, [half(context, builder, signature.args[0], (array, at, stride)) for at in (offset, second)]
        )

    return u32x16(array, types.int64, types.int64), codegen


@intrinsic
def load_twice(_typing: Any, array: Any, _offset: Any) -> tuple[Any, Codegen]:
    """Thirty-two bytes, and again: uint8 x 64."""
    half = _llvm(Vector(types.uint8, 32))

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        loaded = load_code(context, builder, signature.args[0], arguments, half)
        return joined(builder, [loaded, loaded])

    return u8x64(array, types.int64), codegen


@intrinsic
def load_quarters(_typing: Any, array: Any, _offset: Any, _stride: Any) -> tuple[Any, Codegen]:
    """Four times sixteen bytes, ``stride`` bytes apart: uint8 x 64."""
    quarter = _llvm(Vector(types.uint8, 16))

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        parts = [
            load_code(context, builder, signature.args[0], after(builder, arguments, i), quarter) for i in range(4)
        ]
        return joined(builder, parts)

    return u8x64(array, types.int64, types.int64), codegen


@intrinsic
def broadcast_quarters(_typing: Any, array: Any, _offset: Any, _stride: Any) -> tuple[Any, Codegen]:
    """Four 32-bit integers, ``stride`` bytes apart, each four times: uint8 x 64."""
    quarter, bytes_ = Vector(types.uint32, 4), _llvm(u8x64)

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        numbers = [
            load_code(context, builder, signature.args[0], after(builder, arguments, i), _INDEX) for i in range(4)
        ]
        return builder.bitcast(joined(builder, [_splat(builder, number, quarter) for number in numbers]), bytes_)

    return u8x64(array, types.int64, types.int64), codegen


def make_add_where_set(first: int, number: int) -> Any:
    """``added(bytes, flags)``: ``number`` added to bytes whose flag is set.

    The flags of the 16 bytes of a quarter are bits ``first`` and on of the same quarter of the other vector.
    """
    flag_byte = [16 * quarter + (first + i) // 8 for quarter in range(4) for i in range(16)]
    flag_bit = [1 << (first + i) % 8 for quarter in range(4) for i in range(16)]

    @intrinsic
    def added(_typing: Any, vector: Vector, flags: Vector) -> tuple[Any, Codegen]:
        def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            value, bits = arguments
            bits = builder.shuffle_vector(bits, ir.Constant(bits.type, ir.Undefined), _indices(flag_byte))
            bits = builder.and_(bits, ir.Constant(bits.type, flag_bit))
            is_set = builder.icmp_unsigned("!=", bits, ir.Constant(bits.type, None))
            return builder.select(is_set, builder.add(value, ir.Constant(value.type, [number] * 64)), value)

        return vector(vector, flags), codegen

    return added


@intrinsic
def scatter_32(_typing: Any, array: Any, _offset: Any, _stride: Any, vector: Vector) -> tuple[Any, Codegen]:
    """Write 32-bit lanes ``stride`` bytes apart."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        *place, value = arguments
        for i in range(vector.lanes):
            number = builder.extract_element(value, ir.Constant(ir.IntType(32), i))
            to = _address(context, builder, signature.args[0], after(builder, place, i), number.type)
            builder.store(number, to).align = 1
        return context.get_dummy_value()

    return types.void(array, types.int64, types.int64, vector), codegen


_NEAR, _FAR = 2048, 16384  # bytes ahead


def ask_for(builder: Any, address: Any, locality: int) -> None:
    """LLVM code that asks for the cache line at an address: for the first-level cache (3) or the second (2)."""
    kind = [ir.Constant(ir.IntType(32), number) for number in (0, locality, 1)]  # to read, how near, data
    signature = ir.FunctionType(ir.VoidType(), [address.type, *(number.type for number in kind)])
    function = builder.module.globals.get("llvm.prefetch.p0") or ir.Function(
        builder.module, signature, "llvm.prefetch.p0"
    )
    builder.call(function, [address, *kind])


@intrinsic
def prefetch_ahead(_typing: Any, array: Any, _offset: Any) -> tuple[Any, Codegen]:
    """Ask for the cache lines that a kernel comes to after the one at a byte offset, if it reads on from there.

    One far ahead for the second-level cache, which has more requests on their way, and one near for the first: a tenth
    faster than one alone. The lines may lie outside the array.
    """

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, offset = arguments
        for distance, locality in ((_NEAR, 3), (_FAR, 2)):
            at = builder.add(offset, ir.Constant(_OFFSET, distance))
            ask_for(builder, _address(context, builder, signature.args[0], (array, at), _BYTE), locality)
        return context.get_dummy_value()

    return types.void(array, types.int64), codegen


@intrinsic
def prefetch(_typing: Any, array: Any, _offset: Any) -> tuple[Any, Codegen]:
    """Ask for the cache line of a byte offset, for the second-level cache; it may lie outside the array."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        ask_for(builder, _address(context, builder, signature.args[0], arguments, _BYTE), 2)
        return context.get_dummy_value()

    return types.void(array, types.int64), codegen


def _make_narrow(element: Any) -> Any:
    """The lowest bits of every lane."""

    @intrinsic
    def narrow(_typing: Any, vector: Vector) -> tuple[Any, Codegen]:
        target = Vector(element, vector.lanes)

        def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            return builder.trunc(arguments[0], _llvm(target))

        return target(vector), codegen

    return narrow


narrow_i8, narrow_u8 = _make_narrow(types.int8), _make_narrow(types.uint8)
narrow_i16, narrow_u16 = _make_narrow(types.int16), _make_narrow(types.uint16)


def _make_reinterpret(element: Any) -> Any:
    """The same bits as lanes of another width."""

    @intrinsic
    def reinterpret(_typing: Any, vector: Vector) -> tuple[Any, Codegen]:
        target = Vector(element, vector.lanes * vector.element.bitwidth // element.bitwidth)

        def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            return builder.bitcast(arguments[0], _llvm(target))

        return target(vector), codegen

    return reinterpret


bytes_as_i8, bytes_as_u8 = _make_reinterpret(types.int8), _make_reinterpret(types.uint8)
pairs_as_i16, words_as_i32 = _make_reinterpret(types.int16), _make_reinterpret(types.int32)
