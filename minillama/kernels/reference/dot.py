"""Dot products of a packed row with a converted row, in the order of ggml's ``ggml_vec_dot_*_generic``.

Integer sums are exact in any order; what fixes the bits is the order of the float operations, and each function says
which it is. ``DOT`` contracts no multiply-add: this is the arithmetic of llama.cpp's baseline build. ``DOT_FUSED`` is
that of libggml-python, which GCC 14 compiled for machines with FMA: the same source with another ``multiply_add``. Only
some types have one. In the others GCC separates the products from their sum when it vectorises, and fuses nothing.
"""

from __future__ import annotations

import numpy as np

from minillama.gguf.constants import GGMLType
from minillama.kernels.bits import bfloat_to_float, half_to_float, load_f32, load_u16
from minillama.kernels.jit import Kernel, jit
from minillama.kernels.reference import dot_q8_0, dot_q8_k
from minillama.kernels.reference.iq import FACTOR
from minillama.kernels.types import F32, U8


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


def _multiply_add_dots(name: str) -> dict[GGMLType, Kernel]:
    """The dots with a multiply-add that GCC fuses."""
    return {
        GGMLType.Q4_1: dot_q8_0.make_dot_q8_1(GGMLType.Q4_1, name),
        GGMLType.Q5_1: dot_q8_0.make_dot_q8_1(GGMLType.Q5_1, name),
        GGMLType.Q2_K: dot_q8_k.make_dot_q2_k(name),
        **{type_: dot_q8_k.make_dot_q8_k(type_, name) for type_ in (GGMLType.Q4_K, GGMLType.Q5_K)},
        **{
            type_: dot_q8_k.make_dot_scaled_sum(type_, name, inner=FACTOR[type_])
            for type_ in (GGMLType.IQ1_S, GGMLType.IQ1_M)
        },
    }


_OUTER_FACTOR = ("TQ1_0", "TQ2_0", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S")
_OTHER_DOTS: dict[GGMLType, Kernel] = {
    **{type_: dot_q8_0.make_dot_q8_0(type_) for type_ in dot_q8_0.TERM},
    GGMLType.Q1_0: dot_q8_0.make_dot_of_parts(GGMLType.Q1_0),
    GGMLType.Q2_0: dot_q8_0.make_dot_of_parts(GGMLType.Q2_0),
    GGMLType.NVFP4: dot_q8_0.dot_nvfp4,
    GGMLType.Q3_K: dot_q8_k.make_dot_q8_k(GGMLType.Q3_K),
    GGMLType.Q6_K: dot_q8_k.make_dot_q8_k(GGMLType.Q6_K),
    **{t: dot_q8_k.make_dot_scaled_sum(t, outer=FACTOR.get(t, 1)) for t in (GGMLType[name] for name in _OUTER_FACTOR)},
    GGMLType.IQ4_XS: dot_q8_k.dot_iq4_xs,
}

# dot(row: uint8 [row_bytes], other: uint8 [row_bytes of the activation type], n, scratch: DOT_BYTES) -> float32.
DOT: dict[GGMLType, Kernel] = {
    GGMLType.F32: dot_f32,
    GGMLType.F16: dot_f16,
    GGMLType.BF16: dot_bf16,
    **_OTHER_DOTS,
    **_multiply_add_dots("dot"),
}
# Without F32, F16 and BF16, which builds with FMA sum in vectors.
DOT_FUSED: dict[GGMLType, Kernel] = {**_OTHER_DOTS, **_multiply_add_dots("dot_fused")}


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
