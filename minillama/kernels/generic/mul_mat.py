"""Matrix products that unpack a block once and use it for every token; the sums are those of ``reference.dot``.

The inner loops over 32 or 256 integers are left to LLVM, which vectorises them on any machine. The order of the float
operations is the reference's: one sum per token over blocks in order, or for K-quants eight by k mod 8.
"""

from __future__ import annotations

import numpy as np

from minillama.gguf.constants import GGMLType
from minillama.kernels import layouts
from minillama.kernels.bits import half_to_float, load_f32, load_u16
from minillama.kernels.jit import Kernel, jit
from minillama.kernels.layouts import LAYOUTS
from minillama.kernels.reference import dot as reference
from minillama.kernels.reference.unpack import UNPACK
from minillama.kernels.scratch import BLOCK_BYTES, unpacked_block
from minillama.kernels.types import F32, I8, I32, U8

# Float sums per token after the unpacked block: eight lanes, and the minimums' sum.
SUMS_BYTES_PER_TOKEN = 9 * 4


@jit
def _integer_dot(quants: I8, other: I8) -> np.int32:
    total = np.int32(0)
    for j in range(32):
        total += np.int32(quants[j]) * np.int32(other[j])
    return np.int32(total)


_Q8_0_SIZE, _Q8_0_D, _Q8_0_QS = layouts.Q8_0.type_size, layouts.Q8_0.offset("d"), layouts.Q8_0.offset("qs")


def _make_mul_mat_q8_0(type_: GGMLType) -> Kernel:
    term, unpack, type_size = reference.TERM[type_], UNPACK[type_], LAYOUTS[type_].type_size

    @jit(name=f"generic_mul_mat_{type_.name}")
    def mul_mat(weight: U8, activation: U8, n: int, out: F32, scratch: U8, start: int, stop: int) -> None:
        quants, scales, mins = unpacked_block(scratch)
        signed = activation.view(np.int8)
        for r in range(start, stop):
            out[:, r] = 0
            for block in range(n // 32):
                d, _ = unpack(weight[r], block * type_size, quants, scales, mins)
                first = block * _Q8_0_SIZE
                for t in range(activation.shape[0]):
                    d_other = half_to_float(load_u16(activation[t], first + _Q8_0_D))
                    whole = np.float32(_integer_dot(quants, signed[t, first + _Q8_0_QS :]))
                    out[t, r] += term(d, d_other, whole)

    return mul_mat


_Q8_1_SIZE, _Q8_1_D = layouts.Q8_1.type_size, layouts.Q8_1.offset("d")
_Q8_1_S, _Q8_1_QS = layouts.Q8_1.offset("s"), layouts.Q8_1.offset("qs")


def _make_mul_mat_q8_1(type_: GGMLType) -> Kernel:
    term, unpack, type_size = reference.minimum_term, UNPACK[type_], LAYOUTS[type_].type_size

    @jit(name=f"generic_mul_mat_{type_.name}")
    def mul_mat(weight: U8, activation: U8, n: int, out: F32, scratch: U8, start: int, stop: int) -> None:
        quants, scales, mins = unpacked_block(scratch)
        signed = activation.view(np.int8)
        for r in range(start, stop):
            out[:, r] = 0
            for block in range(n // 32):
                d, m = unpack(weight[r], block * type_size, quants, scales, mins)
                first = block * _Q8_1_SIZE
                for t in range(activation.shape[0]):
                    d_other = half_to_float(load_u16(activation[t], first + _Q8_1_D))
                    s_other = half_to_float(load_u16(activation[t], first + _Q8_1_S))
                    whole = np.float32(_integer_dot(quants, signed[t, first + _Q8_1_QS :]))
                    out[t, r] += term(d, m, d_other, s_other, whole)

    return mul_mat


_Q8_K_SIZE, _Q8_K_D = layouts.Q8_K.type_size, layouts.Q8_K.offset("d")
_Q8_K_QS, _Q8_K_BSUMS = layouts.Q8_K.offset("qs"), layouts.Q8_K.offset("bsums")


@jit
def _lane_sums(quants: I8, scales: I32, other: I8, lanes: I32) -> None:
    lanes[:] = 0
    for group in range(16):
        scale, base = scales[group], group * 16
        for lane in range(8):
            near = np.int32(quants[base + lane]) * np.int32(other[base + lane])
            far = np.int32(quants[base + 8 + lane]) * np.int32(other[base + 8 + lane])
            lanes[lane] += np.int32(scale * np.int32(near + far))


def _make_mul_mat_q8_k(type_: GGMLType) -> Kernel:
    unpack, type_size = UNPACK[type_], LAYOUTS[type_].type_size
    has_minimum = "dmin" in dict(LAYOUTS[type_].fields)

    @jit(name=f"generic_mul_mat_{type_.name}")
    def mul_mat(weight: U8, activation: U8, n: int, out: F32, scratch: U8, start: int, stop: int) -> None:
        quants, scales, mins = unpacked_block(scratch)
        lanes = scratch[BLOCK_BYTES : BLOCK_BYTES + 32].view(np.int32)
        n_tokens = activation.shape[0]
        sums = scratch[BLOCK_BYTES + 64 : BLOCK_BYTES + 64 + 32 * n_tokens].view(np.float32).reshape(n_tokens, 8)
        signed = activation.view(np.int8)
        for r in range(start, stop):
            out[:, r] = 0
            sums[:] = 0
            for block in range(n // 256):
                d, dmin = unpack(weight[r], block * type_size, quants, scales, mins)
                first = block * _Q8_K_SIZE
                for t in range(n_tokens):
                    d_other = load_f32(activation[t], first + _Q8_K_D)
                    _lane_sums(quants, scales, signed[t, first + _Q8_K_QS :], lanes)
                    scale = np.float32(d * d_other)
                    for lane in range(8):
                        sums[t, lane] += np.float32(scale * np.float32(lanes[lane]))
                    if has_minimum:
                        low = np.float32(reference.minimum_sum(mins, activation[t], first + _Q8_K_BSUMS))
                        out[t, r] -= np.float32(np.float32(dmin * d_other) * low)
            for t in range(n_tokens):
                for lane in range(8):
                    out[t, r] += sums[t, lane]

    return mul_mat


# mul_mat as in kernels.reference.dot, with scratch for SUMS_BYTES_PER_TOKEN more. Types not named use the reference's.
MUL_MAT: dict[GGMLType, Kernel] = {
    **reference.MUL_MAT,
    **{type_: _make_mul_mat_q8_0(type_) for type_ in reference.TERM},
    **{type_: _make_mul_mat_q8_1(type_) for type_ in (GGMLType.Q4_1, GGMLType.Q5_1)},
    **{type_: _make_mul_mat_q8_k(type_) for type_ in (GGMLType.Q3_K, GGMLType.Q4_K, GGMLType.Q5_K, GGMLType.Q6_K)},
}
