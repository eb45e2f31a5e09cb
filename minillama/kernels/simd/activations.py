"""The other operand of products, laid out for vector kernels: the numbers of ggml's formats, kind by kind.

Rows of Q8_0 and Q8_1, ``places`` being the blocks padded to :func:`padded_blocks`:

    first       int8 [places, 16]    quants 0 to 15 of each block
    second      int8 [places, 16]    quants 16 to 31
    d           float32 [places]     scales, rounded through half as ggml stores them
    Q8_1: s     float32 [places]     ggml's ``s``, rounded through half too
    Q8_0: moved int32 [3, places]    minus 8, 16 and 128 times the sum of the quants: products of weights whose quants
                                     were made unsigned by adding as much

After the last block the row begins again, so that sixteen blocks can be read from any.

Rows of Q8_K, of ``n`` values in blocks of 256:

    quants      int8 [n]             within each 32: k, k + 8, k + 16, k + 24 side by side
    pairs       int16 [n]            in each block by k mod 8, then in order: k, k + 8 side by side in each 16
    bsums       int16 [n / 16]       sums of 16 quants
    sums        int16 [n / 32]       and of 32
    d           float32 [n / 256]

Rows of F16 are doubles, rows of BF16 and F32 float32; see :mod:`minillama.kernels.simd.unquantized`.
"""

from __future__ import annotations

import numpy as np

from minillama.gguf.constants import GGMLType
from minillama.kernels import layouts
from minillama.kernels.bits import float_to_half, half_to_float, load_f32, store_f32, store_u16
from minillama.kernels.jit import Kernel, jit
from minillama.kernels.layouts import LAYOUTS
from minillama.kernels.reference import quantize
from minillama.kernels.scratch import copy_bytes
from minillama.kernels.simd import unquantized
from minillama.kernels.simd.lanes import narrow_i8, scatter_32, splat_i32x16, words_as_i32
from minillama.kernels.simd.rounding import (
    larger,
    largest_lane,
    magnitude_bits,
    nearest_int,
    round_half_away,
    smaller,
)
from minillama.kernels.simd.vectors import (
    add,
    lane_sum,
    load_f32x16,
    load_i8x16,
    make_shuffle,
    multiply,
    splat_f32x16,
    store,
    to_i16,
    to_i32,
)
from minillama.kernels.types import F32, U8

INFINITY_BITS = np.int32(0x7F800000)
OFFSETS = (8, 16, 128)  # what weights' quants are moved by, in the order of ``moved``


