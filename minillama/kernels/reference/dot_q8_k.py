"""Dot products against Q8_K. See ``reference.dot``."""

from __future__ import annotations

import numpy as np

from minillama.gguf.constants import GGMLType
from minillama.kernels import layouts
from minillama.kernels.bits import load_f32, load_u16
from minillama.kernels.jit import Kernel, jit
from minillama.kernels.layouts import LAYOUTS
from minillama.kernels.reference.blocks import UNPACK
from minillama.kernels.reference.dot_q8_0 import MULTIPLY_ADD, integer_dot, signed
from minillama.kernels.scratch import BLOCK_BYTES, unpacked_block
from minillama.kernels.types import I8, I32, U8

_LANES = BLOCK_BYTES

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
def _scaled_sum(quants: I8, scales: I32, other: U8, start: int) -> np.int32:
    """Exact sum over a block of 256 of scale times product."""
    total = np.int32(0)
    for group in range(16):
        part = integer_dot(quants[group * 16 :], other, start + group * 16, 16)
        total = np.int32(total + scales[group] * part)
    return total


def _make_q2_k_term(name: str) -> Kernel:
    multiply_add = MULTIPLY_ADD[name]

    @jit(name=f"q2_k_term_{name}")
    def term(d: np.float32, dmin: np.float32, d_other: np.float32, whole: np.float32, low: np.float32) -> np.float32:
        """Q2_K's ``(d' * d) * sum - (d' * dmin) * minimums``."""
        return multiply_add(np.float32(d_other * d), whole, -np.float32(np.float32(d_other * dmin) * low))

    return term


Q2_K_TERM = {name: _make_q2_k_term(name) for name in MULTIPLY_ADD}


def make_dot_q2_k(name: str) -> Kernel:
    """``ggml_vec_dot_q2_K_q8_K``: one float sum over blocks of its term."""
    term = Q2_K_TERM[name]

    @jit(name=f"{name}_Q2_K")
    def dot(row: U8, other: U8, n: int, scratch: U8) -> np.float32:
        quants, scales, mins = unpacked_block(scratch)
        total = np.float32(0)
        for block in range(n // 256):
            d, dmin = _unpack_q2_k(row, block * _Q2_K_SIZE, quants, scales, mins)
            start = block * _Q8_K_SIZE
            d_other = load_f32(other, start + _Q8_K_D)
            whole = np.float32(_scaled_sum(quants, scales, other, start + _Q8_K_QS))
            low = np.float32(minimum_sum(mins, other, start + _Q8_K_BSUMS))
            total = np.float32(total + term(d, dmin, d_other, whole, low))
        return total

    return dot


def make_dot_scaled_sum(type_: GGMLType, name: str = "dot", inner: float = 1, outer: float = 1) -> Kernel:
    """IQ1, IQ2, IQ3 and the ternary types against Q8_K: one float sum over blocks of ``(d * d') * sum``.

    The type's factor is in the block's sum for IQ1 (``inner``) and multiplies the result for the others (``outer``).
    IQ1's ``sum + 0.125 * moves``, from the other operand's sums of 16, is exact: it is an eighth of the sum of its
    integer quants.
    """
    multiply_add, unpack, type_size = MULTIPLY_ADD[name], UNPACK[type_], LAYOUTS[type_].type_size
    inner_factor, outer_factor = np.float32(inner), np.float32(outer)

    @jit(name=f"{name}_{type_.name}")
    def dot(row: U8, other: U8, n: int, scratch: U8) -> np.float32:
        quants, scales, mins = unpacked_block(scratch)
        total = np.float32(0)
        for block in range(n // 256):
            d, _ = unpack(row, block * type_size, quants, scales, mins)
            start = block * _Q8_K_SIZE
            d_other = load_f32(other, start + _Q8_K_D)
            whole = np.float32(_scaled_sum(quants, scales, other, start + _Q8_K_QS))
            total = multiply_add(np.float32(d * d_other), np.float32(inner_factor * whole), total)
        return np.float32(outer_factor * total)

    return dot


_unpack_iq4_xs, _IQ4_XS_SIZE = UNPACK[GGMLType.IQ4_XS], layouts.IQ4_XS.type_size


@jit
def dot_iq4_xs(row: U8, other: U8, n: int, scratch: U8) -> np.float32:
    """``ggml_vec_dot_iq4_xs_q8_K``: one float sum over groups of 32 of ``((d * d') * scale) * sum``."""
    quants, scales, mins = unpacked_block(scratch)
    total = np.float32(0)
    for block in range(n // 256):
        d, _ = _unpack_iq4_xs(row, block * _IQ4_XS_SIZE, quants, scales, mins)
        start = block * _Q8_K_SIZE
        both = np.float32(d * load_f32(other, start + _Q8_K_D))
        for group in range(8):
            scale = np.float32(both * np.float32(scales[2 * group]))
            part = integer_dot(quants[group * 32 :], other, start + _Q8_K_QS + group * 32, 32)
            total = np.float32(total + np.float32(scale * np.float32(part)))
    return total


@jit
def _lane_sums(quants: I8, scales: I32, other: U8, start: int, lanes: I32) -> None:
    """Eight exact sums by k mod 8 of scale times product over a block of 256."""
    lanes[:] = 0
    for group in range(16):
        for j in range(16):
            k = group * 16 + j
            product = np.int32(quants[k]) * signed(other[start + k])
            lanes[j & 7] = np.int32(lanes[j & 7] + scales[group] * product)


def make_dot_q8_k(type_: GGMLType, name: str = "dot") -> Kernel:
    """Q3_K, Q4_K, Q5_K and Q6_K against Q8_K.

    Eight float sums by k mod 8, over blocks, of ``(d * d') * lane sum``; beside them ``-= (dmin * d') * minimums`` in
    block order; at the end the eight are added to it, lane 0 first.
    """
    multiply_add, unpack, type_size = MULTIPLY_ADD[name], UNPACK[type_], LAYOUTS[type_].type_size
    has_minimum = "dmin" in dict(LAYOUTS[type_].fields)

    @jit(name=f"{name}_{type_.name}")
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
                sums[lane] = multiply_add(scale, np.float32(lanes[lane]), sums[lane])
            if has_minimum:
                low = np.float32(minimum_sum(mins, other, start + _Q8_K_BSUMS))
                total = multiply_add(-np.float32(dmin * d_other), low, total)
        for lane in range(8):
            total = np.float32(total + sums[lane])
        return total

    return dot
