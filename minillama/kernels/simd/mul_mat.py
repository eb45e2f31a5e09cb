"""Matrix products that unpack a block once and use it for every token; the sums are those of ``reference.dot``.

Vectors run across the values of a block, where the sums are integers and exact in any order. The order of the float
operations is the reference's: one sum per token over blocks in order, or for K-quants eight by k mod 8.
"""

from __future__ import annotations

import numpy as np

from minillama.gguf.constants import GGMLType
from minillama.kernels import layouts
from minillama.kernels.bits import load_f32
from minillama.kernels.jit import Kernel, jit
from minillama.kernels.layouts import LAYOUTS
from minillama.kernels.reference import dot, dot_q8_0, dot_q8_k
from minillama.kernels.scratch import DOT_BYTES
from minillama.kernels.simd.unpack import UNPACK_32, UNPACK_256, unpack_q2_k
from minillama.kernels.simd.vectors import (
    add,
    lane_sum,
    load_f32x8,
    load_half,
    load_i8x32,
    load_i16x16,
    make_shuffle,
    multiply,
    ordered_sum,
    splat_f32x8,
    store,
    to_f32,
    to_i16,
    to_i32,
)
from minillama.kernels.types import F32, I8, U8


@jit
def _integer_dot(quants: object, other: U8, start: int) -> np.int32:
    """Exact sum of the products of 32 quants (int8 x 32) with the 32 int8 bytes at ``start``."""
    return lane_sum(multiply(to_i32(quants), to_i32(load_i8x32(other, start))))


@jit
def _load_halves(data: U8, first: int, stride: int, out: F32) -> None:
    for i in range(len(out)):
        out[i] = load_half(data, first + i * stride)


_Q8_0_SIZE, _Q8_0_D, _Q8_0_QS = layouts.Q8_0.type_size, layouts.Q8_0.offset("d"), layouts.Q8_0.offset("qs")


