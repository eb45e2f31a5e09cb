"""Products with weights of F32, F16 and BF16.

ggml's sum is one double sum over a row, in order, of products rounded to float32. No lane can take a part of it, so a
lane is a row: sixteen rows are unpacked side by side, some columns at a time, and used for all tokens.

Rows and activations are padded with zeros to whole vectors. That changes no sum: they begin at zero, and a sum that
does is never the negative zero which adding zero would change.

Products of halves are exact in float32 and in double, and are added in one step. So are those of bfloat16s, unless they
leave the range of float32: prompts look whether any could, in the weight's columns and in the tokens' rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from minillama.gguf.constants import GGMLType
from minillama.kernels.bits import bfloat_to_float, float_to_bfloat, float_to_half, half_to_float
from minillama.kernels.jit import Kernel, jit
from minillama.kernels.simd.floats import WIDE, absolute, add_exact_product, half_lanes, largest_lane, where_greater
from minillama.kernels.simd.lanes import prefetch
from minillama.kernels.simd.tiles import ROWS, Tile, transpose
from minillama.kernels.simd.vectors import (
    add,
    add_number,
    as_f32,
    as_u32,
    halves_to_f32,
    keep_bits,
    load_f32x16,
    load_u16x16,
    multiply,
    shift_left,
    shift_right,
    splat_f32x16,
    store,
    to_f64,
    to_u32,
)
from minillama.kernels.types import F32, U8

# The double sums of eight tokens are sixteen registers of AVX-512; of two, eight of AVX2.
TOKENS = 8 if WIDE == 64 else 2
_STEP = 16  # columns of the weight, unpacked at a time
_CHUNK = 256  # columns, kept near for all tokens
_SQUARE = 4 * ROWS * _STEP


@jit
def _load_halves(array: U8, at: int) -> object:
    return halves_to_f32(load_u16x16(array, at))


@jit
def _load_bfloats(array: U8, at: int) -> object:
    return as_f32(shift_left(to_u32(load_u16x16(array, at)), 16))


@jit
def _load_floats(array: U8, at: int) -> object:
    return load_f32x16(array, at)


@jit
def _half_lanes(x: object) -> object:
    return half_lanes(x)


_INFINITY = np.float32(np.inf)


@jit
def _bfloat_lanes(x: object) -> object:
    """The value of the bfloat16 nearest to every lane; infinities and NaNs stay."""
    bits = as_u32(x)
    odd = keep_bits(shift_right(bits, 16), 1)
    rounded = keep_bits(add(add_number(bits, 0x7FFF), odd), 0xFFFF0000)
    return where_greater(splat_f32x16(_INFINITY), absolute(x), as_f32(rounded), x)


@jit
def _through_half(value: np.float32) -> np.float32:
    return half_to_float(float_to_half(value))


@jit
def _through_bfloat(value: np.float32) -> np.float32:
    return bfloat_to_float(float_to_bfloat(value))


@jit
def _same(value: object) -> object:
    return value


@dataclass(frozen=True)
class Floats:
    """What tells the types apart.

    Parameters
    ----------
    size
        Bytes of a number.
    load
        ``load(array, at)``: sixteen numbers as float32 x 16.
    round_lanes, round_one
        Activations rounded to the type.
    is_exact
        Whether every product is exact in float32, so that it can be added to a double sum in one step.
    """

    size: int
    load: Kernel
    round_lanes: Kernel
    round_one: Kernel
    is_exact: bool = False

    @property
    def activation_size(self) -> int:
        """Bytes of a number of activations: a double if products are exact."""
        return 8 if self.is_exact else 4


FLOATS = {
    GGMLType.F32: Floats(4, _load_floats, _same, _same),
    GGMLType.F16: Floats(2, _load_halves, _half_lanes, _through_half, is_exact=True),
    GGMLType.BF16: Floats(2, _load_bfloats, _bfloat_lanes, _through_bfloat),
}


@jit
def _store_f32(array: U8, k: int, values: object) -> None:
    store(array, 4 * k, values)


@jit
def _store_f64(array: U8, k: int, values: object) -> None:
    store(array, 8 * k, to_f64(values))


def _make_quantize(type_: GGMLType) -> Kernel:
    """Rows rounded to the type, as floats or doubles, padded with zeros."""
    floats = FLOATS[type_]
    round_lanes, round_one = floats.round_lanes, floats.round_one
    store_lanes, dtype = (_store_f64, np.float64) if floats.is_exact else (_store_f32, np.float32)

    @jit(name=f"simd_quantize_{type_.name}")
    def quantize(x: F32, out: U8, start: int, stop: int) -> None:
        n = x.shape[1]
        for t in range(start, stop):
            row, values = out[t], x[t]
            for k in range(0, n - _STEP + 1, _STEP):
                store_lanes(row, k, round_lanes(load_f32x16(values, 4 * k)))
            rest = row.view(dtype)
            for k in range(n // _STEP * _STEP, rest.shape[0]):
                rest[k] = round_one(values[k]) if k < n else np.float32(0)

    return quantize


_LEAST, _MOST = np.float32(2.0**-60), np.float32(2.0**60)
_quantize_bf16_as_floats = _make_quantize(GGMLType.BF16)


@jit
def _double_place(stride: int) -> int:
    """Where the doubles begin in a row of BF16 of so many bytes."""
    return (stride - 8) // 12 * 4


@jit(name="simd_quantize_BF16_twice")
def quantize_bf16(x: F32, out: U8, start: int, stop: int) -> None:
    """Rows as floats and as doubles, then a double that is 1 if all of them are far from float32's limits, or 0."""
    doubles_at = _double_place(out.shape[1])
    _quantize_bf16_as_floats(x, out[:, :doubles_at], start, stop)
    for t in range(start, stop):
        floats, doubles = out[t, :doubles_at].view(np.float32), out[t, doubles_at:].view(np.float64)
        is_ordinary = True
        for k in range(floats.shape[0]):
            size = abs(floats[k])
            is_ordinary = is_ordinary and (size == 0 or _LEAST <= size <= _MOST)
            doubles[k] = floats[k]
        doubles[floats.shape[0]] = is_ordinary


