"""Decoding packed rows to float32, bit-identical to ggml's ``dequantize_row_*`` (its ``to_float``)."""

from __future__ import annotations

import numpy as np

from minillama.gguf.constants import GGMLType
from minillama.kernels.bits import bfloat_to_float, half_to_float, load_f32, load_u16
from minillama.kernels.jit import Kernel, jit
from minillama.kernels.layouts import LAYOUTS
from minillama.kernels.reference.blocks import GROUP_SCALES, ONE_SCALE
from minillama.kernels.reference.iq import FACTOR
from minillama.kernels.scratch import unpacked_block
from minillama.kernels.types import F32, I64, U8


@jit
def _get_rows_f32(weight: U8, ids: I64, out: F32, scratch: U8, start: int, stop: int) -> None:
    for i in range(start, stop):
        for k in range(out.shape[1]):
            out[i, k] = load_f32(weight[ids[i]], 4 * k)


@jit
def _get_rows_f16(weight: U8, ids: I64, out: F32, scratch: U8, start: int, stop: int) -> None:
    for i in range(start, stop):
        for k in range(out.shape[1]):
            out[i, k] = half_to_float(load_u16(weight[ids[i]], 2 * k))


@jit
def _get_rows_bf16(weight: U8, ids: I64, out: F32, scratch: U8, start: int, stop: int) -> None:
    for i in range(start, stop):
        for k in range(out.shape[1]):
            out[i, k] = bfloat_to_float(load_u16(weight[ids[i]], 2 * k))


def _make_get_rows_one_scale(type_: GGMLType) -> Kernel:
    """``quants * d + m`` per value, each operation rounded to float32."""
    unpack, block_size, type_size = ONE_SCALE[type_], LAYOUTS[type_].block_size, LAYOUTS[type_].type_size

    @jit(name=f"get_rows_{type_.name}")
    def get_rows(weight: U8, ids: I64, out: F32, scratch: U8, start: int, stop: int) -> None:
        quants, scales, mins = unpacked_block(scratch)
        for i in range(start, stop):
            for block in range(out.shape[1] // block_size):
                d, m = unpack(weight[ids[i]], block * type_size, quants, scales, mins)
                for j in range(block_size):
                    out[i, block * block_size + j] = np.float32(np.float32(quants[j]) * d) + m

    return get_rows


def _make_get_rows_group_scales(type_: GGMLType) -> Kernel:
    """``((d * scale) * factor) * quants - (dmin * min)`` per value, each operation rounded to float32."""
    unpack, block_size, type_size = GROUP_SCALES[type_], LAYOUTS[type_].block_size, LAYOUTS[type_].type_size
    factor = np.float32(FACTOR.get(type_, 1))

    @jit(name=f"get_rows_{type_.name}")
    def get_rows(weight: U8, ids: I64, out: F32, scratch: U8, start: int, stop: int) -> None:
        quants, scales, mins = unpacked_block(scratch)
        for i in range(start, stop):
            for block in range(out.shape[1] // block_size):
                d, dmin = unpack(weight[ids[i]], block * type_size, quants, scales, mins)
                for j in range(block_size):
                    scale = np.float32(np.float32(d * np.float32(scales[j // 16])) * factor)
                    minimum = np.float32(dmin * np.float32(mins[j // 16]))
                    out[i, block * block_size + j] = np.float32(scale * np.float32(quants[j])) - minimum

    return get_rows


# get_rows(weight: uint8 [n_rows, row_bytes], ids: int64 [n], out: float32 [n, n_values], scratch: BLOCK_BYTES, start,
# stop): row ids[i] of the weight, decoded, for i in start..stop.
GET_ROWS: dict[GGMLType, Kernel] = {
    GGMLType.F32: _get_rows_f32,
    GGMLType.F16: _get_rows_f16,
    GGMLType.BF16: _get_rows_bf16,
    **{type_: _make_get_rows_one_scale(type_) for type_ in ONE_SCALE},
    **{type_: _make_get_rows_group_scales(type_) for type_ in GROUP_SCALES},
}
