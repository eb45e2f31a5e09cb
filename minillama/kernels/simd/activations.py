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
    unsigned    uint8 [n]            the same plus 128
    bsums       int16 [n / 16]       sums of 16 quants
    sums        int16 [n / 32]       and of 32
    d           float32 [n / 256]

Rows of F16 are doubles, rows of BF16 and F32 float32; see :mod:`minillama.kernels.simd.unquantized`.
"""

from __future__ import annotations

import numpy as np

from minillama.gguf.constants import GGMLType
from minillama.kernels import layouts
from minillama.kernels.bits import float_to_half, load_f32, store_f32, store_u16
from minillama.kernels.jit import Kernel, jit
from minillama.kernels.layouts import LAYOUTS
from minillama.kernels.reference import quantize
from minillama.kernels.scratch import copy_bytes
from minillama.kernels.simd import unquantized
from minillama.kernels.simd.dots import dot_bytes, sum_quads, zeros_i32x16
from minillama.kernels.simd.floats import divide, half_lanes, load_first, store_first, where_greater
from minillama.kernels.simd.lanes import (
    bytes_as_u8,
    load_i8x64,
    narrow_i8,
    narrow_i16,
    splat_i32x16,
    splat_u8x64,
)
from minillama.kernels.simd.rounding import (
    bits_of,
    larger,
    largest_lane,
    magnitude_bits,
    nearest_int,
    round_half_away,
    smaller,
)
from minillama.kernels.simd.vectors import (
    add,
    add_number,
    load_f32x16,
    load_i8x16,
    make_shuffle,
    multiply,
    shift_left,
    splat_f32x16,
    store,
    subtract,
    to_f32,
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
    return 2 * n + 32 * block


@jit
def sums_place(n: int, block: int) -> int:
    """Where the sums of 32 quants are."""
    return 2 * n + n // 8 + 16 * block


@jit
def d_place(n: int, block: int) -> int:
    """Where the scale is."""
    return 2 * n + n // 8 + n // 16 + 4 * block


def activation_bytes(type_: GGMLType, n: int) -> int:
    """Bytes of a row of ``n`` values in the cpu backend's layout of an activation type."""
    places = (n // 32 + 30) // 16 * 16
    if type_ is GGMLType.Q8_0:
        return 48 * places
    if type_ is GGMLType.Q8_1:
        return 40 * places
    if type_ is GGMLType.Q8_K:
        return -(-(2 * n + 3 * (n // 16) + n // 64) // 64) * 64
    if type_ in unquantized.FLOATS:
        return unquantized.activation_bytes(type_, n)
    return LAYOUTS[type_].row_bytes(n)


@jit
def _measure(x: F32, n: int, row: U8, at: int) -> np.int32:
    """Write the bits of the largest magnitude of every block of 32 values; returns the largest of all."""
    most = np.int32(0)
    for block in range(n // 32):
        first, second = load_f32x16(x, 128 * block), load_f32x16(x, 128 * block + 64)
        largest = largest_lane(larger(magnitude_bits(first), magnitude_bits(second)))
        store_f32(row, at + 4 * block, np.int32(largest).view(np.float32))
        most = max(most, largest)
    return most


@jit
def _scales(row: U8, d_at: int, inverse_at: int, places: int) -> None:
    """Of the largest magnitudes, the scales, in their place and not yet rounded, and what values are multiplied by."""
    zero, one = splat_f32x16(np.float32(0)), splat_f32x16(np.float32(1))
    for at in range(0, 4 * places, 64):
        d = divide(load_f32x16(row, d_at + at), splat_f32x16(np.float32(127)))
        store(row, d_at + at, d)
        store(row, inverse_at + at, where_greater(d, zero, divide(one, d), zero))


@jit
def _quants(x: F32, n: int, row: U8, inverse_at: int, places: int) -> None:
    """Write the quants of all blocks."""
    for block in range(n // 32):
        factor = splat_f32x16(load_f32(row, inverse_at + 4 * block))
        low = round_half_away(multiply(load_f32x16(x, 128 * block), factor))
        high = round_half_away(multiply(load_f32x16(x, 128 * block + 64), factor))
        store(row, 16 * block, narrow_i8(low))
        store(row, 16 * (places + block), narrow_i8(high))


@jit(allocates=True)
def _quantize_any(x: F32, n: int, row: U8, d_at: int, places: int) -> None:
    """A row with infinities or NaNs, whose bits depend on the order in which the values are looked at."""
    quants = np.empty(32, np.uint8)
    for block in range(n // 32):
        d, _ = quantize.quantize_32(x, 32 * block, quants, 0)
        copy_bytes(quants, 0, 16, row, 16 * block)
        copy_bytes(quants, 16, 16, row, 16 * (places + block))
        store_f32(row, d_at + 4 * block, d)


@jit
def _quantize_row(x: F32, n: int, row: U8, d_at: int, inverse_at: int, places: int) -> None:
    """As ``reference.quantize.quantize_32`` for all blocks; the scales are not yet rounded."""
    if _measure(x, n, row, d_at) >= INFINITY_BITS:
        _quantize_any(x, n, row, d_at, places)
        return
    _scales(row, d_at, inverse_at, places)
    _quants(x, n, row, inverse_at, places)


@jit
def _sums_of_quants(row: U8, block: int, places: int) -> object:
    """Of sixteen blocks: int32 x 16."""
    low, high = 16 * block, 16 * (places + block)
    return sum_quads(
        _sums_of_fours(row, low, high), _sums_of_fours(row, low + 64, high + 64),
        _sums_of_fours(row, low + 128, high + 128), _sums_of_fours(row, low + 192, high + 192),
    )  # fmt: skip


@jit
def _sums_of_fours(row: U8, low: int, high: int) -> object:
    ones = splat_u8x64(np.uint8(1))
    return dot_bytes(dot_bytes(zeros_i32x16(), ones, load_i8x64(row, low)), ones, load_i8x64(row, high))


@jit
def _begin_again(row: U8, n_blocks: int, places: int) -> None:
    """Repeat the first blocks after the last: their quants, and what follows these as 32-bit numbers."""
    for i in range(n_blocks, places):
        store(row, 16 * i, load_i8x16(row, 16 * (i - n_blocks)))
        store(row, 16 * (places + i), load_i8x16(row, 16 * (places + i - n_blocks)))
    step = min(n_blocks, 16)  # what is copied must be there
    for first in range(32 * places, row.shape[0] - 4 * places + 1, 4 * places):
        for i in range(n_blocks, places, step):
            at, count = first + 4 * i, min(step, places - i)
            store_first(row, at, count, load_first(row, at - 4 * n_blocks, count))


@jit(name="simd_quantize_Q8_0")
def quantize_q8_0(x: F32, out: U8, start: int, stop: int) -> None:
    """``quantize_row_q8_0_ref``."""
    n = x.shape[1]
    places = padded_blocks(n)
    d_at, moved_at = 32 * places, 36 * places
    for t in range(start, stop):
        row = out[t]
        _quantize_row(x[t], n, row, d_at, moved_at, places)
        for block in range(0, places, 16):
            at = d_at + 4 * block
            store(row, at, half_lanes(load_f32x16(row, at)))
            minus = subtract(zeros_i32x16(), _sums_of_quants(row, block, places))
            store(row, moved_at + 4 * block, shift_left(minus, 3))
            store(row, moved_at + 4 * (places + block), shift_left(minus, 4))
            store(row, moved_at + 4 * (2 * places + block), shift_left(minus, 7))
        _begin_again(row, n // 32, places)


@jit(name="simd_quantize_Q8_1")
def quantize_q8_1(x: F32, out: U8, start: int, stop: int) -> None:
    """``quantize_row_q8_1_ref``."""
    n = x.shape[1]
    places = padded_blocks(n)
    d_at, s_at = 32 * places, 36 * places
    for t in range(start, stop):
        row = out[t]
        _quantize_row(x[t], n, row, d_at, s_at, places)
        for block in range(0, places, 16):
            at = d_at + 4 * block
            d = load_f32x16(row, at)
            store(row, at, half_lanes(d))
            store(row, s_at + 4 * block, half_lanes(multiply(to_f32(_sums_of_quants(row, block, places)), d)))
        _begin_again(row, n // 32, places)


_Q8_0_SIZE, _Q8_0_D, _Q8_0_QS = layouts.Q8_0.type_size, layouts.Q8_0.offset("d"), layouts.Q8_0.offset("qs")
_Q8_K_D, _Q8_K_QS, _Q8_K_BSUMS = (layouts.Q8_K.offset(field) for field in ("d", "qs", "bsums"))
_Q8_K_SIZE = layouts.Q8_K.type_size
_side_by_side = make_shuffle([8 * t + lane for lane in range(8) for t in range(4)])  # of 32
_in_turn = make_shuffle([lane + 8 * second for lane in range(8) for second in range(2)])  # of two vectors of eight
_joined = make_shuffle(range(32))
_even, _odd = make_shuffle(range(0, 16, 2)), make_shuffle(range(1, 16, 2))
_SIGN = -(2**31)  # of the bits of a float32


@jit
def _first_of_extremes(x: F32, largest: np.int32) -> np.float32:
    """The first value with this magnitude."""
    for value in x:
        if np.int32(np.float32(value).view(np.int32) & np.int32(0x7FFFFFFF)) == largest:
            return value
    return np.float32(0)


@jit
def _extreme(x: F32) -> np.float32:
    """Of 256 values the first with the largest magnitude; of infinities and NaNs one."""
    bits = bits_of(load_f32x16(x, 0))
    positive, negative = bits, add_number(bits, _SIGN)  # as int32, those of the other sign are below zero
    for i in range(1, 16):
        bits = bits_of(load_f32x16(x, 64 * i))
        positive, negative = larger(positive, bits), larger(negative, add_number(bits, _SIGN))
    up, down = largest_lane(positive), largest_lane(negative)
    if up > down:
        return np.int32(up).view(np.float32)
    if up < down:
        return np.float32(-np.int32(down).view(np.float32))
    return _first_of_extremes(x, up)


@jit
def _spread(row: U8, n: int, block: int, group: int, low: object, high: object) -> None:
    """Write 32 quants, the given one of the block's eight groups, as they are and unsigned."""
    both, at = _joined(low, high), 256 * block + 32 * group
    quants = _side_by_side(both, both)
    store(row, at, quants)
    store(row, n + at, add_number(quants, 128))


@jit
def _sums_by_sixteen(row: U8, at: int, which: object) -> object:
    """Of each 32 quants of a block, the sum of those that ``which`` has ones for in every four: int32 x 8."""
    z = zeros_i32x16()
    fours = sum_quads(
        dot_bytes(z, which, load_i8x64(row, at)), dot_bytes(z, which, load_i8x64(row, at + 64)),
        dot_bytes(z, which, load_i8x64(row, at + 128)), dot_bytes(z, which, load_i8x64(row, at + 192)),
    )  # fmt: skip
    return add(_even(fours, fours), _odd(fours, fours))


@jit
def _finish_block(row: U8, n: int, block: int) -> None:
    """Write the sums: k and k + 8 belong to the first 16 of each 32, k + 16 and k + 24 to the others."""
    first = _sums_by_sixteen(row, 256 * block, bytes_as_u8(splat_i32x16(np.int32(0x00000101))))
    second = _sums_by_sixteen(row, 256 * block, bytes_as_u8(splat_i32x16(np.int32(0x01010000))))
    store(row, bsums_place(n, block), narrow_i16(_in_turn(first, second)))
    store(row, sums_place(n, block), narrow_i16(add(first, second)))


@jit
def _quantize_block_q8_k(x: F32, inverse: np.float32, row: U8, n: int, block: int) -> None:
    factor, largest = splat_f32x16(inverse), splat_i32x16(np.int32(127))
    for group in range(8):
        low = smaller(largest, nearest_int(multiply(factor, load_f32x16(x, 128 * group))))
        high = smaller(largest, nearest_int(multiply(factor, load_f32x16(x, 128 * group + 64))))
        _spread(row, n, block, group, narrow_i8(low), narrow_i8(high))


@jit(allocates=True)
def _quantize_any_q8_k(x: F32, row: U8, n: int, block: int) -> None:
    """A block with infinities or NaNs, whose bits depend on the order in which the values are looked at."""
    packed = np.empty(_Q8_K_SIZE, np.uint8)
    quantize.quantize_row_q8_k(x, packed)
    for group in range(8):
        at = _Q8_K_QS + 32 * group
        _spread(row, n, block, group, load_i8x16(packed, at), load_i8x16(packed, at + 16))
    store_f32(row, d_place(n, block), load_f32(packed, _Q8_K_D))


@jit(name="simd_quantize_Q8_K")
def quantize_q8_k(x: F32, out: U8, start: int, stop: int) -> None:
    """``quantize_row_q8_K_ref``."""
    n = x.shape[1]
    for t in range(start, stop):
        row = out[t]
        for block in range(n // 256):
            values = x[t, 256 * block : 256 * block + 256]
            extreme = _extreme(values)
            if np.isfinite(extreme):
                inverse = np.float32(0)  # in a block of zeros all is zero
                d = np.float32(0)
                if extreme != 0:
                    inverse = np.float32(np.float32(-127) / extreme)
                    d = np.float32(np.float32(1) / inverse)
                _quantize_block_q8_k(values, inverse, row, n, block)
                store_f32(row, d_place(n, block), d)
            else:
                _quantize_any_q8_k(values, row, n, block)
            _finish_block(row, n, block)


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
