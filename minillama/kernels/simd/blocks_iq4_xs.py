"""Products with weights of IQ4_XS, against Q8_K.

ggml's sum is one float sum over groups of 32 values, in order, of terms that do not depend on each other. The kernels
are those of :mod:`minillama.kernels.simd.blocks_32`, but that the eight groups of a block of 256 are taken together:

- ``stream``, for few tokens: the terms of sixteen rows go to memory, and are then added up row by row.
- ``matrix``, for many: sixteen rows are unpacked side by side, one to a lane, and used for all tokens.

Quants are made unsigned by adding 128; that many times the sums of the other operand's quants are taken away.
"""

from __future__ import annotations

import numpy as np

from minillama.gguf.constants import GGMLType
from minillama.kernels import layouts
from minillama.kernels.jit import Kernel, jit
from minillama.kernels.simd.activations import d_place, sums_place
from minillama.kernels.simd.blocks_32 import add_up, moved_codebook
from minillama.kernels.simd.dots import dot_bytes, sum_quads, zeros_i32x16
from minillama.kernels.simd.lanes import (
    load_f32,
    load_i8x64,
    load_u8x64,
    load_u32,
    make_look_up,
    pairs_as_i16,
    prefetch_ahead,
    scatter_32,
    splat_i32x16,
)
from minillama.kernels.simd.tiles import ROWS, Tile, copy_rows, dot_bytes_each, dot_pairs_each, store_each, transpose
from minillama.kernels.simd.vectors import (
    add,
    add_number,
    bytes_of,
    keep_bits,
    load_f32x16,
    load_half,
    load_i16x8,
    make_shuffle,
    multiply,
    shift_left,
    shift_right,
    splat_f32x8,
    store,
    subtract,
    to_f32,
    to_i32,
)
from minillama.kernels.types import F32, U8

_tile = Tile(8)
TOKENS, MATRIX_TOKENS = _tile.n_tokens, _tile.n_tokens  # of a tile; from so many on, the matrix kernel
zeros_i32_tile, zeros_f32_tile, for_each = _tile.zeros_i32, _tile.zeros_f32, _tile.for_each
splat_each_f32 = _tile.splat_each_f32

_SIZE = layouts.IQ4_XS.type_size
_D, _HIGH, _LOW, _QS = (layouts.IQ4_XS.offset(field) for field in ("d", "scales_h", "scales_l", "qs"))
_GROUPS = 8  # of 32 values, in a block
_BLOCK_TILE = 256 * ROWS  # bytes of a block of sixteen rows

