"""Products with K-quants, IQ1 to IQ3 and ternary types, weights in blocks of 256 values, against Q8_K.

ggml sums Q3_K to Q6_K in eight float lanes by k mod 8 and the minimums beside them; the others in one float. Two
kernels:

- ``stream``, for few tokens: a block at a time, the eight lanes of a row in a vector. Bytes are ordered so that a
  32-bit lane holds k, k + 8, k + 16 and k + 24: sums of two fit 16 bits and are multiplied by the scales of two groups.
- ``matrix``, for many: sixteen rows are unpacked side by side, one to a lane, and used for all tokens. The products of
  a class k mod 8 are summed by group, in 16 bits, and multiplied by the groups' scales in pairs; the float sums of a
  class are a vector of their own. Tokens' quants are unsigned there, as they are plus 128: what a token of zeros would
  give is taken away.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from minillama.gguf.constants import GGMLType
from minillama.kernels import tiers
from minillama.kernels.bits import store_f32
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
from minillama.kernels.simd.tiles import (
    ROWS,
    Tile,
    copy_rows,
    dot_pairs_each,
    dot_scaled_fours_each,
    dot_scaled_pairs_each,
    store_each,
    transpose,
)
from minillama.kernels.simd.vectors import (
    add,
    add_number,
    lane_sum,
    load_f32x8,
    load_f32x16,
    load_i16x8,
    load_i16x16,
    load_i32x16,
    make_shuffle,
    multiply,
    ordered_sum,
    splat_f32x8,
    splat_f32x16,
    store,
    subtract,
    to_f32,
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
# Where a block of sixteen rows has its quants, scales, minimums, factors and products with zeros, in bytes.
_SCALES, _MINS, _ZEROS, _D, _DMIN = 4096, 4608, 5120, 5632, 5696
_UNPACKED = 5760
# Types whose groups of 32 have one scale, and whose quants are from 0 to 32, so that sums of four products fit 16 bits;
# where an instruction sums four.
_IN_FOURS = (GGMLType.Q4_K, GGMLType.Q5_K) if any(map(tiers.has, ("avx512vnni", "avxvnni", "dotprod"))) else ()

# The float sums are in memory, so there are registers for the integers of sixteen tokens; eight were slower.
_tile = Tile(16)
TOKENS, MATRIX_TOKENS = _tile.n_tokens, _tile.n_tokens  # of a tile; from so many on, the matrix kernel
zeros_i32_tile, zeros_f32_tile, load_f32_tile = _tile.zeros_i32, _tile.zeros_f32, _tile.load_f32
for_each, for_each_i32, splat_each_f32 = _tile.for_each, _tile.for_each_i32, _tile.splat_each_f32

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


_even_groups = make_shuffle([2 * group for group in range(8)])


def _make_class_sums(type_: GGMLType) -> Kernel:
    """Add the 32 scaled products of a class in a block, of every row with those of every token."""

    @jit(name=f"class_sums_by_fours_{type_.name}")
    def by_fours(whole: object, rows: U8, at: int, c: int, other: U8, quants: int, stride: int) -> object:
        for pair in range(4):
            group, four = at + 1024 * pair + 64 * c, quants + 64 * pair + 4 * c
            first, second = load_i8x64(rows, group), load_i8x64(rows, group + 512)
            scales = load_i16x32(rows, at + _SCALES + 64 * pair)
            whole = dot_scaled_fours_each(whole, first, second, scales, other, four, four + 32, stride)
        return whole

    @jit(name=f"class_sums_by_pairs_{type_.name}")
    def by_pairs(whole: object, rows: U8, at: int, c: int, other: U8, quants: int, stride: int) -> object:
        for group in range(8):
            four = load_i8x64(rows, at + 512 * group + 64 * c)
            scales = load_i16x32(rows, at + _SCALES + 64 * group)
            whole = dot_scaled_pairs_each(whole, four, scales, other, quants + 32 * group + 4 * c, stride)
        return whole

    return by_fours if type_ in _IN_FOURS else by_pairs


def _make_unpack(type_: GGMLType) -> Kernel:
    """Sixteen rows side by side, for one block after another."""
    (unpack_block, offset), size = UNPACK[type_], LAYOUTS[type_].type_size
    class_sums, is_in_fours = _make_class_sums(type_), type_ in _IN_FOURS

    @jit(name=f"unpack_row_{type_.name}")
    def unpack_row(flat: U8, start: int, staging: U8, r: int, rows: U8, at: int) -> None:
        q0, q1, q2, q3, scales, mins, d, dmin = unpack_block(flat, start)
        store(staging, 256 * r, _order(add_number(q0, -offset)))
        store(staging, 256 * r + 64, _order(add_number(q1, -offset)))
        store(staging, 256 * r + 128, _order(add_number(q2, -offset)))
        store(staging, 256 * r + 192, _order(add_number(q3, -offset)))
        scales = narrow_i16(scales)
        if is_in_fours:
            scales = _even_groups(scales, scales)
        scatter_32(rows, at + _SCALES + 4 * r, 64, words_as_i32(scales))
        scatter_32(rows, at + _MINS + 4 * r, 64, words_as_i32(narrow_i16(mins)))
        store_f32(rows, at + _D + 4 * r, d)
        store_f32(rows, at + _DMIN + 4 * r, dmin)

    @jit(name=f"unpack_rows_{type_.name}")
    def unpack(flat: U8, first: int, n_blocks: int, staging: U8, rows: U8) -> None:
        for block in range(n_blocks):
            at = _UNPACKED * block
            for r in range(ROWS):
                unpack_row(flat, ((first + r) * n_blocks + block) * size, staging, r, rows, at)
            for quarter in range(4):
                transpose(staging, 64 * quarter, 256, rows, at + 1024 * quarter)
        staging[:256] = 128  # a token of zeros
        for block in range(n_blocks):
            at = _UNPACKED * block
            for c in range(_CLASSES):
                of_zeros = class_sums(zeros_i32x16(), rows, at, c, staging, 0, 0)
                store(rows, at + _ZEROS + 64 * c, subtract(zeros_i32x16(), of_zeros))

    return unpack


def _make_minimum_sums(type_: GGMLType) -> Kernel:
    """As ``dot_minimums``, of the unpacked rows with all tokens of a tile."""
    is_of_16 = type_ is GGMLType.Q2_K
    n_pairs = 8 if is_of_16 else 4

    @jit(name=f"minimum_sums_{type_.name}")
    def minimum_sums(rows: U8, at: int, other: U8, row: int, stride: int, n: int, block: int) -> object:
        low, sums = zeros_i32_tile(), row + (bsums_place(n, block) if is_of_16 else sums_place(n, block))
        for i in range(n_pairs):
            low = dot_pairs_each(low, load_i16x32(rows, at + _MINS + 64 * i), other, sums + 4 * i, stride)
        return to_f32(low)

    return minimum_sums


def _make_tile_of_tokens(type_: GGMLType) -> Kernel:
    """The products of the unpacked rows with ``TOKENS`` tokens."""
    is_one_sum, has_minimum = type_ in _ONE_SUM, type_ in _WITH_MINIMUM
    inner, outer = map(np.float32, FACTORS[type_])
    class_sums, minimum_sums = _make_class_sums(type_), _make_minimum_sums(type_)

    @jit(name=f"tile_of_tokens_{type_.name}")
    def products(rows: U8, sums: U8, other: U8, row: int, stride: int, n: int) -> object:
        sums[:] = 0
        totals = zeros_f32_tile()
        for block in range(n // 256):
            at, quants = _UNPACKED * block, row + n + 256 * block
            d_other = splat_each_f32(other, row + d_place(n, block), stride)
            scale = multiply(for_each(load_f32x16(rows, at + _D)), d_other)
            low = zeros_f32_tile()
            if has_minimum:
                low = minimum_sums(rows, at, other, row, stride, n, block)
                low = multiply(multiply(for_each(load_f32x16(rows, at + _DMIN)), d_other), low)
            whole = zeros_i32_tile()
            for c in range(_CLASSES):
                whole = add(whole, for_each_i32(load_i32x16(rows, at + _ZEROS + 64 * c)))
                whole = class_sums(whole, rows, at, c, other, quants, stride)
                if not is_one_sum:
                    to = 4 * ROWS * TOKENS * c
                    store(sums, to, add(load_f32_tile(sums, to), multiply(scale, to_f32(whole))))
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


_STAGING, _EDGE = 256 * ROWS, 4 * ROWS * TOKENS


def _make_matrix(type_: GGMLType) -> Kernel:
    unpack, products = _make_unpack(type_), _make_tile_of_tokens(type_)

    @jit(name=f"matrix_{type_.name}")
    def matrix(weight: U8, activation: U8, n: int, out: F32, scratch: U8, start: int, stop: int) -> None:
        n_tokens, row_bytes = activation.shape
        flat, other, n_blocks = weight.reshape(-1), activation.reshape(-1), n // 256
        staging, edge, rest = scratch[:_STAGING], scratch[_STAGING : _STAGING + _EDGE], scratch[_STAGING + _EDGE :]
        sums, rows = rest[: _CLASSES * _EDGE], rest[_CLASSES * _EDGE :]
        for begin in range(start, stop, ROWS):
            first = min(begin, weight.shape[0] - ROWS)
            unpack(flat, first, n_blocks, staging, rows)
            for next_token in range(0, n_tokens, TOKENS):
                token = min(next_token, n_tokens - TOKENS)
                totals = products(rows, sums, other, token * row_bytes, row_bytes, n)
                if begin == first and begin + ROWS <= stop:
                    store_each(out, 4 * (token * out.shape[1] + first), 4 * out.shape[1], totals)
                else:
                    store_each(edge, 0, 4 * ROWS, totals)
                    copy_rows(edge, out, token, TOKENS, first, begin, min(begin + ROWS, stop))

    return matrix


def mul_mat_scratch(n: int, n_tokens: int) -> int:
    """Bytes of scratch that the kernels need."""
    matrix = _STAGING + _EDGE + _CLASSES * _EDGE + n // 256 * _UNPACKED
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