QUANTIZE: dict[GGMLType, Kernel] = {
    **{type_: _make_quantize(type_) for type_ in (GGMLType.F32, GGMLType.F16)},
    GGMLType.BF16: quantize_bf16,
}


def activation_bytes(type_: GGMLType, n: int) -> int:
    """Bytes of a row of ``n`` values as ``QUANTIZE`` writes it."""
    padded = -(-n // _STEP) * _STEP
    return 12 * padded + 8 if type_ is GGMLType.BF16 else FLOATS[type_].activation_size * padded


def _make_unpack(type_: GGMLType) -> Kernel:
    """Sixteen rows side by side, column after column."""
    floats = FLOATS[type_]
    size, load = floats.size, floats.load

    @jit(name=f"unpack_square_{type_.name}")
    def unpack_square(array: U8, at: int, stride: int, staging: U8, tile: U8, k: int) -> None:
        for r in range(ROWS):
            store(staging, 4 * _STEP * r, load(array, at + r * stride))
        transpose(staging, 0, 4 * _STEP, tile, 4 * ROWS * k)

    @jit(name=f"unpack_rows_{type_.name}")
    def unpack(flat: U8, at: int, stride: int, n_rows: int, n: int, staging: U8, corner: U8, tile: U8) -> None:
        whole = n - n % _STEP if n_rows == ROWS else 0
        for k in range(0, whole, _STEP):
            if k * size % 64 == 0:
                for r in range(ROWS):
                    prefetch(flat, at + size * k + (ROWS + r) * stride)
            unpack_square(flat, at + size * k, stride, staging, tile, k)
        for k in range(whole, n, _STEP):  # copies, so that nothing after the weight is read
            corner[:] = 0
            for r in range(n_rows):
                for i in range(size * min(_STEP, n - k)):
                    corner[size * _STEP * r + i] = flat[at + size * k + r * stride + i]
            unpack_square(corner, 0, size * _STEP, staging, tile, k)

    return unpack


def _make_products(n_tokens: int, *, is_exact: bool) -> Kernel:
    """Add to the double sums in ``sums`` the products of the unpacked columns with so many tokens."""
    tile_ = Tile(n_tokens)
    load_sums = tile_.load_f64
    for_each_f32, splat_each_f32 = tile_.for_each, tile_.splat_each_f32
    for_each_f64, splat_each_f64 = tile_.for_each_f64, tile_.splat_each_f64

    @jit(name=f"products_f32_{n_tokens}")
    def products_f32(tile: U8, other: U8, at: int, stride: int, n: int, sums: U8, to: int) -> None:
        total = load_sums(sums, to)
        for k in range(n):
            weights = for_each_f32(load_f32x16(tile, 4 * ROWS * k))
            total = add(total, to_f64(multiply(weights, splat_each_f32(other, at + 4 * k, stride))))
        store(sums, to, total)

    @jit(name=f"products_f64_{n_tokens}")
    def products_f64(tile: U8, other: U8, at: int, stride: int, n: int, sums: U8, to: int) -> None:
        total = load_sums(sums, to)
        for k in range(n):
            weights = for_each_f64(to_f64(load_f32x16(tile, 4 * ROWS * k)))
            total = add_exact_product(total, weights, splat_each_f64(other, at + 8 * k, stride))
        store(sums, to, total)

    return products_f64 if is_exact else products_f32


_PRODUCTS = {
    is_exact: (_make_products(TOKENS, is_exact=is_exact), _make_products(1, is_exact=is_exact))
    for is_exact in (False, True)
}


def _make_chunk_of_tokens(type_: GGMLType) -> Kernel:
    """Add to all tokens' sums the products of the unpacked columns."""
    products, products_of_one = _PRODUCTS[FLOATS[type_].is_exact]
    activation_size = FLOATS[type_].activation_size

    @jit(name=f"chunk_of_tokens_{type_.name}")
    def chunk_of_tokens(tile: U8, activation: U8, k: int, n: int, sums: U8) -> None:
        n_tokens, stride = activation.shape
        other, whole = activation.reshape(-1), n_tokens - n_tokens % TOKENS
        for t in range(0, whole, TOKENS):
            products(tile, other, t * stride + activation_size * k, stride, n, sums, 8 * ROWS * t)
        for t in range(whole, n_tokens):
            products_of_one(tile, other, t * stride + activation_size * k, stride, n, sums, 8 * ROWS * t)

    return chunk_of_tokens


@jit
def _is_ordinary(tile: U8, n: int) -> bool:
    """Whether all unpacked numbers but zeros and NaNs are far from float32's limits."""
    least, most = splat_f32x16(np.float32(1)), splat_f32x16(np.float32(1))
    for k in range(n):
        size = absolute(load_f32x16(tile, 4 * ROWS * k))
        size = where_greater(size, splat_f32x16(np.float32(0)), size, splat_f32x16(np.float32(1)))
        least, most = where_greater(least, size, size, least), where_greater(size, most, size, most)
    smallest = -largest_lane(multiply(least, splat_f32x16(np.float32(-1))))
    return smallest >= _LEAST and largest_lane(most) <= _MOST


@jit
def _are_ordinary(activation: U8, first: int) -> bool:
    """Whether a tile's tokens are, as ``quantize_bf16`` found."""
    least = np.uint8(255)
    for t in range(first, first + TOKENS):
        least = min(least, activation[t, activation.shape[1] - 1])  # the highest byte of 1, which is 0x3F, or of 0
    return bool(least > 0)


_chunk_of_floats = _make_chunk_of_tokens(GGMLType.BF16)
_products_of_doubles = _PRODUCTS[True][0]


@jit
def _chunk_of_bfloats(tile: U8, activation: U8, k: int, n: int, sums: U8) -> None:
    """As ``chunk_of_tokens``, with doubles where that is the same."""
    n_tokens, stride = activation.shape
    other, doubles_at = activation.reshape(-1), _double_place(stride) + 8 * k
    is_ordinary = n_tokens >= TOKENS and _is_ordinary(tile, n)
    done = 0
    while is_ordinary and done + TOKENS <= n_tokens and _are_ordinary(activation, done):
        _products_of_doubles(tile, other, done * stride + doubles_at, stride, n, sums, 8 * ROWS * done)
        done += TOKENS
    if done < n_tokens:
        _chunk_of_floats(tile, activation[done:], k, n, sums[8 * ROWS * done :])


def _make_mul_mat(type_: GGMLType) -> Kernel:
    unpack, size = _make_unpack(type_), FLOATS[type_].size
    chunk_of_tokens = _chunk_of_bfloats if type_ is GGMLType.BF16 else _make_chunk_of_tokens(type_)

    @jit(name=f"simd_mul_mat_{type_.name}")
    def mul_mat(weight: U8, activation: U8, n: int, out: F32, scratch: U8, start: int, stop: int) -> None:
        n_tokens, flat = activation.shape[0], weight.reshape(-1)
        staging, corner, rest = scratch[:_SQUARE], scratch[_SQUARE : 2 * _SQUARE], scratch[2 * _SQUARE :]
        tile, rest = rest[: 4 * ROWS * _CHUNK], rest[4 * ROWS * _CHUNK :]
        sums = rest[: 8 * ROWS * n_tokens]
        for first in range(start, stop, ROWS):
            n_rows = min(ROWS, stop - first)
            sums[:] = 0
            for k in range(0, n, _CHUNK):
                count = min(_CHUNK, n - k)
                unpack(flat, size * (first * n + k), size * n, n_rows, count, staging, corner, tile)
                chunk_of_tokens(tile, activation, k, count, sums)
            totals = sums.view(np.float64)
            for t in range(n_tokens):
                for r in range(n_rows):
                    out[t, first + r] = np.float32(totals[ROWS * t + r])

    return mul_mat


MUL_MAT: dict[GGMLType, Kernel] = {type_: _make_mul_mat(type_) for type_ in FLOATS}


def mul_mat_scratch(n_tokens: int) -> int:
    """Bytes of scratch that the kernels need."""
    return 2 * _SQUARE + 4 * ROWS * _CHUNK + 8 * ROWS * n_tokens