_look_up = make_look_up(moved_codebook)
# Of four groups, whose nibbles are values k and k + 16: k, k + 8, k + 16 and k + 24 side by side, two groups each.
_first_groups, _last_groups = (
    make_shuffle(
        [64 * (t // 2) + 16 * g + j + 8 * (t % 2) for g in (first, first + 1) for j in range(8) for t in range(4)]
    )
    for first in (0, 2)
)
_even, _odd = make_shuffle(range(0, 16, 2)), make_shuffle(range(1, 16, 2))


@jit
def _four_groups(flat: U8, at: int) -> tuple[object, object]:
    packed = load_u8x64(flat, at)
    low, high = _look_up(keep_bits(packed, 15)), _look_up(shift_right(packed, 4))
    return _first_groups(low, high), _last_groups(low, high)


@jit
def _scales(flat: U8, at: int) -> object:
    """Eight 6-bit scales minus 32: four bits of each in one field, two in another."""
    both, low = np.uint64(load_u32(flat, at)), np.uint64(load_u32(flat, at + _LOW))
    high = both >> np.uint64(16)
    low = (low | (low << np.uint64(16))) & np.uint64(0x0000FFFF0000FFFF)
    low = (low | (low << np.uint64(8))) & np.uint64(0x00FF00FF00FF00FF)
    low = (low | (low << np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    high = (high | (high << np.uint64(24))) & np.uint64(0x000000FF000000FF)
    high = (high | (high << np.uint64(12))) & np.uint64(0x000F000F000F000F)
    high = (high | (high << np.uint64(6))) & np.uint64(0x0303030303030303)
    scales = low | (high << np.uint64(4))
    return to_f32(add_number(to_i32(bytes_of(np.uint32(scales), np.uint32(scales >> np.uint64(32)))), -32))


@jit(name="terms_IQ4_XS")
def _terms(unpacked: tuple[object, ...], other: U8, row: int, n: int, block: int) -> object:
    """The terms of a block's eight groups with one token."""
    q0, q1, q2, q3, scales, d = unpacked
    z, at = zeros_i32x16(), row + 256 * block
    fours = sum_quads(
        dot_bytes(z, q0, load_i8x64(other, at)),
        dot_bytes(z, q1, load_i8x64(other, at + 64)),
        dot_bytes(z, q2, load_i8x64(other, at + 128)),
        dot_bytes(z, q3, load_i8x64(other, at + 192)),
    )
    moved = shift_left(to_i32(load_i16x8(other, row + sums_place(n, block))), 7)
    whole = subtract(add(_even(fours, fours), _odd(fours, fours)), moved)
    both = np.float32(d * load_f32(other, row + d_place(n, block)))
    return multiply(multiply(splat_f32x8(both), scales), to_f32(whole))


@jit(name="stream_IQ4_XS")
def stream(weight: U8, activation: U8, n: int, out: F32, scratch: U8, start: int, stop: int) -> None:
    """Products with few tokens."""
    n_blocks = n // 256
    n_tokens, row_bytes = activation.shape
    flat, other = weight.reshape(-1), activation.reshape(-1)
    columns, terms = scratch[: 64 * ROWS], scratch[64 * ROWS :]
    stride = 4 * ROWS * (_GROUPS * n_blocks + 1)
    for first in range(start, stop, ROWS):
        n_rows = min(ROWS, stop - first)
        for block in range(n_rows * n_blocks):
            at = (first * n_blocks + block) * _SIZE
            q0, q1 = _four_groups(flat, at + _QS)
            q2, q3 = _four_groups(flat, at + _QS + 64)
            unpacked = q0, q1, q2, q3, _scales(flat, at), load_half(flat, at + _D)
            for line in range(0, _SIZE, 64):
                prefetch_ahead(flat, at + line)
            for t in range(n_tokens):
                term = _terms(unpacked, other, t * row_bytes, n, block % n_blocks)
                store(terms, t * stride + 4 * _GROUPS * block, term)
        for t in range(n_tokens):
            add_up(terms[t * stride : (t + 1) * stride], _GROUPS * n_blocks, columns, out[t], first, n_rows)


@jit(name="unpack_rows_IQ4_XS")
def _unpack(flat: U8, first: int, n_blocks: int, staging: U8, tile: U8, scales: U8, factors: F32) -> None:
    """Sixteen rows side by side: for every four quants of a group the bytes of each row, and each row's scales."""
    for block in range(n_blocks):
        for r in range(ROWS):
            at = ((first + r) * n_blocks + block) * _SIZE
            for half in range(2):
                near, far = _four_groups(flat, at + _QS + 64 * half)
                store(staging, 256 * r + 128 * half, near)
                store(staging, 256 * r + 128 * half + 64, far)
            scatter_32(scales, 4 * ROWS * _GROUPS * block + 4 * r, 4 * ROWS, _scales(flat, at))
            factors[ROWS * block + r] = load_half(flat, at + _D)
        for quarter in range(4):
            transpose(staging, 64 * quarter, 256, tile, _BLOCK_TILE * block + 1024 * quarter)


# Of the sums of two groups beside each other, minus 128 times the first or the second.
_MINUS_FIRST, _MINUS_SECOND = np.int32(0x0000FF80), np.int32(-0x00800000)


@jit(name="group_sums_IQ4_XS")
def _group_sums(tile: U8, at: int, other: U8, quants: int, sums: int, stride: int, moved: np.int32) -> object:
    """The sums of a group of every row with every token."""
    whole = dot_pairs_each(zeros_i32_tile(), pairs_as_i16(splat_i32x16(moved)), other, sums, stride)
    for i in range(8):
        whole = dot_bytes_each(whole, load_u8x64(tile, at + 64 * i), other, quants + 4 * i, stride)
    return to_f32(whole)


@jit(name="tile_of_tokens_IQ4_XS")
def _products(tile: U8, scales: U8, factors: U8, other: U8, row: int, stride: int, n: int) -> object:
    """The products of the unpacked rows with ``TOKENS`` tokens."""
    totals = zeros_f32_tile()
    for block in range(n // 256):
        d_other = splat_each_f32(other, row + d_place(n, block), stride)
        both = multiply(for_each(load_f32x16(factors, 4 * ROWS * block)), d_other)
        for pair in range(_GROUPS // 2):
            for second in range(2):
                group, moved = 2 * pair + second, _MINUS_SECOND if second else _MINUS_FIRST
                at, quants = _BLOCK_TILE * block + 512 * group, row + 256 * block + 32 * group
                whole = _group_sums(tile, at, other, quants, row + sums_place(n, block) + 4 * pair, stride, moved)
                scale = for_each(load_f32x16(scales, 4 * ROWS * (_GROUPS * block + group)))
                totals = add(totals, multiply(multiply(both, scale), whole))
    return totals


_STAGING, _EDGE = 256 * ROWS, 4 * ROWS * TOKENS


@jit(name="matrix_IQ4_XS")
def matrix(weight: U8, activation: U8, n: int, out: F32, scratch: U8, start: int, stop: int) -> None:
    """Products with many tokens."""
    n_tokens, row_bytes = activation.shape
    flat, other, n_blocks = weight.reshape(-1), activation.reshape(-1), n // 256
    staging, edge, rest = scratch[:_STAGING], scratch[_STAGING : _STAGING + _EDGE], scratch[_STAGING + _EDGE :]
    tile, rest = rest[: _BLOCK_TILE * n_blocks], rest[_BLOCK_TILE * n_blocks :]
    factors, rest = rest[: 4 * ROWS * n_blocks], rest[4 * ROWS * n_blocks :]
    scales = rest[: 4 * ROWS * _GROUPS * n_blocks]
    for begin in range(start, stop, ROWS):
        first = min(begin, weight.shape[0] - ROWS)
        _unpack(flat, first, n_blocks, staging, tile, scales, factors.view(np.float32))
        for next_token in range(0, n_tokens, TOKENS):
            token = min(next_token, n_tokens - TOKENS)
            totals = _products(tile, scales, factors, other, token * row_bytes, row_bytes, n)
            if begin == first and begin + ROWS <= stop:
                store_each(out, 4 * (token * out.shape[1] + first), 4 * out.shape[1], totals)
            else:
                store_each(edge, 0, 4 * ROWS, totals)
                copy_rows(edge, out, token, TOKENS, first, begin, min(begin + ROWS, stop))


def mul_mat_scratch(n: int, n_tokens: int) -> int:
    """Bytes of scratch that the kernels need."""
    n_blocks = n // 256
    if n_tokens >= MATRIX_TOKENS:
        return max(_STAGING + _EDGE + n_blocks * (_BLOCK_TILE + 4 * ROWS * (1 + _GROUPS)), _stream_scratch(n_blocks))
    return _stream_scratch(n_blocks)


def _stream_scratch(n_blocks: int) -> int:
    return 64 * ROWS + MATRIX_TOKENS * 4 * ROWS * (_GROUPS * n_blocks + 1)


@jit(name="simd_mul_mat_IQ4_XS")
def mul_mat(weight: U8, activation: U8, n: int, out: F32, scratch: U8, start: int, stop: int) -> None:
    """``ggml_vec_dot_iq4_xs_q8_K`` for rows and tokens."""
    n_tokens = activation.shape[0]
    if n_tokens >= MATRIX_TOKENS and weight.shape[0] >= ROWS:
        matrix(weight, activation, n, out, scratch, start, stop)
    else:
        for t in range(0, n_tokens, MATRIX_TOKENS):
            few = min(n_tokens, t + MATRIX_TOKENS)
            stream(weight, activation[t:few], n, out[t:few], scratch, start, stop)


MUL_MAT: dict[GGMLType, Kernel] = {GGMLType.IQ4_XS: mul_mat}
