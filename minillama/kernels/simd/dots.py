"""Sums of integer products in vector lanes: one operation, lowered to what the machine has.

``dot_bytes`` and ``dot_pairs`` are exact: nothing saturates, whatever the operands.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from minillama.kernels import tiers
from minillama.kernels.simd.lanes import joined
from minillama.kernels.simd.vectors import Codegen, Vector, _indices, _llvm, intrinsic

_INTEGER = ir.IntType(32)


def _call(builder: Any, name: str, result: ir.Type, arguments: list[Any]) -> Any:
    signature = ir.FunctionType(result, [argument.type for argument in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, signature, name), arguments)


def _every(builder: Any, vector: Any, first: int, step: int) -> Any:
    """Lanes first, first + step, ... of an LLVM vector."""
    undefined = ir.Constant(vector.type, ir.Undefined)
    return builder.shuffle_vector(vector, undefined, _indices(range(first, vector.type.count, step)))


def _widened_sum(builder: Any, total: Any, products: Any, parts: int) -> Any:
    """``total`` plus neighbouring ``parts`` of the products, widened to 32 bits."""
    for part in range(parts):
        total = builder.add(total, builder.sext(_every(builder, products, part, parts), total.type))
    return total


def _by_parts(builder: Any, code: Any, lanes: int, total: Any, *others: Any) -> Any:
    """``code(builder, total, ...)`` for every ``lanes`` of the total, and what belongs to them."""
    parts = []
    for first in range(0, total.type.count, lanes):
        arguments = []
        for vector in (total, *others):
            width = vector.type.count // (total.type.count // lanes)
            at = first // lanes * width
            undefined = ir.Constant(vector.type, ir.Undefined)
            arguments.append(builder.shuffle_vector(vector, undefined, _indices(range(at, at + width))))
        parts.append(code(builder, *arguments))
    return joined(builder, parts)


def _is_whole(total: Any, lanes: int) -> bool:
    return bool(total.type.count % lanes == 0)


def _madd(builder: Any, total: Any, left: Any, right: Any) -> Any:
    """``vpmaddwd``: products of pairs do not overflow 32 bits but where all four numbers are -32768, and wrap there."""
    return builder.add(total, _call(builder, "llvm.x86.avx2.pmadd.wd", total.type, [left, right]))


def _bytes_of_pairs(builder: Any, unsigned: Any, signed: Any) -> Any:
    """Of each two bytes the first two, then the second two, as 16-bit numbers."""
    pairs = ir.VectorType(ir.IntType(16), unsigned.type.count // 2)
    eight = ir.Constant(pairs, [8] * pairs.count)
    unsigned, signed = builder.bitcast(unsigned, pairs), builder.bitcast(signed, pairs)
    low = builder.and_(unsigned, ir.Constant(pairs, [0xFF] * pairs.count))
    return (
        (low, builder.ashr(builder.shl(signed, eight), eight)),
        (builder.lshr(unsigned, eight), builder.ashr(signed, eight)),
    )


def _madd_bytes(builder: Any, total: Any, unsigned: Any, signed: Any) -> Any:
    first, second = _bytes_of_pairs(builder, unsigned, signed)
    return _madd(builder, _madd(builder, total, *first), *second)


def _neon_dot(name: str) -> Any:
    def code(builder: Any, total: Any, left: Any, right: Any) -> Any:
        return _call(builder, f"llvm.aarch64.neon.{name}.v4i32.v16i8", total.type, [total, left, right])

    return code


def _sdot_bytes(builder: Any, total: Any, unsigned: Any, signed: Any) -> Any:
    """``u * s = (u - 128) * s + 2 * (64 * s)`` of bytes, for there is only a dot of signed ones."""
    lanes, sdot = unsigned.type.count, _neon_dot("sdot")
    moved = builder.xor(unsigned, ir.Constant(unsigned.type, [0x80] * lanes))
    half = sdot(builder, ir.Constant(total.type, None), signed, ir.Constant(signed.type, [64] * lanes))
    one = ir.Constant(total.type, [1] * total.type.count)
    return sdot(builder, builder.add(total, builder.shl(half, one)), moved, signed)


def dot_bytes_code(builder: Any, total: Any, unsigned: Any, signed: Any, has: Any = tiers.has) -> Any:
    """LLVM code that adds to each 32-bit lane four products of an unsigned and a signed byte."""
    operands = (total, unsigned, signed)
    if total.type.count == 16 and has("avx512vnni"):
        return _call(builder, "llvm.x86.avx512.vpdpbusd.512", total.type, [*operands])
    if _is_whole(total, 8) and has("avxvnni"):
        return _by_parts(builder, _vpdpbusd, 8, *operands)
    if _is_whole(total, 8) and has("avx2"):
        return _by_parts(builder, _madd_bytes, 8, *operands)
    if _is_whole(total, 4) and has("dotprod"):
        return _by_parts(builder, _neon_dot("usdot") if has("i8mm") else _sdot_bytes, 4, *operands)
    # A product of an unsigned and a signed byte fits 16 bits.
    wide = ir.VectorType(ir.IntType(16), unsigned.type.count)
    products = builder.mul(builder.zext(unsigned, wide), builder.sext(signed, wide))
    return _widened_sum(builder, total, products, 4)


def _vpdpbusd(builder: Any, *operands: Any) -> Any:
    return _call(builder, "llvm.x86.avx512.vpdpbusd.256", operands[0].type, [*operands])


def dot_pairs_code(builder: Any, total: Any, left: Any, right: Any, has: Any = tiers.has) -> Any:
    """LLVM code that adds to each 32-bit lane two products of signed 16-bit integers."""
    if total.type.count == 16 and has("avx512vnni"):
        return _call(builder, "llvm.x86.avx512.vpdpwssd.512", total.type, [total, left, right])
    if _is_whole(total, 8) and has("avx2"):
        return _by_parts(builder, _madd, 8, total, left, right)
    wide = ir.VectorType(_INTEGER, left.type.count)
    return _widened_sum(builder, total, builder.mul(builder.sext(left, wide), builder.sext(right, wide)), 2)


def _vpmaddubsw(bits: str) -> Any:
    def code(builder: Any, unsigned: Any, signed: Any) -> Any:
        pairs = ir.VectorType(ir.IntType(16), unsigned.type.count // 2)
        return _call(builder, f"llvm.x86.{bits}", pairs, [unsigned, signed])

    return code


def pair_sums_code(builder: Any, unsigned: Any, signed: Any, has: Any = tiers.has) -> Any:
    """LLVM code for sums of two neighbouring products of an unsigned and a signed byte, that must fit 16 bits."""
    if unsigned.type.count == 64 and has("avx512bw"):
        return _vpmaddubsw("avx512.pmaddubs.w.512")(builder, unsigned, signed)
    if _is_whole(unsigned, 32) and has("avx2"):
        return _by_parts(builder, _vpmaddubsw("avx2.pmadd.ub.sw"), 32, unsigned, signed)
    (a, b), (c, d) = _bytes_of_pairs(builder, unsigned, signed)
    return builder.add(builder.mul(a, b), builder.mul(c, d))


@intrinsic
def pair_sums(_typing: Any, unsigned: Vector, signed: Vector) -> tuple[Any, Codegen]:
    """Sums of two neighbouring products of bytes, as int16; exact for unsigned bytes below 128."""
    result = Vector(types.int16, unsigned.lanes // 2)

    def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return pair_sums_code(builder, *arguments)

    return result(unsigned, signed), codegen


def _make_dot(code: Any) -> Any:
    @intrinsic
    def dot(_typing: Any, total: Vector, left: Vector, right: Vector) -> tuple[Any, Codegen]:
        def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            return code(builder, *arguments)

        return total(total, left, right), codegen

    return dot


# dot_bytes(total: int32 x N, unsigned: uint8 x 4N, signed: int8 x 4N); dot_pairs(total: int32 x N, int16 x 2N, same).
dot_bytes, dot_pairs = _make_dot(dot_bytes_code), _make_dot(dot_pairs_code)


@intrinsic
def sum_quads(_typing: Any, first: Vector, second: Vector, third: Vector, fourth: Vector) -> tuple[Any, Codegen]:
    """Sums of each four neighbouring lanes of four vectors, one vector's after another's."""

    def pairs(builder: Any, left: Any, right: Any) -> Any:
        lanes = 2 * left.type.count
        even, odd = (builder.shuffle_vector(left, right, _indices(range(i, lanes, 2))) for i in range(2))
        return builder.add(even, odd)

    def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        a, b, c, d = arguments
        return pairs(builder, pairs(builder, a, b), pairs(builder, c, d))

    return first(first, second, third, fourth), codegen


def make_zeros(vector: Vector) -> Any:
    """``zeros()``: a vector of zeros."""

    @intrinsic
    def zeros(_typing: Any) -> tuple[Any, Codegen]:
        def codegen(_context: Any, _builder: Any, _signature: Any, _arguments: Any) -> Any:
            return ir.Constant(_llvm(vector), None)

        return vector(), codegen

    return zeros


zeros_i32x8, zeros_i32x16 = make_zeros(Vector(types.int32, 8)), make_zeros(Vector(types.int32, 16))
zeros_i32x4, zeros_f32x8 = make_zeros(Vector(types.int32, 4)), make_zeros(Vector(types.float32, 8))