@jit
def padded_blocks(n: int) -> int:
    """Places for the blocks of 32 in a row of ``n`` values: at least 15 more than blocks, a multiple of 16."""
    return (n // 32 + 30) // 16 * 16


@jit
def bsums_place(n: int, block: int) -> int:
    """Where the sums of 16 quants of a block of Q8_K are."""
    return 3 * n + 32 * block


@jit
def sums_place(n: int, block: int) -> int:
    """Where the sums of 32 quants are."""
    return 3 * n + n // 8 + 16 * block


@jit
def d_place(n: int, block: int) -> int:
    """Where the scale is."""
    return 3 * n + n // 8 + n // 16 + 4 * block


def activation_bytes(type_: GGMLType, n: int) -> int:
    """Bytes of a row of ``n`` values in the cpu backend's layout of an activation type."""
    places = (n // 32 + 30) // 16 * 16
    if type_ is GGMLType.Q8_0:
        return 48 * places
    if type_ is GGMLType.Q8_1:
        return 40 * places
    if type_ is GGMLType.Q8_K:
        return -(-(3 * n + 3 * (n // 16) + n // 64) // 64) * 64
    if type_ in unquantized.FLOATS:
        return unquantized.activation_bytes(type_, n)
    return LAYOUTS[type_].row_bytes(n)


@jit
def _quantize_finite(first: object, second: object, largest: np.float32) -> tuple[object, object, np.float32]:
    d = np.float32(largest / np.float32(127))
    inverse = np.float32(np.float32(1) / d) if d != 0 else np.float32(0)
    factor = splat_f32x16(inverse)
    return round_half_away(multiply(first, factor)), round_half_away(multiply(second, factor)), d


@jit(allocates=True)
def _quantize_any(x: F32, at: int, out: U8, low: int, high: int) -> tuple[np.float32, np.int32]:
    """A block with infinities or NaNs, whose bits depend on the order in which the values are looked at."""
    quants = np.empty(32, np.uint8)
    d, total = quantize.quantize_32(x, at, quants, 0)
    copy_bytes(quants, 0, 16, out, low)
    copy_bytes(quants, 16, 16, out, high)
    return d, total


@jit
def _quantize_block(x: F32, at: int, out: U8, low: int, high: int) -> tuple[np.float32, np.int32]:
    """As ``reference.quantize.quantize_32``, the two halves of the quants to ``low`` and ``high``."""
    first, second = load_f32x16(x, 4 * at), load_f32x16(x, 4 * at + 64)
    largest = largest_lane(larger(magnitude_bits(first), magnitude_bits(second)))
    if largest >= INFINITY_BITS:
        return _quantize_any(x, at, out, low, high)
    first_quants, second_quants, d = _quantize_finite(first, second, np.int32(largest).view(np.float32))
    store(out, low, narrow_i8(first_quants))
    store(out, high, narrow_i8(second_quants))
    return d, lane_sum(add(first_quants, second_quants))


@jit
def _through_half(value: np.float32) -> np.float32:
    return half_to_float(float_to_half(value))


@jit
def _begin_again(row: U8, n_blocks: int, places: int) -> None:
    """Repeat the first blocks after the last: their quants, and what follows these as 32-bit numbers."""
    numbers = row[32 * places :].view(np.int32)
    for i in range(n_blocks, places):
        store(row, 16 * i, load_i8x16(row, 16 * (i - n_blocks)))
        store(row, 16 * (places + i), load_i8x16(row, 16 * (places + i - n_blocks)))
        for first in range(0, numbers.shape[0], places):
            numbers[first + i] = numbers[first + i - n_blocks]


@jit(name="simd_quantize_Q8_0")
def quantize_q8_0(x: F32, out: U8, start: int, stop: int) -> None:
    """``quantize_row_q8_0_ref``."""
    n = x.shape[1]
    places = padded_blocks(n)
    for t in range(start, stop):
        row, values = out[t], x[t]
        scales = row[32 * places : 36 * places].view(np.float32)
        moved = row[36 * places : 48 * places].view(np.int32)
        for block in range(n // 32):
            low, high = 16 * block, 16 * (places + block)
            d, _ = _quantize_block(values, 32 * block, row, low, high)
            scales[block] = _through_half(d)
            total = lane_sum(add(to_i32(load_i8x16(row, low)), to_i32(load_i8x16(row, high))))
            moved[block] = -8 * total
            moved[places + block] = -16 * total
            moved[2 * places + block] = -128 * total
        _begin_again(row, n // 32, places)


@jit(name="simd_quantize_Q8_1")
def quantize_q8_1(x: F32, out: U8, start: int, stop: int) -> None:
    """``quantize_row_q8_1_ref``."""
    n = x.shape[1]
    places = padded_blocks(n)
    for t in range(start, stop):
        row, values = out[t], x[t]
        scales = row[32 * places : 36 * places].view(np.float32)
        sums = row[36 * places : 40 * places].view(np.float32)
        for block in range(n // 32):
            d, total = _quantize_block(values, 32 * block, row, 16 * block, 16 * (places + block))
            scales[block] = _through_half(d)
            sums[block] = _through_half(np.float32(np.float32(total) * d))
        _begin_again(row, n // 32, places)


_Q8_0_SIZE, _Q8_0_D, _Q8_0_QS = layouts.Q8_0.type_size, layouts.Q8_0.offset("d"), layouts.Q8_0.offset("qs")
_Q8_K_D, _Q8_K_QS, _Q8_K_BSUMS = (layouts.Q8_K.offset(field) for field in ("d", "qs", "bsums"))
_Q8_K_SIZE = layouts.Q8_K.type_size
_side_by_side = make_shuffle([8 * t + lane for lane in range(8) for t in range(4)])  # of 32
_in_pairs = make_shuffle([8 * half + lane for lane in range(8) for half in range(2)])  # of 16
_joined = make_shuffle(range(32))


@jit
def _extreme(x: F32, largest: np.int32) -> np.float32:
    """The first value with this magnitude."""
    for value in x:
        if np.int32(np.float32(value).view(np.int32) & np.int32(0x7FFFFFFF)) == largest:
            return value
    return np.float32(0)


@jit
def _largest_of_256(x: F32) -> np.int32:
    largest = magnitude_bits(load_f32x16(x, 0))
    for i in range(1, 16):
        largest = larger(largest, magnitude_bits(load_f32x16(x, 64 * i)))
    return largest_lane(largest)


@jit
def _spread(row: U8, n: int, block: int, group: int, low: object, high: object) -> None:
    """Write 32 quants, the given one of the block's eight groups, in both of their orders."""
    store(row, 256 * block + 32 * group, _side_by_side(_joined(low, high), _joined(low, high)))
    at = n + 512 * block + 8 * group
    scatter_32(row, at, 64, words_as_i32(_in_pairs(to_i16(low), to_i16(low))))
    scatter_32(row, at + 4, 64, words_as_i32(_in_pairs(to_i16(high), to_i16(high))))


@jit
def _store_sums(row: U8, n: int, block: int, group: int, low: np.int32, high: np.int32) -> None:
    at = bsums_place(n, block) + 4 * group
    store_u16(row, at, np.uint32(low & 0xFFFF))
    store_u16(row, at + 2, np.uint32(high & 0xFFFF))
    store_u16(row, sums_place(n, block) + 2 * group, np.uint32((low + high) & 0xFFFF))


@jit
def _quantize_block_q8_k(x: F32, inverse: np.float32, row: U8, n: int, block: int) -> None:
    factor, largest = splat_f32x16(inverse), splat_i32x16(np.int32(127))
    for group in range(8):
        low = smaller(largest, nearest_int(multiply(factor, load_f32x16(x, 128 * group))))
        high = smaller(largest, nearest_int(multiply(factor, load_f32x16(x, 128 * group + 64))))
        _spread(row, n, block, group, narrow_i8(low), narrow_i8(high))
        _store_sums(row, n, block, group, lane_sum(low), lane_sum(high))


@jit(allocates=True)
def _quantize_any_q8_k(x: F32, row: U8, n: int, block: int) -> None:
    """A block with infinities or NaNs, whose bits depend on the order in which the values are looked at."""
    packed = np.empty(_Q8_K_SIZE, np.uint8)
    quantize.quantize_row_q8_k(x, packed)
    for group in range(8):
        at = _Q8_K_QS + 32 * group
        low, high = load_i8x16(packed, at), load_i8x16(packed, at + 16)
        _spread(row, n, block, group, low, high)
        _store_sums(row, n, block, group, lane_sum(to_i32(low)), lane_sum(to_i32(high)))
    store_f32(row, d_place(n, block), load_f32(packed, _Q8_K_D))


@jit(name="simd_quantize_Q8_K")
def quantize_q8_k(x: F32, out: U8, start: int, stop: int) -> None:
    """``quantize_row_q8_K_ref``."""
    n = x.shape[1]
    for t in range(start, stop):
        row = out[t]
        for block in range(n // 256):
            values = x[t, 256 * block : 256 * block + 256]
            largest = _largest_of_256(values)
            if largest >= INFINITY_BITS:
                _quantize_any_q8_k(values, row, n, block)
                continue
            inverse = np.float32(0)  # in a block of zeros all is zero
            d = np.float32(0)
            if largest != 0:
                inverse = np.float32(np.float32(-127) / _extreme(values, largest))
                d = np.float32(np.float32(1) / inverse)
            _quantize_block_q8_k(values, inverse, row, n, block)
            store_f32(row, d_place(n, block), d)


QUANTIZE: dict[GGMLType, Kernel] = {
    **quantize.QUANTIZE,
    **unquantized.QUANTIZE,
    GGMLType.Q8_0: quantize_q8_0,
    GGMLType.Q8_1: quantize_q8_1,
    GGMLType.Q8_K: quantize_q8_k,
}


@jit
def pack_q8_0(row: U8, n: int, out: U8) -> None:
    """A row as ggml packs Q8_0."""
    places = padded_blocks(n)
    scales = row[32 * places : 36 * places].view(np.float32)
    for block in range(n // 32):
        at = block * _Q8_0_SIZE
        store_u16(out, at + _Q8_0_D, float_to_half(scales[block]))
        store(out, at + _Q8_0_QS, load_i8x16(row, 16 * block))
        store(out, at + _Q8_0_QS + 16, load_i8x16(row, 16 * (places + block)))


@jit
def pack_q8_k(row: U8, n: int, out: U8) -> None:
    """A row as ggml packs Q8_K."""
    for block in range(n // 256):
        at = block * _Q8_K_SIZE
        store_f32(out, at + _Q8_K_D, load_f32(row, d_place(n, block)))
        for k in range(256):
            out[at + _Q8_K_QS + k] = row[256 * block + k // 32 * 32 + k % 8 * 4 + k % 32 // 8]
        sums = bsums_place(n, block)
        copy_bytes(row, sums, 32, out, at + _Q8_K_BSUMS)
