"""Dot products against Q8_0 and Q8_1. See ``reference.dot``."""

from __future__ import annotations

import numpy as np

from minillama.gguf.constants import GGMLType
from minillama.kernels import layouts
from minillama.kernels.bits import half_to_float, load_u16
from minillama.kernels.fma import fused_multiply_add, separate_multiply_add
from minillama.kernels.jit import Kernel, jit
from minillama.kernels.layouts import LAYOUTS
from minillama.kernels.reference.blocks import UNPACK
from minillama.kernels.scratch import unpacked_block
from minillama.kernels.types import I8, U8

# By the prefix of the kernels' names, which must differ for the two in the cache of compiled code.
MULTIPLY_ADD = {"dot": separate_multiply_add, "dot_fused": fused_multiply_add}


@jit
def signed(byte: np.uint8) -> np.int32:
    """The byte as a signed integer."""
    return np.int32(byte ^ np.uint8(128)) - np.int32(128)


@jit
def integer_dot(quants: I8, other: U8, start: int, n: int) -> np.int32:
    """Exact sum of the products of ``n`` quants with the int8 bytes at ``start``."""
    total = np.int32(0)
    for j in range(n):
        total = np.int32(total + np.int32(quants[j]) * signed(other[start + j]))
    return total


_Q8_0_SIZE, _Q8_0_D, _Q8_0_QS = layouts.Q8_0.type_size, layouts.Q8_0.offset("d"), layouts.Q8_0.offset("qs")


@jit
def sum_first_term(d: np.float32, d_other: np.float32, whole: np.float32) -> np.float32:
    """Q4_0's ``(sum * d) * d'``."""
    return np.float32(np.float32(whole * d) * d_other)


@jit
def scale_first_term(d: np.float32, d_other: np.float32, whole: np.float32) -> np.float32:
    """``(d * d') * sum`` of Q5_0, Q8_0, IQ4_NL and MXFP4."""
    return np.float32(np.float32(d * d_other) * whole)


TERM = {
    GGMLType.Q4_0: sum_first_term,
    GGMLType.Q5_0: scale_first_term,
    GGMLType.Q8_0: scale_first_term,
    GGMLType.IQ4_NL: scale_first_term,
    GGMLType.MXFP4: scale_first_term,
}


def make_dot_q8_0(type_: GGMLType) -> Kernel:
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
            whole = np.float32(integer_dot(quants, other, start + _Q8_0_QS, 32))
            total = np.float32(total + term(d, d_other, whole))
        return total

    return dot


def make_dot_of_parts(type_: GGMLType) -> Kernel:
    """Q1_0 and Q2_0, whose blocks span several of Q8_0.

    A float sum, in order, of ``d' * sum`` over the blocks of Q8_0; one of ``d`` times that over the blocks.
    """
    unpack, block_size, type_size = UNPACK[type_], LAYOUTS[type_].block_size, LAYOUTS[type_].type_size
    n_parts = block_size // 32

    @jit(name=f"dot_{type_.name}")
    def dot(row: U8, other: U8, n: int, scratch: U8) -> np.float32:
        quants, scales, mins = unpacked_block(scratch)
        total = np.float32(0)
        for block in range(n // block_size):
            d, _ = unpack(row, block * type_size, quants, scales, mins)
            inner = np.float32(0)
            for part in range(n_parts):
                start = (block * n_parts + part) * _Q8_0_SIZE
                d_other = half_to_float(load_u16(other, start + _Q8_0_D))
                whole = np.float32(integer_dot(quants[part * 32 :], other, start + _Q8_0_QS, 32))
                inner = np.float32(inner + np.float32(d_other * whole))
            total = np.float32(total + np.float32(d * inner))
        return total

    return dot


_unpack_nvfp4, _NVFP4_SIZE = UNPACK[GGMLType.NVFP4], layouts.NVFP4.type_size


@jit
def dot_nvfp4(row: U8, other: U8, n: int, scratch: U8) -> np.float32:
    """``ggml_vec_dot_nvfp4_q8_0``: one float sum over groups of 16 of ``(d' * scale) * sum``."""
    quants, scales, mins = unpacked_block(scratch)
    total = np.float32(0)
    for block in range(n // 64):
        d, _ = _unpack_nvfp4(row, block * _NVFP4_SIZE, quants, scales, mins)
        for group in range(4):
            start = (block * 2 + group // 2) * _Q8_0_SIZE
            d_other = half_to_float(load_u16(other, start + _Q8_0_D))
            scale = np.float32(d * np.float32(scales[group]))
            part = integer_dot(quants[group * 16 :], other, start + _Q8_0_QS + group % 2 * 16, 16)
            total = np.float32(total + np.float32(np.float32(d_other * scale) * np.float32(part)))
    return total


_Q8_1_SIZE, _Q8_1_D = layouts.Q8_1.type_size, layouts.Q8_1.offset("d")
_Q8_1_S, _Q8_1_QS = layouts.Q8_1.offset("s"), layouts.Q8_1.offset("qs")


def _make_minimum_term(name: str) -> Kernel:
    multiply_add = MULTIPLY_ADD[name]

    @jit(name=f"minimum_term_{name}")
    def term(d: np.float32, m: np.float32, d_other: np.float32, s_other: np.float32, whole: np.float32) -> np.float32:
        """Q4_1's and Q5_1's ``(d * d') * sum + m * s``."""
        return multiply_add(np.float32(d * d_other), whole, np.float32(m * s_other))

    return term


MINIMUM_TERM = {name: _make_minimum_term(name) for name in MULTIPLY_ADD}


def make_dot_q8_1(type_: GGMLType, name: str) -> Kernel:
    """Q4_1 and Q5_1 against Q8_1: one float sum over blocks of their term."""
    term, unpack, type_size = MINIMUM_TERM[name], UNPACK[type_], LAYOUTS[type_].type_size

    @jit(name=f"{name}_{type_.name}")
    def dot(row: U8, other: U8, n: int, scratch: U8) -> np.float32:
        quants, scales, mins = unpacked_block(scratch)
        total = np.float32(0)
        for block in range(n // 32):
            d, m = unpack(row, block * type_size, quants, scales, mins)
            start = block * _Q8_1_SIZE
            d_other = half_to_float(load_u16(other, start + _Q8_1_D))
            s_other = half_to_float(load_u16(other, start + _Q8_1_S))
            whole = np.float32(integer_dot(quants, other, start + _Q8_1_QS, 32))
            total = np.float32(total + term(d, m, d_other, s_other, whole))
        return total

    return dot
