"""Products with K-quants, IQ1 to IQ3 and ternary types, weights in blocks of 256 values, against Q8_K.

ggml sums Q3_K to Q6_K in eight float lanes by k mod 8 and the minimums beside them; the others in one float. Two
kernels:

- ``stream``, for few tokens: a block at a time, the eight lanes of a row in a vector. Bytes are ordered so that a
  32-bit lane holds k, k + 8, k + 16 and k + 24: sums of two fit 16 bits and are multiplied by the scales of two groups.
- ``matrix``, for many: sixteen rows are unpacked side by side, one to a lane, scales multiplied into the quants, which
  then fit 16 bits; all tokens use them. The float sums of a class k mod 8 are a vector of their own.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from minillama.gguf.constants import GGMLType
from minillama.kernels.jit import Kernel, jit
from minillama.kernels.layouts import LAYOUTS
from minillama.kernels.reference.iq import FACTOR
from minillama.kernels.simd import unpack, unpack_iq
from minillama.kernels.simd.activations import bsums_place, d_place, sums_place
from minillama.kernels.simd.dots import dot_pairs, pair_sums, zeros_f32x8, zeros_i32x4, zeros_i32x8, zeros_i32x16
from minillama.kernels.simd.lanes import (
    load_f32,
    load_i8x64,
    load_i16x32,
    narrow_i16,
    pairs_as_i16,
    prefetch_ahead,
    scatter_32,
    settled,
    splat_u8x64,
    words_as_i32,
)
from minillama.kernels.simd.tiles import ROWS, Tile, copy_rows, dot_pairs_each, store_each, transpose
from minillama.kernels.simd.vectors import (
    add,
    add_number,
    as_i8,
    lane_sum,
    load_f32x8,
    load_f32x16,
    load_i16x8,
    load_i16x16,
    make_shuffle,
    multiply,
    ordered_sum,
    splat_f32x8,
    splat_f32x16,
    store,
    subtract,
    to_f32,
    to_i16,
)
from minillama.kernels.types import F32, U8

# By type: what takes a block apart, and what it adds to the quants to make them unsigned.
UNPACK: dict[GGMLType, tuple[Kernel, int]] = unpack.UNPACK | unpack_iq.UNPACK
# Whose block is one term, not eight.
_ONE_SUM = (GGMLType.Q2_K, *unpack_iq.UNPACK)
# By which a block's sum is multiplied, and the row's, as in reference.dot.
FACTORS = {type_: (1.0, FACTOR.get(type_, 1.0)) for type_ in UNPACK} | {
    type_: (FACTOR[type_], 1.0) for type_ in (GGMLType.IQ1_S, GGMLType.IQ1_M)
}
_CLASSES = 8  # k mod 8
_BLOCK_TILE = 256 * 2 * ROWS  # bytes of a block of sixteen rows, scaled

# The float sums are in memory, so there are registers for the integers of sixteen tokens; eight were a tenth slower.
_tile = Tile(16)
TOKENS, MATRIX_TOKENS = _tile.n_tokens, _tile.n_tokens  # of a tile; from so many on, the matrix kernel
zeros_i32_tile, zeros_f32_tile, load_f32_tile = _tile.zeros_i32, _tile.zeros_f32, _tile.load_f32
for_each, splat_each_f32 = _tile.for_each, _tile.splat_each_f32

_side_by_side = make_shuffle([32 * h + lane + 8 * t for h in range(2) for lane in range(8) for t in range(4)])
_pair: list[Any] = [make_shuffle([2 * i] * 8 + [2 * i + 1] * 8) for i in range(4)]
_pair_0, _pair_1, _pair_2, _pair_3 = _pair
_lower_half, _upper_half = make_shuffle(range(8)), make_shuffle(range(8, 16))


def _make_lane_sums(offset: int) -> Kernel:
    @jit(name=f"scaled_{offset}")
    def scaled(total: object, quants: object, scales: object, other: U8, at: int) -> object:
        values = load_i8x64(other, at)
        sums = pair_sums(quants, values)
        if offset:
            sums = subtract(sums, pair_sums(splat_u8x64(np.uint8(offset)), values))
        return dot_pairs(total, sums, pairs_as_i16(scales))

    @jit(name=f"lane_sums_{offset}")
    def lane_sums(q0: object, q1: object, q2: object, q3: object, pairs: object, other: U8, at: int) -> object:
        """Eight exact sums by k mod 8 of scale times product over a block: int32 x 8."""
        first = scaled(zeros_i32x16(), q0, _pair_0(pairs, pairs), other, at)
        second = scaled(zeros_i32x16(), q1, _pair_1(pairs, pairs), other, at + 64)
        first = scaled(first, q2, _pair_2(pairs, pairs), other, at + 128)
        second = scaled(second, q3, _pair_3(pairs, pairs), other, at + 192)
        total = add(first, second)
        return add(_lower_half(total, total), _upper_half(total, total))

    return lane_sums


_WITH_MINIMUM = tuple(type_ for type_ in UNPACK if "dmin" in dict(LAYOUTS[type_].fields))


@jit
def _order(quants: object) -> object:
    quants = settled(quants)
    return _side_by_side(quants, quants)


def _make_dot_minimums(type_: GGMLType) -> Kernel:
    """The exact sum of minimums, of sixteen values or 32 each, times the sums of as many quants."""
    is_of_16 = type_ is GGMLType.Q2_K

    @jit(name=f"dot_minimums_{type_.name}")
    def dot_minimums(minimums: object, other: U8, row: int, n: int, block: int) -> np.int32:
        if is_of_16:
            sums = load_i16x16(other, row + bsums_place(n, block))
            return lane_sum(dot_pairs(zeros_i32x8(), minimums, sums))
        return lane_sum(dot_pairs(zeros_i32x4(), minimums, load_i16x8(other, row + sums_place(n, block))))

    return dot_minimums


def _make_add_block(type_: GGMLType) -> Kernel:
    """Add a block's terms to the sums of a row and token: eight by k mod 8, and one of what is not in lanes."""
    lane_sums, dot_minimums = _make_lane_sums(UNPACK[type_][1]), _make_dot_minimums(type_)
    is_one_sum, has_minimum = type_ in _ONE_SUM, type_ in _WITH_MINIMUM
    inner = np.float32(FACTORS[type_][0])

    @jit(name=f"add_block_{type_.name}")
    def add_block(sums: object, total: np.float32, unpacked: Any, other: U8, row: int, n: int, block: int) -> Any:
        q0, q1, q2, q3, pairs, low_pairs, d, dmin = unpacked
        d_other = load_f32(other, row + d_place(n, block))
        lanes = lane_sums(q0, q1, q2, q3, pairs, other, row + 256 * block)
        low = np.float32(0)
        if has_minimum:
            whole = dot_minimums(low_pairs, other, row, n, block)
            low = np.float32(np.float32(dmin * d_other) * np.float32(whole))
        if is_one_sum:
            term = np.float32(np.float32(d_other * d) * np.float32(inner * np.float32(lane_sum(lanes))))
            return sums, np.float32(total + np.float32(term - low))
        scaled = multiply(splat_f32x8(np.float32(d * d_other)), to_f32(lanes))
        return add(sums, scaled), np.float32(total - low)

    return add_block


