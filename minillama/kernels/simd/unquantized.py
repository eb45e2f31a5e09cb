"""Products with weights of F32, F16 and BF16.

ggml's sum is one double sum over a row, in order, of products rounded to float32. No lane can take a part of it, so a
lane is a row. Two kernels:

- ``stream``, for few tokens: sixteen products of each of sixteen rows go to memory, are transposed there, and are
  added up column by column.
- ``matrix``, for many: sixteen rows are unpacked side by side, one to a lane, and used for all tokens.

Products of halves have 22 bits, exact in float32 and in double: they are added in one step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from minillama.gguf.constants import GGMLType
from minillama.kernels.bits import bfloat_to_float, float_to_bfloat, float_to_half, half_to_float, load_f32, load_u16
from minillama.kernels.jit import Kernel, jit
from minillama.kernels.simd.dots import make_zeros
from minillama.kernels.simd.floats import (
    WIDE,
    absolute,
    add_exact_product,
    half_lanes,
    load_f64x16,
    splat_u32x16,
    store_first,
    where_greater,
)
from minillama.kernels.simd.lanes import prefetch_ahead
from minillama.kernels.simd.tiles import ROWS, Tile, copy_rows, store_each, transpose
from minillama.kernels.simd.vectors import (
    add,
    add_number,
    as_f32,
    as_u32,
    f64x16,
    halves_to_f32,
    keep_bits,
    load_f32x16,
    load_u16x16,
    multiply,
    shift_left,
    shift_right,
    splat_f32x16,
    store,
    to_f32,
    to_f64,
    to_u32,
)
from minillama.kernels.types import F32, U8

# The double sums of eight tokens are sixteen registers of AVX-512; of two, eight of AVX2.
_tile = Tile(8 if WIDE == 64 else 2)
TOKENS, MATRIX_TOKENS = _tile.n_tokens, _tile.n_tokens  # of a tile; from so many on, the matrix kernel
zeros_f64_tile = _tile.zeros_f64
for_each_f32, for_each_f64 = _tile.for_each, _tile.for_each_f64
splat_each_f32, splat_each_f64 = _tile.splat_each_f32, _tile.splat_each_f64
zeros_f64x16 = make_zeros(f64x16)

_COLUMNS = 16  # of the weight, taken at a time
_SQUARE = 4 * ROWS * _COLUMNS


@dataclass(frozen=True)
class Floats:
    """What tells the types apart.

    Parameters
    ----------
    size
        Bytes of a number.
    load
        ``load(array, at)``: sixteen numbers as float32 x 16.
    load_one
        ``load_one(array, at)``: one.
    is_double
        Whether activations, and weights unpacked for many tokens, are doubles.
    """

    size: int
    load: Kernel
    load_one: Kernel
    is_double: bool = False


@jit
def _load_halves(array: U8, at: int) -> object:
    return halves_to_f32(load_u16x16(array, at))


@jit
def _load_half(array: U8, at: int) -> np.float32:
    return half_to_float(load_u16(array, at))


@jit
def _load_bfloats(array: U8, at: int) -> object:
    return as_f32(shift_left(to_u32(load_u16x16(array, at)), 16))


@jit
def _load_bfloat(array: U8, at: int) -> np.float32:
    return bfloat_to_float(load_u16(array, at))


@jit
def _load_floats(array: U8, at: int) -> object:
    return load_f32x16(array, at)


FLOATS = {
    GGMLType.F32: Floats(4, _load_floats, load_f32),
    GGMLType.F16: Floats(2, _load_halves, _load_half, is_double=True),
    GGMLType.BF16: Floats(2, _load_bfloats, _load_bfloat),
}

_INFINITY = np.float32(np.inf)


@jit
def _bfloat_lanes(x: object) -> object:
    """The value of the bfloat16 nearest to every lane; infinities and NaNs stay."""
    bits = as_u32(x)
    odd = keep_bits(shift_right(bits, 16), 1)
    rounded = keep_bits(add(add_number(bits, 0x7FFF), odd), 0xFFFF0000)
    return where_greater(splat_f32x16(_INFINITY), absolute(x), as_f32(rounded), x)


@jit(name="simd_quantize_F16")
def quantize_f16(x: F32, out: U8, start: int, stop: int) -> None:
    """Halves nearest to the values, as doubles."""
    n = x.shape[1]
    for t in range(start, stop):
        row, values = out[t].view(np.float64), x[t]
        for k in range(0, n - _COLUMNS + 1, _COLUMNS):
            store(row, 8 * k, to_f64(half_lanes(load_f32x16(values, 4 * k))))
        for k in range(n // _COLUMNS * _COLUMNS, n):
            row[k] = half_to_float(float_to_half(values[k]))


@jit(name="simd_quantize_BF16")
def quantize_bf16(x: F32, out: U8, start: int, stop: int) -> None:
    """Bfloat16s nearest to the values, as float32."""
    n = x.shape[1]
    for t in range(start, stop):
        row, values = out[t].view(np.float32), x[t]
        for k in range(0, n - _COLUMNS + 1, _COLUMNS):
            store(row, 4 * k, _bfloat_lanes(load_f32x16(values, 4 * k)))
        for k in range(n // _COLUMNS * _COLUMNS, n):
            row[k] = bfloat_to_float(float_to_bfloat(values[k]))


QUANTIZE: dict[GGMLType, Kernel] = {GGMLType.F16: quantize_f16, GGMLType.BF16: quantize_bf16}


def activation_bytes(type_: GGMLType, n: int) -> int:
    """Bytes of a row of ``n`` values as ``QUANTIZE`` writes it; of F32 they are the values."""
    return (8 if FLOATS[type_].is_double else 4) * n


@jit
def _load_other_f32(other: U8, at: int) -> object:
    return load_f32x16(other, 4 * at)


@jit
def _load_other_f64(other: U8, at: int) -> object:
    return to_f32(load_f64x16(other, 8 * at))


def _make_squares(type_: GGMLType) -> tuple[Kernel, Kernel]:
    """Sixteen numbers of up to sixteen rows to memory, and their products with a token's; the last ones one by one."""
    floats = FLOATS[type_]
    size, load, load_one = floats.size, floats.load, floats.load_one
    load_other, dtype = (_load_other_f64, np.float64) if floats.is_double else (_load_other_f32, np.float32)

    @jit(name=f"square_{type_.name}", borrows=True)
    def square(flat: U8, at: int, row_bytes: int, n_rows: int, count: int, staging: U8) -> None:
        if count == _COLUMNS and n_rows == ROWS:
            for r in range(ROWS):
                store(staging, 4 * _COLUMNS * r, load(flat, at + r * row_bytes))
        else:
            values = staging.view(np.float32)
            for r in range(n_rows):
                for i in range(count):
                    values[_COLUMNS * r + i] = load_one(flat, at + r * row_bytes + size * i)

    @jit(name=f"products_{type_.name}", borrows=True)
    def products(
        flat: U8, at: int, row_bytes: int, n_rows: int, other: U8, k: int, count: int, staging: U8
    ) -> None:  # fmt: skip
        if count == _COLUMNS and n_rows == ROWS:
            x = load_other(other, k)
            for r in range(ROWS):
                store(staging, 4 * _COLUMNS * r, multiply(load(flat, at + r * row_bytes), x))
        else:
            values, numbers = staging.view(np.float32), other.view(dtype)
            for r in range(n_rows):
                for i in range(count):
                    weight = load_one(flat, at + r * row_bytes + size * i)
                    values[_COLUMNS * r + i] = np.float32(weight * np.float32(numbers[k + i]))

    return square, products


