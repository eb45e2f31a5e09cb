"""Dot products of a packed row with a converted row, in the order of ggml's ``ggml_vec_dot_*_generic``.

Integer sums are exact in any order; what fixes the bits is the order of the float operations, and each function says
which it is. No multiply-add is contracted: this is the arithmetic of llama.cpp's baseline build.
"""

from __future__ import annotations

import numpy as np

from minillama.gguf.constants import GGMLType
from minillama.kernels import layouts
from minillama.kernels.bits import bfloat_to_float, half_to_float, load_f32, load_u16
from minillama.kernels.jit import Kernel, jit
from minillama.kernels.layouts import LAYOUTS
from minillama.kernels.reference.unpack import UNPACK
from minillama.kernels.scratch import BLOCK_BYTES, unpacked_block
from minillama.kernels.types import F32, I8, I32, U8

_LANES = BLOCK_BYTES


@jit
def dot_f32(row: U8, other: U8, n: int, scratch: U8) -> np.float32:
    """``ggml_vec_dot_f32``, scalar: a double sum, in order, of float products."""
    total = np.float64(0)
    for k in range(n):
        total += np.float64(np.float32(load_f32(row, 4 * k) * load_f32(other, 4 * k)))
    return np.float32(total)


@jit
def dot_f16(row: U8, other: U8, n: int, scratch: U8) -> np.float32:
    """``ggml_vec_dot_f16``, scalar: a double sum, in order, of float products of halves."""
    total = np.float64(0)
    for k in range(n):
        total += np.float64(half_to_float(load_u16(row, 2 * k)) * half_to_float(load_u16(other, 2 * k)))
    return np.float32(total)


@jit
def dot_bf16(row: U8, other: U8, n: int, scratch: U8) -> np.float32:
    """``ggml_vec_dot_bf16``, scalar: a double sum, in order, of float products of bfloat16s."""
    total = np.float64(0)
    for k in range(n):
        product = np.float32(bfloat_to_float(load_u16(row, 2 * k)) * bfloat_to_float(load_u16(other, 2 * k)))
        total += np.float64(product)
    return np.float32(total)


@jit
def minimum_term(
    d: np.float32, m: np.float32, d_other: np.float32, s_other: np.float32, whole: np.float32
) -> np.float32:
    """Q4_1's and Q5_1's ``(d * d') * sum + m * s``."""
    return np.float32(np.float32(np.float32(d * d_other) * whole) + np.float32(m * s_other))


@jit
def _signed(byte: np.uint8) -> np.int32:
    return np.int32(byte ^ np.uint8(128)) - np.int32(128)


@jit
def _integer_dot(quants: I8, other: U8, start: int, n: int) -> np.int32:
    """Exact sum of the products of ``n`` quants with the int8 bytes at ``start``."""
    total = np.int32(0)
    for j in range(n):
        total = np.int32(total + np.int32(quants[j]) * _signed(other[start + j]))
    return total


_Q8_0_SIZE, _Q8_0_D, _Q8_0_QS = layouts.Q8_0.type_size, layouts.Q8_0.offset("d"), layouts.Q8_0.offset("qs")


@jit
def sum_first_term(d: np.float32, d_other: np.float32, whole: np.float32) -> np.float32:
    """Q4_0's ``(sum * d) * d'``."""
    return np.float32(np.float32(whole * d) * d_other)


@jit
def scale_first_term(d: np.float32, d_other: np.float32, whole: np.float32) -> np.float32:
    """Q5_0's and Q8_0's ``(d * d') * sum``."""
    return np.float32(np.float32(d * d_other) * whole)


TERM = {
    GGMLType.Q4_0: sum_first_term,
    GGMLType.Q5_0: scale_first_term,
    GGMLType.Q8_0: scale_first_term,
}


