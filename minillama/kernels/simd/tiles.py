"""Register tiles: sixteen rows of a weight in the lanes, times several tokens, as one wide vector.

Lane ``16 * t + r`` of a tile belongs to token t and row r. LLVM splits such a vector into registers; arithmetic on it
is that of ``simd.vectors``. Here is what treats the tokens apart: each finds its data ``stride`` bytes after the last.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from minillama.kernels.jit import jit
from minillama.kernels.simd.dots import dot_bytes_code, dot_pairs_code, make_zeros, pair_sums_code
from minillama.kernels.simd.lanes import after, joined, load_code
from minillama.kernels.simd.vectors import (
    Codegen,
    Vector,
    _address,
    _indices,
    _llvm,
    _llvm_element,
    _make_load,
    _splat,
    intrinsic,
)
from minillama.kernels.types import F32, U8

ROWS = 16  # of a weight, in the lanes
_OFFSET = ir.IntType(64)


def _tokens(tile: Vector) -> range:
    return range(tile.lanes // ROWS)


def _part(builder: Any, tile: Any, token: int) -> Any:
    return builder.shuffle_vector(
        tile, ir.Constant(tile.type, ir.Undefined), _indices(range(ROWS * token, ROWS * token + ROWS))
    )


def _make_splat_each(tile: Vector) -> Any:
    """A number of each token's for all its rows: ``splat_each(array, offset, stride)``."""
    part = Vector(tile.element, ROWS)

    @intrinsic
    def splat_each(_typing: Any, array: Any, _offset: Any, _stride: Any) -> tuple[Any, Codegen]:
        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            def number(token: int) -> Any:
                place = after(builder, arguments, token)
                return load_code(context, builder, signature.args[0], place, _llvm_element(tile.element))

            return joined(builder, [_splat(builder, number(t), part) for t in _tokens(tile)])

        return tile(array, types.int64, types.int64), codegen

    return splat_each


def _make_for_each(tile: Vector) -> Any:
    """The same sixteen numbers for every token: ``for_each(rows)``."""

    @intrinsic
    def for_each(_typing: Any, rows: Vector) -> tuple[Any, Codegen]:
        def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            return joined(builder, [arguments[0]] * len(_tokens(tile)))

        return tile(rows), codegen

    return for_each


def _four_bytes(context: Any, builder: Any, array_type: Any, place: Any, token: int, type_: Any) -> Any:
    """A token's four bytes, for every row."""
    four = load_code(context, builder, array_type, after(builder, place, token), ir.IntType(32))
    return builder.bitcast(_splat(builder, four, Vector(types.int32, ROWS)), type_)


def _make_dot_each(code: Any) -> Any:
    """``dot_each(total: tile, rows, array, offset, stride)``: a token's four bytes times those of every row, added."""

    @intrinsic
    def dot_each(_t: Any, total: Vector, rows: Vector, array: Any, _o: Any, _s: Any) -> tuple[Any, Codegen]:
        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            tile, weights, *place = arguments

            def dots(token: int) -> Any:
                same = _four_bytes(context, builder, signature.args[2], place, token, weights.type)
                return code(builder, _part(builder, tile, token), weights, same)

            return joined(builder, [dots(t) for t in _tokens(total)])

        return total(total, rows, array, types.int64, types.int64), codegen

    return dot_each


dot_bytes_each, dot_pairs_each = _make_dot_each(dot_bytes_code), _make_dot_each(dot_pairs_code)


@intrinsic
def dot_scaled_pairs_each(
    _t: Any, total: Vector, rows: Vector, scales: Vector, array: Any, _o: Any, _s: Any
) -> tuple[Any, Codegen]:
    """``dot(total: tile, rows: int8 x 64, scales: int16 x 32, array, offset, stride)``: sums of two products, scaled.

    Of a token's four unsigned bytes the first two are multiplied by the first scale of a row, the others by the second.
    A sum must fit 16 bits: quants must not be larger than 64.
    """

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        tile, weights, factors, *place = arguments

        def dots(token: int) -> Any:
            four = _four_bytes(context, builder, signature.args[3], place, token, weights.type)
            sums = pair_sums_code(builder, four, weights)
            return dot_pairs_code(builder, _part(builder, tile, token), sums, factors)

        return joined(builder, [dots(t) for t in _tokens(total)])

    return total(total, rows, scales, array, types.int64, types.int64), codegen


