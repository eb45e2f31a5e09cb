"""Converting a float32 row to the type the other operand of a dot product wants: ggml's ``from_float``."""

from __future__ import annotations

import numpy as np

from minillama.gguf.constants import GGMLType
from minillama.kernels import layouts
from minillama.kernels.bits import float_to_bfloat, float_to_half, nearest_int, round_half_away, store_f32, store_u16
from minillama.kernels.jit import Kernel, jit
from minillama.kernels.types import F32, U8


@jit
def quantize_row_f32(x: F32, out: U8) -> None:
    """The bytes of the row itself."""
    for k in range(x.shape[0]):
        store_f32(out, 4 * k, x[k])


@jit
def quantize_row_f16(x: F32, out: U8) -> None:
    """``ggml_fp32_to_fp16_row``: nearest half, ties to even."""
    for k in range(x.shape[0]):
        store_u16(out, 2 * k, float_to_half(x[k]))


@jit
def quantize_row_bf16(x: F32, out: U8) -> None:
    """``ggml_fp32_to_bf16_row``: nearest bfloat16, ties to even."""
    for k in range(x.shape[0]):
        store_u16(out, 2 * k, float_to_bfloat(x[k]))


@jit
def quantize_32(x: F32, first: int, quants: U8, at: int) -> tuple[np.float32, np.int32]:
    """32 values to int8 by the scale max|x| / 127; returns the scale, not yet rounded to half, and the quants' sum."""
    largest = np.float32(0)
    for j in range(32):
        magnitude = np.float32(abs(x[first + j]))
        largest = largest if largest > magnitude else magnitude
    d = np.float32(largest / np.float32(127))
    inverse = np.float32(np.float32(1) / d) if d != 0 else np.float32(0)
    total = np.int32(0)
    for j in range(32):
        quant = np.int32(round_half_away(np.float32(x[first + j] * inverse)))
        quants[at + j] = np.uint8(quant & 255)
        total = np.int32(total + np.int8(quant))
    return d, total


_Q8_0_SIZE, _Q8_0_D, _Q8_0_QS = layouts.Q8_0.type_size, layouts.Q8_0.offset("d"), layouts.Q8_0.offset("qs")


@jit
def quantize_row_q8_0(x: F32, out: U8) -> None:
    """``quantize_row_q8_0_ref``: quants by the unrounded scale, halves away from zero; the scale is stored as half."""
    for block in range(x.shape[0] // 32):
        start = block * _Q8_0_SIZE
        d, _ = quantize_32(x, block * 32, out, start + _Q8_0_QS)
        store_u16(out, start + _Q8_0_D, float_to_half(d))


_Q8_1_SIZE, _Q8_1_D = layouts.Q8_1.type_size, layouts.Q8_1.offset("d")
_Q8_1_S, _Q8_1_QS = layouts.Q8_1.offset("s"), layouts.Q8_1.offset("qs")


@jit
def quantize_row_q8_1(x: F32, out: U8) -> None:
    """``quantize_row_q8_1_ref``: as Q8_0, and ``s`` is the sum of the quants times the unrounded scale."""
    for block in range(x.shape[0] // 32):
        start = block * _Q8_1_SIZE
        d, total = quantize_32(x, block * 32, out, start + _Q8_1_QS)
        store_u16(out, start + _Q8_1_D, float_to_half(d))
        store_u16(out, start + _Q8_1_S, float_to_half(np.float32(np.float32(total) * d)))


_Q8_K_SIZE, _Q8_K_D = layouts.Q8_K.type_size, layouts.Q8_K.offset("d")
_Q8_K_QS, _Q8_K_BSUMS = layouts.Q8_K.offset("qs"), layouts.Q8_K.offset("bsums")


@jit
def quantize_row_q8_k(x: F32, out: U8) -> None:
    """``quantize_row_q8_K_ref``: the value of largest magnitude becomes -127; halves to even.

    In a block of zeros ggml leaves the sums of 16 as they were in memory; here they are zero (their factor is zero).
    """
    for block in range(x.shape[0] // 256):
        start, first = block * _Q8_K_SIZE, block * 256
        largest, extreme = np.float32(0), np.float32(0)
        for j in range(256):
            magnitude = np.float32(abs(x[first + j]))
            if magnitude > largest:
                largest, extreme = magnitude, x[first + j]
        if largest == 0:
            out[start : start + _Q8_K_SIZE] = 0
            continue
        inverse = np.float32(np.float32(-127) / extreme)
        for group in range(16):
            total = np.int32(0)
            for j in range(group * 16, group * 16 + 16):
                quant = min(np.int32(127), nearest_int(np.float32(inverse * x[first + j])))
                out[start + _Q8_K_QS + j] = np.uint8(quant & 255)
                total = np.int32(total + np.int8(quant))
            store_u16(out, start + _Q8_K_BSUMS + 2 * group, np.uint32(total & 0xFFFF))
        store_f32(out, start + _Q8_K_D, np.float32(np.float32(1) / inverse))


def _over_rows(quantize_row: Kernel, name: str) -> Kernel:
    @jit(name=f"quantize_{name}")
    def quantize(x: F32, out: U8, start: int, stop: int) -> None:
        for t in range(start, stop):
            quantize_row(x[t], out[t])

    return quantize


# quantize(x: float32 [n_tokens, n], out: uint8 [n_tokens, row_bytes], start, stop): rows start..stop of x, converted.
QUANTIZE: dict[GGMLType, Kernel] = {
    GGMLType.F32: _over_rows(quantize_row_f32, "F32"),
    GGMLType.F16: _over_rows(quantize_row_f16, "F16"),
    GGMLType.BF16: _over_rows(quantize_row_bf16, "BF16"),
    GGMLType.Q8_0: _over_rows(quantize_row_q8_0, "Q8_0"),
    GGMLType.Q8_1: _over_rows(quantize_row_q8_1, "Q8_1"),
    GGMLType.Q8_K: _over_rows(quantize_row_q8_k, "Q8_K"),
}
