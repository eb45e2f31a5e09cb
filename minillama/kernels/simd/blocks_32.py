"""Products with weights in blocks of 32 values, against Q8_0 and Q8_1.

ggml's sum is one float sum over the blocks of a row, in order, of terms that do not depend on each other. Two kernels
compute it, with the same bits:

- ``stream``, for few tokens: rows lie one after another, so several are one stream of blocks, of which sixteen are
  taken at a time, across the rows' ends. Their terms go to memory, and are then added up row by row.
- ``matrix``, for many: sixteen rows are unpacked side by side, one to a lane, and used for all tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from minillama.gguf.constants import GGMLType
from minillama.kernels import layouts
from minillama.kernels.jit import Kernel, jit
from minillama.kernels.layouts import BlockLayout
from minillama.kernels.reference.codebooks import codebook
from minillama.kernels.reference.float4 import doubled_e2m1
from minillama.kernels.scratch import copy_bytes
from minillama.kernels.simd.activations import OFFSETS, padded_blocks
from minillama.kernels.simd.dots import dot_bytes, make_zeros, sum_quads, zeros_i32x16
from minillama.kernels.simd.floats import store_first
from minillama.kernels.simd.lanes import (
    broadcast_quarters,
    gather_near_u32,
    gather_u32,
    load_i8x64,
    load_quarters,
    load_u8x64,
    make_add_where_set,
    make_look_up,
    narrow_u16,
    prefetch_ahead,
)
from minillama.kernels.simd.tiles import ROWS, Tile, copy_rows, dot_bytes_each, store_each, transpose
from minillama.kernels.simd.vectors import (
    add,
    add_number,
    as_f32,
    f32x16,
    halves_to_f32,
    keep_bits,
    load_f32x16,
    load_i32x16,
    multiply,
    shift_left,
    shift_right,
    store,
    subtract,
    to_f32,
)
from minillama.kernels.types import F32, U8

# Eight tokens are eight integer and eight float registers; more were slower.
_tile = Tile(8)
TOKENS, MATRIX_TOKENS = _tile.n_tokens, _tile.n_tokens  # of a tile; from so many on, the matrix kernel
zeros_i32_tile, zeros_f32_tile, for_each = _tile.zeros_i32, _tile.zeros_f32, _tile.for_each
splat_each_i32, splat_each_f32 = _tile.splat_each_i32, _tile.splat_each_f32

STREAM_ROWS = 16  # whose terms are added up side by side
_STEP = 16  # blocks
_GROUP = 4  # blocks unpacked at a time
_GROUP_BYTES = _GROUP * 32 * ROWS
_LARGEST_BLOCK = 34
zeros_f32x16 = make_zeros(f32x16)


@jit
def _half_scales(both: object) -> tuple[object, object]:
    """A half and the half after it."""
    return halves_to_f32(narrow_u16(both)), halves_to_f32(narrow_u16(shift_right(both, 16)))


@jit
def _exponent_scales(both: object) -> tuple[object, object]:
    """As ``reference.float4.half_of_e8m0``, which may be subnormal: a product of two powers of two that are not."""
    exponents = keep_bits(both, 0xFF)
    half = shift_right(exponents, 1)
    first = as_f32(shift_left(add_number(half, 63), 23))
    d = multiply(first, as_f32(shift_left(add_number(subtract(exponents, half), 63), 23)))
    return d, d


@dataclass(frozen=True)
class Blocks32:
    """What tells types of 32 values apart.

    Parameters
    ----------
    layout
        Where the fields are.
    load_group
        ``load_group(array, at)``: quants 0 to 15 of four blocks, and quants 16 to 31, as uint8 x 64.
    offset
        What was added to the quants to make them unsigned.
    term
        ``term(d, m, d_other, s_other, whole)`` of a block, in lanes.
    scales
        ``scales(both)``: of sixteen blocks' first 32 bits, the scale and what may be a minimum, as float32 x 16.
    """

    layout: BlockLayout
    load_group: Kernel
    offset: int
    term: Kernel
    scales: Kernel


def _make_nibbles(layout: BlockLayout) -> Kernel:
    at_qs, size = layout.offset("qs"), layout.type_size

    @jit(name=f"load_nibbles_{layout.type.name}")
    def load_group(array: U8, at: int) -> tuple[object, object]:
        packed = load_quarters(array, at + at_qs, size)
        return keep_bits(packed, 15), shift_right(packed, 4)

    return load_group


_add_low_fifth, _add_high_fifth = make_add_where_set(0, 16), make_add_where_set(16, 16)


def _make_looked_up(layout: BlockLayout, values: Callable[[], Sequence[int]]) -> Kernel:
    """Nibbles that are indices into a table of unsigned bytes."""
    nibbles, look_up = _make_nibbles(layout), make_look_up(values)

    @jit(name=f"load_looked_up_{layout.type.name}")
    def load_group(array: U8, at: int) -> tuple[object, object]:
        low, high = nibbles(array, at)
        return look_up(low), look_up(high)

    return load_group


def _make_five_bits(layout: BlockLayout) -> Kernel:
    nibbles, at_qh, size = _make_nibbles(layout), layout.offset("qh"), layout.type_size

    @jit(name=f"load_five_bits_{layout.type.name}")
    def load_group(array: U8, at: int) -> tuple[object, object]:
        low, high = nibbles(array, at)
        flags = broadcast_quarters(array, at + at_qh, size)
        return _add_low_fifth(low, flags), _add_high_fifth(high, flags)

    return load_group


_Q8_0_QS, _Q8_0_SIZE = layouts.Q8_0.offset("qs"), layouts.Q8_0.type_size


@jit
def _load_bytes(array: U8, at: int) -> tuple[object, object]:
    low = load_quarters(array, at + _Q8_0_QS, _Q8_0_SIZE)
    return add_number(low, 128), add_number(load_quarters(array, at + _Q8_0_QS + 16, _Q8_0_SIZE), 128)


@jit
def _sum_first_term(d: object, _m: object, d_other: object, _s_other: object, whole: object) -> object:
    """As ``reference.dot_q8_0.sum_first_term``."""
    return multiply(multiply(whole, d), d_other)


@jit
def _scale_first_term(d: object, _m: object, d_other: object, _s_other: object, whole: object) -> object:
    """As ``reference.dot_q8_0.scale_first_term``."""
    return multiply(multiply(d, d_other), whole)


@jit
def _minimum_term(d: object, m: object, d_other: object, s_other: object, whole: object) -> object:
    """As ``reference.dot_q8_0.MINIMUM_TERM``."""
    return add(multiply(multiply(d, d_other), whole), multiply(m, s_other))


def moved_codebook() -> list[int]:
    """The values of IQ4_NL and IQ4_XS plus 128."""
    return [int(value) + 128 for value in codebook("IQ4_NL")]


def _moved_floats() -> list[int]:
    return [int(doubled_e2m1(np.int32(code))) + 16 for code in range(16)]


BLOCKS: dict[GGMLType, Blocks32] = {
    blocks.layout.type: blocks
    for blocks in (
        Blocks32(layouts.Q4_0, _make_nibbles(layouts.Q4_0), 8, _sum_first_term, _half_scales),
        Blocks32(layouts.Q4_1, _make_nibbles(layouts.Q4_1), 0, _minimum_term, _half_scales),
        Blocks32(layouts.Q5_0, _make_five_bits(layouts.Q5_0), 16, _scale_first_term, _half_scales),
        Blocks32(layouts.Q5_1, _make_five_bits(layouts.Q5_1), 0, _minimum_term, _half_scales),
        Blocks32(layouts.Q8_0, _load_bytes, 128, _scale_first_term, _half_scales),
        Blocks32(layouts.IQ4_NL, _make_looked_up(layouts.IQ4_NL, moved_codebook), 128, _scale_first_term, _half_scales),
        Blocks32(layouts.MXFP4, _make_looked_up(layouts.MXFP4, _moved_floats), 16, _scale_first_term, _exponent_scales),
    )
}


@jit
def add_up(terms: U8, n_blocks: int, columns: U8, out: F32, first: int, n_rows: int) -> None:
    """Sum the terms of up to sixteen rows, each in the order of its blocks.

    They are transposed sixteen at a time, so that a row is a lane; what lies behind a row's terms is not added.
    """
    total = zeros_f32x16()
    for block in range(0, n_blocks, _STEP):
        transpose(terms, 4 * block, 4 * n_blocks, columns, 0)
        for i in range(min(_STEP, n_blocks - block)):
            total = add(total, load_f32x16(columns, 64 * i))
    store_first(out, 4 * first, n_rows, total)


def _make_sixteen(blocks: Blocks32, *, inline: bool) -> Kernel:
    """The terms of sixteen blocks that follow each other, for every token."""
    size, load_group, term, scales_of = blocks.layout.type_size, blocks.load_group, blocks.term, blocks.scales
    is_moved, moved_at = blocks.offset > 0, 36 + 4 * OFFSETS.index(blocks.offset) if blocks.offset else 0

    @jit(name=f"sixteen_blocks_{'inline_' * inline}{blocks.layout.type.name}", inline=inline)
    def sixteen(
        array: U8, at: int, other: U8, row_bytes: int, n_tokens: int, places: int, block: int,
        terms: U8, to: int, stride: int,
    ) -> None:  # fmt: skip
        low_0, high_0 = load_group(array, at)
        low_1, high_1 = load_group(array, at + _GROUP * size)
        low_2, high_2 = load_group(array, at + 2 * _GROUP * size)
        low_3, high_3 = load_group(array, at + 3 * _GROUP * size)
        d, m = scales_of(gather_near_u32(array, at, size))
        for line in range(0, _STEP * size, 64):
            prefetch_ahead(array, at + line)
        for t in range(n_tokens):
            row = t * row_bytes
            a, b = row + 16 * block, row + 16 * (places + block)
            z = zeros_i32x16()
            s0 = dot_bytes(dot_bytes(z, low_0, load_i8x64(other, a)), high_0, load_i8x64(other, b))
            s1 = dot_bytes(dot_bytes(z, low_1, load_i8x64(other, a + 64)), high_1, load_i8x64(other, b + 64))
            s2 = dot_bytes(dot_bytes(z, low_2, load_i8x64(other, a + 128)), high_2, load_i8x64(other, b + 128))
            s3 = dot_bytes(dot_bytes(z, low_3, load_i8x64(other, a + 192)), high_3, load_i8x64(other, b + 192))
            whole = sum_quads(s0, s1, s2, s3)
            if is_moved:
                whole = add(whole, load_i32x16(other, row + moved_at * places + 4 * block))
            d_other = load_f32x16(other, row + 32 * places + 4 * block)
            s_other = load_f32x16(other, row + 36 * places + 4 * block)
            store(terms, to + t * stride, term(d, m, d_other, s_other, to_f32(whole)))

    return sixteen


def _make_stream(blocks: Blocks32) -> Kernel:
    size, sixteen = blocks.layout.type_size, _make_sixteen(blocks, inline=False)
    sixteen_of_token = _make_sixteen(blocks, inline=True)

    @jit(name=f"sixteen_rows_{blocks.layout.type.name}")
    def sixteen_rows(flat: U8, at: int, other: U8, places: int, n_blocks: int, terms: U8) -> None:
        """The terms of sixteen rows with one token."""
        block = 0
        for step in range(n_blocks):
            sixteen_of_token(flat, at + _STEP * size * step, other, 0, 1, places, block, terms, 4 * _STEP * step, 0)
            block += _STEP
            while block >= n_blocks:
                block -= n_blocks

    @jit(name=f"stream_{blocks.layout.type.name}")
    def stream(weight: U8, activation: U8, n: int, out: F32, scratch: U8, start: int, stop: int) -> None:
        n_blocks, places = n // 32, padded_blocks(n)
        n_tokens, row_bytes = activation.shape
        flat, other = weight.reshape(-1), activation.reshape(-1)
        rest, terms = scratch[: _STEP * _LARGEST_BLOCK], scratch[_STEP * _LARGEST_BLOCK :]
        columns, terms = terms[: 64 * _STEP], terms[64 * _STEP :]
        stride = 4 * (STREAM_ROWS * n_blocks + _STEP)
        for first in range(start, stop, STREAM_ROWS):
            n_rows = min(STREAM_ROWS, stop - first)
            if n_rows == STREAM_ROWS and n_tokens == 1:
                sixteen_rows(flat, first * n_blocks * size, other, places, n_blocks, terms)
                add_up(terms, n_blocks, columns, out[0], first, n_rows)
                continue
            for block in range(0, n_rows * n_blocks, _STEP):
                at, left = (first * n_blocks + block) * size, n_rows * n_blocks - block
                if left >= _STEP:
                    sixteen(flat, at, other, row_bytes, n_tokens, places, block % n_blocks, terms, 4 * block, stride)
                else:  # a copy of the last blocks, so that nothing after them is read
                    copy_bytes(flat, at, left * size, rest, 0)
                    sixteen(rest, 0, other, row_bytes, n_tokens, places, block % n_blocks, terms, 4 * block, stride)
            for t in range(n_tokens):
                add_up(terms[t * stride : (t + 1) * stride], n_blocks, columns, out[t], first, n_rows)

    return stream


def _make_unpack(blocks: Blocks32) -> Kernel:
    """Sixteen rows side by side: for every four quants of a block the bytes of each row, and each row's scales."""
    size, load_group, scales_of = blocks.layout.type_size, blocks.load_group, blocks.scales

    @jit(name=f"unpack_rows_{blocks.layout.type.name}")
    def unpack(flat: U8, first: int, n_blocks: int, staging: U8, tile: U8, scales: U8, mins: U8) -> None:
        rest = staging[128 * ROWS :]
        for block in range(0, n_blocks, _GROUP):
            for r in range(ROWS):
                at = ((first + r) * n_blocks + block) * size
                if n_blocks - block >= _GROUP:
                    low, high = load_group(flat, at)
                else:
                    left = (n_blocks - block) * size
                    copy_bytes(flat, at, left, rest, 0)
                    low, high = load_group(rest, 0)
                store(staging, 128 * r, low)
                store(staging, 128 * r + 64, high)
            transpose(staging, 0, 128, tile, block // _GROUP * _GROUP_BYTES)
            transpose(staging, 64, 128, tile, block // _GROUP * _GROUP_BYTES + _GROUP_BYTES // 2)
        for block in range(n_blocks):
            d, m = scales_of(gather_u32(flat, (first * n_blocks + block) * size, n_blocks * size))
            store(scales, 64 * block, d)
            store(mins, 64 * block, m)

    return unpack


def _make_tile_of_tokens(blocks: Blocks32) -> Kernel:
    """The products of the unpacked rows with ``TOKENS`` tokens."""
    term = blocks.term
    is_moved, moved_at = blocks.offset > 0, 36 + 4 * OFFSETS.index(blocks.offset) if blocks.offset else 0

    @jit(name=f"tile_of_tokens_{blocks.layout.type.name}")
    def products(
        tile: U8, scales: U8, mins: U8, other: U8, row: int, stride: int, n_blocks: int, places: int
    ) -> object:
        totals = zeros_f32_tile()
        for block in range(n_blocks):
            whole = zeros_i32_tile()
            if is_moved:
                whole = splat_each_i32(other, row + moved_at * places + 4 * block, stride)
            at = block // _GROUP * _GROUP_BYTES + block % _GROUP * (4 * ROWS * 4)
            for i in range(4):
                quants = row + 16 * block + 4 * i
                whole = dot_bytes_each(whole, load_u8x64(tile, at + 64 * i), other, quants, stride)
                whole = dot_bytes_each(
                    whole, load_u8x64(tile, at + _GROUP_BYTES // 2 + 64 * i), other, quants + 16 * places, stride
                )
            d, m = for_each(load_f32x16(scales, 64 * block)), for_each(load_f32x16(mins, 64 * block))
            d_other = splat_each_f32(other, row + 32 * places + 4 * block, stride)
            s_other = splat_each_f32(other, row + 36 * places + 4 * block, stride)
            totals = add(totals, term(d, m, d_other, s_other, to_f32(whole)))
        return totals

    return products


def _make_matrix(blocks: Blocks32) -> Kernel:
    unpack, products = _make_unpack(blocks), _make_tile_of_tokens(blocks)

    @jit(name=f"matrix_{blocks.layout.type.name}")
    def matrix(weight: U8, activation: U8, n: int, out: F32, scratch: U8, start: int, stop: int) -> None:
        n_blocks, places = n // 32, padded_blocks(n)
        n_tokens, row_bytes = activation.shape
        flat, other = weight.reshape(-1), activation.reshape(-1)
        groups = -(-n_blocks // _GROUP)
        staging, rest = scratch[: 128 * ROWS + 192], scratch[128 * ROWS + 192 :]
        edge, rest = rest[: 4 * ROWS * TOKENS], rest[4 * ROWS * TOKENS :]
        tile, rest = rest[: groups * _GROUP_BYTES], rest[groups * _GROUP_BYTES :]
        scales, mins = rest[: 64 * n_blocks], rest[64 * n_blocks : 128 * n_blocks]
        for begin in range(start, stop, ROWS):
            first = min(begin, weight.shape[0] - ROWS)
            unpack(flat, first, n_blocks, staging, tile, scales, mins)
            for next_token in range(0, n_tokens, TOKENS):
                token = min(next_token, n_tokens - TOKENS)
                totals = products(tile, scales, mins, other, token * row_bytes, row_bytes, n_blocks, places)
                if begin == first and begin + ROWS <= stop:
                    store_each(out, 4 * (token * out.shape[1] + first), 4 * out.shape[1], totals)
                else:
                    store_each(edge, 0, 4 * ROWS, totals)
                    copy_rows(edge, out, token, TOKENS, first, begin, min(begin + ROWS, stop))

    return matrix


def mul_mat_scratch(n: int, n_tokens: int) -> int:
    """Bytes of scratch that the kernels need."""
    n_blocks = n // 32
    stream = _STEP * (_LARGEST_BLOCK + 64) + MATRIX_TOKENS * 4 * (STREAM_ROWS * n_blocks + _STEP)
    matrix = 128 * ROWS + 192 + 4 * ROWS * TOKENS + -(-n_blocks // _GROUP) * _GROUP_BYTES + 128 * n_blocks
    return max(stream, matrix)


def _make_mul_mat(blocks: Blocks32) -> Kernel:
    stream, matrix = _make_stream(blocks), _make_matrix(blocks)

    @jit(name=f"simd_mul_mat_{blocks.layout.type.name}")
    def mul_mat(weight: U8, activation: U8, n: int, out: F32, scratch: U8, start: int, stop: int) -> None:
        n_tokens = activation.shape[0]
        if n_tokens >= MATRIX_TOKENS and weight.shape[0] >= ROWS:
            matrix(weight, activation, n, out, scratch, start, stop)
        else:
            for t in range(0, n_tokens, MATRIX_TOKENS):
                few = min(n_tokens, t + MATRIX_TOKENS)
                stream(weight, activation[t:few], n, out[t:few], scratch, start, stop)

    return mul_mat


MUL_MAT: dict[GGMLType, Kernel] = {type_: _make_mul_mat(blocks) for type_, blocks in BLOCKS.items()}