@intrinsic
def dot_scaled_fours_each(
    _t: Any, total: Vector, first: Vector, second: Vector, scales: Vector, array: Any, _o: Any, _p: Any, _s: Any
) -> tuple[Any, Codegen]:
    """As ``dot_scaled_pairs_each`` of sums of four: ``dot(total, first, second, scales, array, at_1, at_2, stride)``.

    Four bytes of a token at one offset belong to the first rows and scales, four at the other to the second. Their sums
    share a lane: the second is moved to its upper half, and the first added on. It is not negative, so nothing is
    borrowed: quants must be from 0 to 32.
    """

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        tile, low, high, factors, array, at_low, at_high, stride = arguments
        half = ir.Constant(ir.VectorType(ir.IntType(32), ROWS), [16] * ROWS)

        def dots(token: int) -> Any:
            part = _part(builder, tile, token)
            four = _four_bytes(context, builder, signature.args[4], (array, at_high, stride), token, high.type)
            sums = dot_bytes_code(builder, ir.Constant(part.type, None), four, high)
            four = _four_bytes(context, builder, signature.args[4], (array, at_low, stride), token, low.type)
            sums = dot_bytes_code(builder, builder.shl(sums, half), four, low)
            return dot_pairs_code(builder, part, builder.bitcast(sums, factors.type), factors)

        return joined(builder, [dots(t) for t in _tokens(total)])

    places = types.int64, types.int64, types.int64
    return total(total, first, second, scales, array, *places), codegen


@intrinsic
def store_each(_typing: Any, array: Any, _offset: Any, _stride: Any, tile: Vector) -> tuple[Any, Codegen]:
    """Write each token's sixteen numbers."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        *place, value = arguments
        for token in _tokens(tile):
            part = _part(builder, value, token)
            to = _address(context, builder, signature.args[0], after(builder, place, token), part.type)
            builder.store(part, to).align = 1
        return context.get_dummy_value()

    return types.void(array, types.int64, types.int64, tile), codegen


def _interleaved(builder: Any, rows: list[Any], width: int) -> list[Any]:
    """One stage of a transposition: exchanges the off-diagonal squares of ``width`` lanes of rows ``width`` apart."""
    out = list(rows)
    first = [i if not i & width else ROWS + i - width for i in range(ROWS)]
    second = [i + width if not i & width else ROWS + i for i in range(ROWS)]
    for i in range(ROWS):
        if not i & width:
            a, b = rows[i], rows[i + width]
            out[i] = builder.shuffle_vector(a, b, _indices(first))
            out[i + width] = builder.shuffle_vector(a, b, _indices(second))
    return out


@intrinsic
def transpose(_typing: Any, array: Any, _offset: Any, _stride: Any, out: Any, _at: Any) -> tuple[Any, Codegen]:
    """Sixteen rows of sixteen 32-bit lanes, ``stride`` bytes apart, to sixteen columns, one after another."""
    row = Vector(types.int32, ROWS)

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        *place, to, at = arguments
        rows = [
            load_code(context, builder, signature.args[0], after(builder, place, i), _llvm(row)) for i in range(ROWS)
        ]
        for width in (8, 4, 2, 1):
            rows = _interleaved(builder, rows, width)
        for i, column in enumerate(rows):
            target = after(builder, (to, at, ir.Constant(_OFFSET, 4 * ROWS)), i)
            builder.store(column, _address(context, builder, signature.args[3], target, column.type)).align = 1
        return context.get_dummy_value()

    return types.void(array, types.int64, types.int64, out, types.int64), codegen


@jit
def copy_rows(edge: U8, out: F32, token: int, n_tokens: int, first: int, start: int, stop: int) -> None:
    """Of a tile whose lanes begin at row ``first``, write rows ``start`` to ``stop``."""
    values = edge.view(np.float32)
    for t in range(n_tokens):
        for r in range(start, stop):
            out[token + t, r] = values[t * ROWS + r - first]


class Tile:
    """Operations that make tiles of so many tokens; those that take a tile see from it how many there are."""

    def __init__(self, n_tokens: int) -> None:
        i32, f32 = Vector(types.int32, ROWS * n_tokens), Vector(types.float32, ROWS * n_tokens)
        f64 = Vector(types.float64, ROWS * n_tokens)
        self.n_tokens = n_tokens
        self.zeros_i32, self.zeros_f32 = make_zeros(i32), make_zeros(f32)
        self.splat_each_i32, self.splat_each_f32 = _make_splat_each(i32), _make_splat_each(f32)
        self.for_each, self.for_each_i32 = _make_for_each(f32), _make_for_each(i32)
        self.load_f32 = _make_load(f32)
        self.load_f64, self.splat_each_f64, self.for_each_f64 = (
            _make_load(f64),
            _make_splat_each(f64),
            _make_for_each(f64),
        )