def _make_load_block(type_: GGMLType) -> Kernel:
    unpack, size = UNPACK[type_][0], LAYOUTS[type_].type_size

    @jit(name=f"load_block_{type_.name}")
    def load_block(flat: U8, at: int) -> Any:
        """A block, its bytes side by side by k mod 8, its scales in pairs."""
        q0, q1, q2, q3, scales, mins, d, dmin = unpack(flat, at)
        for line in range(0, size, 64):
            prefetch_ahead(flat, at + line)
        return (
            _order(q0), _order(q1), _order(q2), _order(q3),
            settled(words_as_i32(narrow_i16(scales))), narrow_i16(mins), d, dmin,
        )  # fmt: skip

    return load_block


def _make_stream(type_: GGMLType) -> Kernel:
    load_block, add_block, size = _make_load_block(type_), _make_add_block(type_), LAYOUTS[type_].type_size
    outer = np.float32(FACTORS[type_][1])

    @jit(name=f"row_of_token_{type_.name}")
    def row_of_token(flat: U8, first: int, other: U8, n: int) -> np.float32:
        sums, total = zeros_f32x8(), np.float32(0)
        for block in range(n // 256):
            sums, total = add_block(sums, total, load_block(flat, first + block * size), other, 0, n, block)
        return np.float32(outer * ordered_sum(total, sums))

    @jit(name=f"row_of_tokens_{type_.name}")
    def row_of_tokens(flat: U8, first: int, other: U8, stride: int, n: int, out: F32, r: int, kept: U8) -> None:
        """As ``row_of_token`` for several, whose sums are kept in memory, every block being unpacked once."""
        n_tokens = out.shape[0]
        kept[: 32 * n_tokens] = 0
        out[:, r] = 0
        for block in range(n // 256):
            unpacked = load_block(flat, first + block * size)
            for t in range(n_tokens):
                sums = load_f32x8(kept, 32 * t)
                sums, out[t, r] = add_block(sums, out[t, r], unpacked, other, t * stride, n, block)
                store(kept, 32 * t, sums)
        for t in range(n_tokens):
            out[t, r] = np.float32(outer * ordered_sum(out[t, r], load_f32x8(kept, 32 * t)))

    @jit(name=f"stream_{type_.name}")
    def stream(weight: U8, activation: U8, n: int, out: F32, scratch: U8, start: int, stop: int) -> None:
        n_tokens, stride = activation.shape
        flat, other, row_bytes = weight.reshape(-1), activation.reshape(-1), n // 256 * size
        for r in range(start, stop):
            if n_tokens == 1:
                out[0, r] = row_of_token(flat, r * row_bytes, other, n)
            else:
                row_of_tokens(flat, r * row_bytes, other, stride, n, out, r, scratch)

    return stream


_scale_of: list[Any] = [make_shuffle([2 * g, 2 * g, 2 * g + 1, 2 * g + 1] * 8) for g in range(8)]
_scale_0, _scale_1, _scale_2, _scale_3, _scale_4, _scale_5, _scale_6, _scale_7 = _scale_of
_first_32, _last_32 = make_shuffle(range(32)), make_shuffle(range(32, 64))


@jit
def _store_scaled(staging: U8, to: int, quants: object, first_scale: object, second_scale: object) -> None:
    """Write two groups of 32 quants times their scales, in pairs k, k + 8 ordered by k mod 8."""
    quants = _order(quants)
    store(staging, to, multiply(to_i16(_first_32(quants, quants)), first_scale))
    store(staging, to + 64, multiply(to_i16(_last_32(quants, quants)), second_scale))


def _make_unpack(type_: GGMLType) -> Kernel:
    """Sixteen rows side by side: scaled quants and minimums by pairs, and the two factors."""
    (unpack_block, offset), size = UNPACK[type_], LAYOUTS[type_].type_size

    @jit(name=f"unpack_rows_{type_.name}")
    def unpack(flat: U8, first: int, n_blocks: int, staging: U8, tile: U8, mins: U8, factors: F32) -> None:
        for block in range(n_blocks):
            for r in range(ROWS):
                at = ((first + r) * n_blocks + block) * size
                q0, q1, q2, q3, scales, low, d, dmin = unpack_block(flat, at)
                q0, q1 = as_i8(add_number(q0, -offset)), as_i8(add_number(q1, -offset))
                q2, q3 = as_i8(add_number(q2, -offset)), as_i8(add_number(q3, -offset))
                s, to = settled(narrow_i16(scales)), 512 * r
                _store_scaled(staging, to, q0, _scale_0(s, s), _scale_1(s, s))
                _store_scaled(staging, to + 128, q1, _scale_2(s, s), _scale_3(s, s))
                _store_scaled(staging, to + 256, q2, _scale_4(s, s), _scale_5(s, s))
                _store_scaled(staging, to + 384, q3, _scale_6(s, s), _scale_7(s, s))
                scatter_32(mins, 512 * block + 4 * r, 64, words_as_i32(narrow_i16(low)))
                factors[2 * ROWS * block + r] = d
                factors[2 * ROWS * block + ROWS + r] = dmin
            for group in range(8):
                transpose(staging, 64 * group, 512, tile, _BLOCK_TILE * block + 1024 * group)

    return unpack


@jit
def _class_sums(whole: object, tile: U8, at: int, other: U8, pairs: int, stride: int) -> object:
    """Add the 32 products of one class: two pairs from each group of 32, of every row with those of every token."""
    for group in range(8):
        to, pair = at + 1024 * group, pairs + 8 * group
        whole = dot_pairs_each(whole, load_i16x32(tile, to), other, pair, stride)
        whole = dot_pairs_each(whole, load_i16x32(tile, to + 64), other, pair + 4, stride)
    return whole


def _make_minimum_sums(type_: GGMLType) -> Kernel:
    """As ``dot_minimums``, of the unpacked rows with all tokens of a tile."""
    is_of_16 = type_ is GGMLType.Q2_K
    n_pairs = 8 if is_of_16 else 4

    @jit(name=f"minimum_sums_{type_.name}")
    def minimum_sums(mins: U8, other: U8, row: int, stride: int, n: int, block: int) -> object:
        low, sums = zeros_i32_tile(), row + (bsums_place(n, block) if is_of_16 else sums_place(n, block))
        for i in range(n_pairs):
            low = dot_pairs_each(low, load_i16x32(mins, 512 * block + 64 * i), other, sums + 4 * i, stride)
        return to_f32(low)

    return minimum_sums


def _make_tile_of_tokens(type_: GGMLType) -> Kernel:
    """The products of the unpacked rows with ``TOKENS`` tokens."""
    is_one_sum, has_minimum = type_ in _ONE_SUM, type_ in _WITH_MINIMUM
    inner, outer = map(np.float32, FACTORS[type_])
    minimum_sums = _make_minimum_sums(type_)

    @jit(name=f"tile_of_tokens_{type_.name}")
    def products(tile: U8, mins: U8, factors: U8, sums: U8, other: U8, row: int, stride: int, n: int) -> object:
        sums[:] = 0
        totals = zeros_f32_tile()
        for block in range(n // 256):
            pairs, d_at = row + n + 512 * block, row + d_place(n, block)
            d_other = splat_each_f32(other, d_at, stride)
            scale = multiply(for_each(load_f32x16(factors, 128 * block)), d_other)
            low = zeros_f32_tile()
            if has_minimum:
                low = minimum_sums(mins, other, row, stride, n, block)
                low = multiply(multiply(for_each(load_f32x16(factors, 128 * block + 64)), d_other), low)
            whole = zeros_i32_tile()
            for c in range(_CLASSES):
                whole = _class_sums(whole, tile, _BLOCK_TILE * block + 128 * c, other, pairs + 64 * c, stride)
                if not is_one_sum:
                    at = 4 * ROWS * TOKENS * c
                    store(sums, at, add(load_f32_tile(sums, at), multiply(scale, to_f32(whole))))
                    whole = zeros_i32_tile()
            if is_one_sum:
                sum_ = multiply(for_each(splat_f32x16(inner)), to_f32(whole))
                totals = add(totals, subtract(multiply(scale, sum_), low))
            else:
                totals = subtract(totals, low)
        if not is_one_sum:
            for c in range(_CLASSES):
                totals = add(totals, load_f32_tile(sums, 4 * ROWS * TOKENS * c))
        return multiply(for_each(splat_f32x16(outer)), totals)

    return products


_STAGING, _EDGE = 512 * ROWS, 4 * ROWS * TOKENS


def _make_matrix(type_: GGMLType) -> Kernel:
    unpack, products = _make_unpack(type_), _make_tile_of_tokens(type_)

    @jit(name=f"matrix_{type_.name}")
    def matrix(weight: U8, activation: U8, n: int, out: F32, scratch: U8, start: int, stop: int) -> None:
        n_tokens, row_bytes = activation.shape
        flat, other, n_blocks = weight.reshape(-1), activation.reshape(-1), n // 256
        staging, edge, rest = scratch[:_STAGING], scratch[_STAGING : _STAGING + _EDGE], scratch[_STAGING + _EDGE :]
        sums, rest = rest[: _CLASSES * _EDGE], rest[_CLASSES * _EDGE :]
        tile, rest = rest[: _BLOCK_TILE * n_blocks], rest[_BLOCK_TILE * n_blocks :]
        mins, factors = rest[: 512 * n_blocks], rest[512 * n_blocks : 640 * n_blocks]
        for begin in range(start, stop, ROWS):
            first = min(begin, weight.shape[0] - ROWS)
            unpack(flat, first, n_blocks, staging, tile, mins, factors.view(np.float32))
            for next_token in range(0, n_tokens, TOKENS):
                token = min(next_token, n_tokens - TOKENS)
                totals = products(tile, mins, factors, sums, other, token * row_bytes, row_bytes, n)
                if begin == first and begin + ROWS <= stop:
                    store_each(out, 4 * (token * out.shape[1] + first), 4 * out.shape[1], totals)
                else:
                    store_each(edge, 0, 4 * ROWS, totals)
                    copy_rows(edge, out, token, TOKENS, first, begin, min(begin + ROWS, stop))

    return matrix


def mul_mat_scratch(n: int, n_tokens: int) -> int:
    """Bytes of scratch that the kernels need."""
    matrix = _STAGING + _EDGE + _CLASSES * _EDGE + n // 256 * (_BLOCK_TILE + 640)
    return matrix if n_tokens >= MATRIX_TOKENS else 32 * MATRIX_TOKENS


def _make_mul_mat(type_: GGMLType) -> Kernel:
    stream, matrix = _make_stream(type_), _make_matrix(type_)

    @jit(name=f"simd_mul_mat_{type_.name}")
    def mul_mat(weight: U8, activation: U8, n: int, out: F32, scratch: U8, start: int, stop: int) -> None:
        n_tokens = activation.shape[0]
        if n_tokens >= MATRIX_TOKENS and weight.shape[0] >= ROWS:
            matrix(weight, activation, n, out, scratch, start, stop)
        else:
            for t in range(0, n_tokens, MATRIX_TOKENS):
                few = min(n_tokens, t + MATRIX_TOKENS)
                stream(weight, activation[t:few], n, out[t:few], scratch, start, stop)

    return mul_mat


MUL_MAT: dict[GGMLType, Kernel] = {type_: _make_mul_mat(type_) for type_ in UNPACK}