def _make_stream(type_: GGMLType) -> Kernel:
    (_, products), size = _make_squares(type_), FLOATS[type_].size

    @jit(name=f"rows_of_token_{type_.name}", borrows=True)
    def rows_of_token(flat: U8, first: int, n_rows: int, other: U8, n: int, staging: U8, columns: U8) -> object:
        """The products of up to sixteen rows with one token."""
        total, row_bytes = zeros_f64x16(), size * n
        for k in range(0, n, _COLUMNS):
            count = min(_COLUMNS, n - k)
            products(flat, (first * n + k) * size, row_bytes, n_rows, other, k, count, staging)
            transpose(staging, 0, 4 * _COLUMNS, columns, 0)
            if count == _COLUMNS:
                for i in range(_COLUMNS):
                    total = add(total, to_f64(load_f32x16(columns, 4 * ROWS * i)))
            else:
                for i in range(count):
                    total = add(total, to_f64(load_f32x16(columns, 4 * ROWS * i)))
        return total

    @jit(name=f"stream_{type_.name}")
    def stream(weight: U8, activation: U8, n: int, out: F32, scratch: U8, start: int, stop: int) -> None:
        flat, staging, columns = weight.reshape(-1), scratch[:_SQUARE], scratch[_SQUARE : 2 * _SQUARE]
        for first in range(start, stop, ROWS):
            n_rows = min(ROWS, stop - first)
            staging[:] = 0  # what is in rows that are not there is added up too
            for t in range(activation.shape[0]):
                total = rows_of_token(flat, first, n_rows, activation[t], n, staging, columns)
                store_first(out[t], 4 * first, n_rows, to_f32(total))

    return stream