def _make_dot_q8_0(type_: GGMLType) -> Kernel:
    """Types of 32 values against Q8_0: one float sum over blocks, in order, of the type's term."""
    term, unpack, type_size = TERM[type_], UNPACK[type_], LAYOUTS[type_].type_size

    @jit(name=f"dot_{type_.name}")
    def dot(row: U8, other: U8, n: int, scratch: U8) -> np.float32:
        quants, scales, mins = unpacked_block(scratch)
        total = np.float32(0)
        for block in range(n // 32):
            d, _ = unpack(row, block * type_size, quants, scales, mins)
            start = block * _Q8_0_SIZE
            d_other = half_to_float(load_u16(other, start + _Q8_0_D))
            whole = np.float32(_integer_dot(quants, other, start + _Q8_0_QS, 32))
            total = np.float32(total + term(d, d_other, whole))
        return total

    return dot


_Q8_1_SIZE, _Q8_1_D = layouts.Q8_1.type_size, layouts.Q8_1.offset("d")
_Q8_1_S, _Q8_1_QS = layouts.Q8_1.offset("s"), layouts.Q8_1.offset("qs")


def _make_dot_q8_1(type_: GGMLType) -> Kernel:
    """Q4_1 and Q5_1 against Q8_1: one float sum over blocks of ``(d * d') * sum + m * s``."""
    unpack, type_size = UNPACK[type_], LAYOUTS[type_].type_size

    @jit(name=f"dot_{type_.name}")
    def dot(row: U8, other: U8, n: int, scratch: U8) -> np.float32:
        quants, scales, mins = unpacked_block(scratch)
        total = np.float32(0)
        for block in range(n // 32):
            d, m = unpack(row, block * type_size, quants, scales, mins)
            start = block * _Q8_1_SIZE
            d_other = half_to_float(load_u16(other, start + _Q8_1_D))
            s_other = half_to_float(load_u16(other, start + _Q8_1_S))
            whole = np.float32(_integer_dot(quants, other, start + _Q8_1_QS, 32))
            total = np.float32(total + minimum_term(d, m, d_other, s_other, whole))
        return total

    return dot


_Q8_K_SIZE, _Q8_K_D = layouts.Q8_K.type_size, layouts.Q8_K.offset("d")
_Q8_K_QS, _Q8_K_BSUMS = layouts.Q8_K.offset("qs"), layouts.Q8_K.offset("bsums")


@jit
def minimum_sum(mins: I32, other: U8, start: int) -> np.int32:
    """Exact sum over groups of 16 of minimum times sum of the other operand's quants."""
    total = np.int32(0)
    for group in range(16):
        bsum = np.int32(load_u16(other, start + 2 * group))
        bsum = bsum - np.int32(65536) if bsum >= 32768 else bsum
        total = np.int32(total + mins[group] * bsum)
    return total


_unpack_q2_k, _Q2_K_SIZE = UNPACK[GGMLType.Q2_K], layouts.Q2_K.type_size


@jit
def q2_k_term(d: np.float32, dmin: np.float32, d_other: np.float32, whole: np.float32, low: np.float32) -> np.float32:
    """Q2_K's ``(d' * d) * sum - (d' * dmin) * minimums``."""
    return np.float32(np.float32(np.float32(d_other * d) * whole) - np.float32(np.float32(d_other * dmin) * low))


@jit
def dot_q2_k(row: U8, other: U8, n: int, scratch: U8) -> np.float32:
    """``ggml_vec_dot_q2_K_q8_K``: one float sum over blocks of its term."""
    quants, scales, mins = unpacked_block(scratch)
    total = np.float32(0)
    for block in range(n // 256):
        d, dmin = _unpack_q2_k(row, block * _Q2_K_SIZE, quants, scales, mins)
        start = block * _Q8_K_SIZE
        d_other = load_f32(other, start + _Q8_K_D)
        whole = np.int32(0)
        for group in range(16):
            part = _integer_dot(quants[group * 16 :], other, start + _Q8_K_QS + group * 16, 16)
            whole = np.int32(whole + scales[group] * part)
        low = minimum_sum(mins, other, start + _Q8_K_BSUMS)
        total = np.float32(total + q2_k_term(d, dmin, d_other, np.float32(whole), np.float32(low)))
    return total


@jit
def _lane_sums(quants: I8, scales: I32, other: U8, start: int, lanes: I32) -> None:
    """Eight exact sums by k mod 8 of scale times product over a block of 256."""
    lanes[:] = 0
    for group in range(16):
        for j in range(16):
            k = group * 16 + j
            product = np.int32(quants[k]) * _signed(other[start + k])
            lanes[j & 7] = np.int32(lanes[j & 7] + scales[group] * product)


def _make_dot_q8_k(type_: GGMLType) -> Kernel:
    """Q3_K, Q4_K, Q5_K and Q6_K against Q8_K.

    Eight float sums by k mod 8, over blocks, of ``(d * d') * lane sum``; beside them ``-= (dmin * d') * minimums`` in
    block order; at the end the eight are added to it, lane 0 first.
    """
    unpack, type_size = UNPACK[type_], LAYOUTS[type_].type_size
    has_minimum = "dmin" in dict(LAYOUTS[type_].fields)

    @jit(name=f"dot_{type_.name}")
    def dot(row: U8, other: U8, n: int, scratch: U8) -> np.float32:
        quants, scales, mins = unpacked_block(scratch)
        lanes, sums = scratch[_LANES : _LANES + 32].view(np.int32), scratch[_LANES + 32 : _LANES + 64].view(np.float32)
        sums[:] = 0
        total = np.float32(0)
        for block in range(n // 256):
            d, dmin = unpack(row, block * type_size, quants, scales, mins)
            start = block * _Q8_K_SIZE
            d_other = load_f32(other, start + _Q8_K_D)
            _lane_sums(quants, scales, other, start + _Q8_K_QS, lanes)
            scale = np.float32(d * d_other)
            for lane in range(8):
                sums[lane] += np.float32(scale * np.float32(lanes[lane]))
            if has_minimum:
                low = np.float32(minimum_sum(mins, other, start + _Q8_K_BSUMS))
                total = np.float32(total - np.float32(np.float32(dmin * d_other) * low))
        for lane in range(8):
            total = np.float32(total + sums[lane])
        return total

    return dot


# dot(row: uint8 [row_bytes], other: uint8 [row_bytes of the activation type], n, scratch: DOT_BYTES) -> float32.
DOT: dict[GGMLType, Kernel] = {
    GGMLType.F32: dot_f32,
    GGMLType.F16: dot_f16,
    GGMLType.BF16: dot_bf16,
    GGMLType.Q4_0: _make_dot_q8_0(GGMLType.Q4_0),
    GGMLType.Q4_1: _make_dot_q8_1(GGMLType.Q4_1),
    GGMLType.Q5_0: _make_dot_q8_0(GGMLType.Q5_0),
    GGMLType.Q5_1: _make_dot_q8_1(GGMLType.Q5_1),
    GGMLType.Q8_0: _make_dot_q8_0(GGMLType.Q8_0),
    GGMLType.Q2_K: dot_q2_k,
    **{type_: _make_dot_q8_k(type_) for type_ in (GGMLType.Q3_K, GGMLType.Q4_K, GGMLType.Q5_K, GGMLType.Q6_K)},
}


def _make_mul_mat(type_: GGMLType) -> Kernel:
    dot = DOT[type_]

    @jit(name=f"mul_mat_{type_.name}")
    def mul_mat(weight: U8, activation: U8, n: int, out: F32, scratch: U8, start: int, stop: int) -> None:
        for r in range(start, stop):
            for t in range(activation.shape[0]):
                out[t, r] = dot(weight[r], activation[t], n, scratch)

    return mul_mat


# mul_mat(weight: uint8 [n_rows, row_bytes], activation: uint8 [n_tokens, row_bytes], n, out: float32 [n_tokens,
# n_rows], scratch, start, stop): ggml's mul_mat for rows start..stop of the weight, n values each.
MUL_MAT: dict[GGMLType, Kernel] = {type_: _make_mul_mat(type_) for type_ in DOT}
