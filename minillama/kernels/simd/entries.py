"""Entries of codebooks side by side in a vector, and the signs that go with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types

from minillama.kernels.simd.lanes import u8x64
from minillama.kernels.simd.vectors import Codegen, Vector, _llvm, intrinsic
from minillama.kernels.types import I8

_INDEX = ir.IntType(32)
_LINE = 64  # bytes


def _constant_table(builder: Any, name: str, values: I8, entry: ir.IntType) -> Any:
    """The address of a codebook, int8 [entries, values of an entry], among the module's constants."""
    found = builder.module.globals.get(name)
    if found is None:
        unsigned = values.astype("<i1").view(f"<u{entry.width // 8}").reshape(-1)
        content = ir.Constant(ir.ArrayType(entry, len(unsigned)), [int(value) for value in unsigned])
        found = ir.GlobalVariable(builder.module, content.type, name)
        found.linkage, found.global_constant, found.initializer, found.align = "internal", True, content, _LINE
    return found


def make_entries(name: str, values: Callable[[], I8], n: int) -> Any:
    """``entries(indices)``: of a tuple of indices, entries of ``n`` values of a codebook, 64 together: uint8 x 64.

    The codebook is asked for when a kernel is compiled. Indices must be below its length.
    """
    entry = ir.IntType(8 * n)

    @intrinsic
    def entries(_typing: Any, indices: Any) -> tuple[Any, Codegen]:
        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            table = _constant_table(builder, f"codebook.{name}", values(), entry)
            vector = ir.Constant(ir.VectorType(entry, 64 // n), ir.Undefined)
            for i, type_ in enumerate(indices):
                number = context.cast(builder, builder.extract_value(arguments[0], i), type_, types.int64)
                place = builder.gep(table, [ir.Constant(_INDEX, 0), number], inbounds=True)
                vector = builder.insert_element(vector, builder.load(place), ir.Constant(_INDEX, i))
            return builder.bitcast(vector, _llvm(u8x64))

        return u8x64(indices), codegen

    return entries


def _make_where(change: Callable[[Any, Any], Any]) -> Any:
    """``changed(vector, flags)``: bytes changed where a bit of a 64-bit integer is set, the lowest for the first."""

    @intrinsic
    def changed(_typing: Any, vector: Vector, flags: Any) -> tuple[Any, Codegen]:
        def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            value, bits = arguments
            is_set = builder.bitcast(bits, ir.VectorType(ir.IntType(1), 64))
            return builder.select(is_set, change(builder, value), value)

        return vector(vector, types.uint64), codegen

    return changed


negated_where = _make_where(lambda builder, value: builder.sub(ir.Constant(value.type, None), value))
less_two_where = _make_where(lambda builder, value: builder.sub(value, ir.Constant(value.type, [2] * 64)))