def _make_unpack(type_: GGMLType) -> Kernel:
    """Sixteen rows side by side, number after number."""
    (square, _), size, is_double = _make_squares(type_), FLOATS[type_].size, FLOATS[type_].is_double

    @jit(name=f"unpack_rows_{type_.name}", borrows=True)
    def unpack(flat: U8, first: int, n: int, staging: U8, columns: U8, tile: U8) -> None:
        for k in range(0, n, _COLUMNS):
            count = min(_COLUMNS, n - k)
            square(flat, (first * n + k) * size, size * n, ROWS, count, staging)
            if not is_double:
                transpose(staging, 0, 4 * _COLUMNS, tile, 4 * ROWS * k)
                continue
            transpose(staging, 0, 4 * _COLUMNS, columns, 0)
            for i in range(count):
                store(tile, 8 * ROWS * (k + i), to_f64(load_f32x16(columns, 4 * ROWS * i)))

    return unpack


@jit(borrows=True)
def _products_f32(tile: U8, other: U8, row: int, stride: int, n: int) -> object:
    """The products of the unpacked rows with ``TOKENS`` tokens."""
    totals = zeros_f64_tile()
    for k in range(n):
        terms = multiply(for_each_f32(load_f32x16(tile, 4 * ROWS * k)), splat_each_f32(other, row + 4 * k, stride))
        totals = add(totals, to_f64(terms))
    return totals


@jit(borrows=True)
def _products_f64(tile: U8, other: U8, row: int, stride: int, n: int) -> object:
    """As ``_products_f32``, of halves as doubles."""
    totals = zeros_f64_tile()
    for k in range(n):
        weights = for_each_f64(load_f64x16(tile, 8 * ROWS * k))
        totals = add_exact_product(totals, weights, splat_each_f64(other, row + 8 * k, stride))
    return totals


def _make_matrix(type_: GGMLType) -> Kernel:
    unpack, products = _make_unpack(type_), _products_f64 if FLOATS[type_].is_double else _products_f32

    @jit(name=f"matrix_{type_.name}")
    def matrix(weight: U8, activation: U8, n: int, out: F32, scratch: U8, start: int, stop: int) -> None:
        n_tokens, row_bytes = activation.shape
        flat, other = weight.reshape(-1), activation.reshape(-1)
        staging, columns, rest = scratch[:_SQUARE], scratch[_SQUARE : 2 * _SQUARE], scratch[2 * _SQUARE :]
        edge, tile = rest[: 4 * ROWS * TOKENS], rest[4 * ROWS * TOKENS :]
        for begin in range(start, stop, ROWS):
            first = min(begin, weight.shape[0] - ROWS)
            unpack(flat, first, n, staging, columns, tile)
            for next_token in range(0, n_tokens, TOKENS):
                token = min(next_token, n_tokens - TOKENS)
                totals = to_f32(products(tile, other, token * row_bytes, row_bytes, n))
                if begin == first and begin + ROWS <= stop:
                    store_each(out, 4 * (token * out.shape[1] + first), 4 * out.shape[1], totals)
                else:
                    store_each(edge, 0, 4 * ROWS, totals)
                    copy_rows(edge, out, token, TOKENS, first, begin, min(begin + ROWS, stop))

    return matrix


def mul_mat_scratch(type_: GGMLType, n: int, n_tokens: int) -> int:
    """Bytes of scratch that the kernels need."""
    if n_tokens < MATRIX_TOKENS:
        return 2 * _SQUARE
    padded = -(-n // _COLUMNS) * _COLUMNS
    return 2 * _SQUARE + 4 * ROWS * TOKENS + ROWS * activation_bytes(type_, padded)


def _make_mul_mat(type_: GGMLType) -> Kernel:
    stream, matrix = _make_stream(type_), _make_matrix(type_)

    @jit(name=f"simd_mul_mat_{type_.name}")
    def mul_mat(weight: U8, activation: U8, n: int, out: F32, scratch: U8, start: int, stop: int) -> None:
        if activation.shape[0] >= MATRIX_TOKENS and weight.shape[0] >= ROWS:
            matrix(weight, activation, n, out, scratch, start, stop)
        else:
            stream(weight, activation, n, out, scratch, start, stop)

    return mul_mat


MUL_MAT: dict[GGMLType, Kernel] = {type_: _make_mul_mat(type_) for type_ in FLOATS}