def _make_mul_mat_q8_0(type_: GGMLType) -> Kernel:
    term, unpack, type_size = dot_q8_0.TERM[type_], UNPACK_32[type_], LAYOUTS[type_].type_size

    @jit(name=f"simd_mul_mat_{type_.name}")
    def mul_mat(weight: U8, activation: U8, n: int, out: F32, scratch: U8, start: int, stop: int) -> None:
        n_tokens, row_bytes = activation.shape
        flat = activation.reshape(-1)
        factors = scratch[DOT_BYTES : DOT_BYTES + 4 * n_tokens * (n // 32)].view(np.float32)
        _load_halves(flat, _Q8_0_D, _Q8_0_SIZE, factors)
        for r in range(start, stop):
            row = weight[r]
            out[:, r] = 0
            for block in range(n // 32):
                quants, d, _ = unpack(row, block * type_size)
                for t in range(n_tokens):
                    other = t * row_bytes + block * _Q8_0_SIZE
                    whole = np.float32(_integer_dot(quants, flat, other + _Q8_0_QS))
                    out[t, r] += term(d, factors[t * (n // 32) + block], whole)

    return mul_mat


_Q8_1_SIZE, _Q8_1_D = layouts.Q8_1.type_size, layouts.Q8_1.offset("d")
_Q8_1_S, _Q8_1_QS = layouts.Q8_1.offset("s"), layouts.Q8_1.offset("qs")


def _make_mul_mat_q8_1(type_: GGMLType) -> Kernel:
    term, unpack, type_size = dot_q8_0.MINIMUM_TERM["dot"], UNPACK_32[type_], LAYOUTS[type_].type_size

    @jit(name=f"simd_mul_mat_{type_.name}")
    def mul_mat(weight: U8, activation: U8, n: int, out: F32, scratch: U8, start: int, stop: int) -> None:
        n_tokens, row_bytes = activation.shape
        flat = activation.reshape(-1)
        n_blocks = n_tokens * (n // 32)
        factors = scratch[DOT_BYTES : DOT_BYTES + 4 * n_blocks].view(np.float32)
        sums = scratch[DOT_BYTES + 4 * n_blocks : DOT_BYTES + 8 * n_blocks].view(np.float32)
        _load_halves(flat, _Q8_1_D, _Q8_1_SIZE, factors)
        _load_halves(flat, _Q8_1_S, _Q8_1_SIZE, sums)
        for r in range(start, stop):
            row = weight[r]
            out[:, r] = 0
            for block in range(n // 32):
                quants, d, m = unpack(row, block * type_size)
                for t in range(n_tokens):
                    other = t * row_bytes + block * _Q8_1_SIZE
                    whole = np.float32(_integer_dot(quants, flat, other + _Q8_1_QS))
                    i = t * (n // 32) + block
                    out[t, r] += term(d, m, factors[i], sums[i], whole)

    return mul_mat


_Q2_K_SIZE, _q2_k_term = layouts.Q2_K.type_size, dot_q8_k.Q2_K_TERM["dot"]
_Q8_K_SIZE, _Q8_K_D = layouts.Q8_K.type_size, layouts.Q8_K.offset("d")
_Q8_K_QS, _Q8_K_BSUMS = layouts.Q8_K.offset("qs"), layouts.Q8_K.offset("bsums")

# 32 products are two groups of 16: values 0-7 and 8-15 of each fall into the same eight lanes.
_first_eights = make_shuffle([*range(8), *range(16, 24)])
_second_eights = make_shuffle([*range(8, 16), *range(24, 32)])
_lower_half, _upper_half = make_shuffle(range(8)), make_shuffle(range(8, 16))
_pair = {g: make_shuffle([g] * 8 + [g + 1] * 8) for g in range(0, 16, 2)}
_pair_0, _pair_2, _pair_4, _pair_6 = _pair[0], _pair[2], _pair[4], _pair[6]
_pair_8, _pair_10, _pair_12, _pair_14 = _pair[8], _pair[10], _pair[12], _pair[14]


@jit
def _two_groups(quants: I8, other: U8, start: int, at: int) -> object:
    """Exact sums by k mod 8 of 32 products, one group of 16 after the other: int32 x 16."""
    # A product is at most 128 * 128 in magnitude and a sum of two fits 16 bits: quants are below 64 except Q8_0's.
    products = multiply(to_i16(load_i8x32(quants, at)), to_i16(load_i8x32(other, start + at)))
    return to_i32(add(_first_eights(products, products), _second_eights(products, products)))


@jit
def _minimum_sum(mins: object, other: U8, start: int) -> np.int32:
    """Exact sum over groups of 16 of minimum (int32 x 16) times sum of the other operand's quants."""
    return lane_sum(multiply(mins, to_i32(load_i16x16(other, start))))


@jit
def _lane_sums(quants: I8, s: object, other: U8, start: int) -> object:
    """Eight exact sums by k mod 8 of scale (int32 x 16) times product over a block of 256: int32 x 8."""
    total = multiply(_pair_0(s, s), _two_groups(quants, other, start, 0))
    total = add(total, multiply(_pair_2(s, s), _two_groups(quants, other, start, 32)))
    total = add(total, multiply(_pair_4(s, s), _two_groups(quants, other, start, 64)))
    total = add(total, multiply(_pair_6(s, s), _two_groups(quants, other, start, 96)))
    total = add(total, multiply(_pair_8(s, s), _two_groups(quants, other, start, 128)))
    total = add(total, multiply(_pair_10(s, s), _two_groups(quants, other, start, 160)))
    total = add(total, multiply(_pair_12(s, s), _two_groups(quants, other, start, 192)))
    total = add(total, multiply(_pair_14(s, s), _two_groups(quants, other, start, 224)))
    return add(_lower_half(total, total), _upper_half(total, total))


def _make_mul_mat_q8_k(type_: GGMLType) -> Kernel:
    unpack, type_size = UNPACK_256[type_], LAYOUTS[type_].type_size
    has_minimum = "dmin" in dict(LAYOUTS[type_].fields)

    @jit(name=f"simd_mul_mat_{type_.name}")
    def mul_mat(weight: U8, activation: U8, n: int, out: F32, scratch: U8, start: int, stop: int) -> None:
        quants = scratch[:256].view(np.int8)
        n_tokens, row_bytes = activation.shape
        flat = activation.reshape(-1)
        sums = scratch[DOT_BYTES : DOT_BYTES + 32 * n_tokens]
        for r in range(start, stop):
            row = weight[r]
            out[:, r] = 0
            sums[:] = 0
            for block in range(n // 256):
                scales, mins, d, dmin = unpack(row, block * type_size, quants)
                for t in range(n_tokens):
                    other = t * row_bytes + block * _Q8_K_SIZE
                    d_other = load_f32(flat, other + _Q8_K_D)
                    lanes = to_f32(_lane_sums(quants, scales, flat, other + _Q8_K_QS))
                    scaled = multiply(splat_f32x8(np.float32(d * d_other)), lanes)
                    store(sums, 32 * t, add(load_f32x8(sums, 32 * t), scaled))
                    if has_minimum:
                        low = np.float32(_minimum_sum(mins, flat, other + _Q8_K_BSUMS))
                        out[t, r] -= np.float32(np.float32(dmin * d_other) * low)
            for t in range(n_tokens):
                out[t, r] = ordered_sum(out[t, r], load_f32x8(sums, 32 * t))

    return mul_mat


@jit(name="simd_mul_mat_Q2_K")
def _mul_mat_q2_k(weight: U8, activation: U8, n: int, out: F32, scratch: U8, start: int, stop: int) -> None:
    quants = scratch[:256].view(np.int8)
    n_tokens, row_bytes = activation.shape
    flat = activation.reshape(-1)
    for r in range(start, stop):
        row = weight[r]
        out[:, r] = 0
        for block in range(n // 256):
            scales, mins, d, dmin = unpack_q2_k(row, block * _Q2_K_SIZE, quants)
            for t in range(n_tokens):
                other = t * row_bytes + block * _Q8_K_SIZE
                d_other = load_f32(flat, other + _Q8_K_D)
                whole = np.float32(lane_sum(_lane_sums(quants, scales, flat, other + _Q8_K_QS)))
                low = np.float32(_minimum_sum(mins, flat, other + _Q8_K_BSUMS))
                out[t, r] += _q2_k_term(d, dmin, d_other, whole, low)


# mul_mat as in kernels.reference.dot, with more scratch: 8 bytes per token and block of 32 values. Types not named use
# the reference's.
MUL_MAT: dict[GGMLType, Kernel] = {
    **dot.MUL_MAT,
    **{type_: _make_mul_mat_q8_0(type_) for type_ in (GGMLType.Q4_0, GGMLType.Q5_0, GGMLType.Q8_0)},
    **{type_: _make_mul_mat_q8_1(type_) for type_ in (GGMLType.Q4_1, GGMLType.Q5_1)},
    GGMLType.Q2_K: _mul_mat_q2_k,
    **{type_: _make_mul_mat_q8_k(type_) for type_ in (GGMLType.Q3_K, GGMLType.Q4_K, GGMLType.Q5_K, GGMLType.Q6_K)},
}
