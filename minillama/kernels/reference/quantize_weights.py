"""Quantizing rows by type: what ``ggml_quantize_chunk`` does, and the two activation formats it does not make.

Without importances that is ``quantize_row_*_ref`` for every type but IQ4_NL, whose ``_ref`` does not search.
"""

from __future__ import annotations

from minillama.gguf.constants import GGMLType
from minillama.kernels.jit import Kernel, jit
from minillama.kernels.reference import (
    quantize,
    quantize_32,
    quantize_fp4,
    quantize_iq4,
    quantize_k,
    quantize_low_bit,
)
from minillama.kernels.types import F32, U8


def _over_rows(quantize_row: Kernel, name: str) -> Kernel:
    @jit(name=f"quantize_weight_{name}")
    def quantize_rows(x: F32, importance: F32, out: U8, start: int, stop: int) -> None:
        for row in range(start, stop):
            quantize_row(x[row], importance, out[row])

    return quantize_rows


def _unweighted(quantize_row: Kernel, name: str) -> Kernel:
    @jit(name=f"quantize_weight_{name}")
    def quantize_rows(x: F32, importance: F32, out: U8, start: int, stop: int) -> None:
        for row in range(start, stop):
            quantize_row(x[row], out[row])

    return quantize_rows


# quantize_rows(x: float32 [n_rows, n], importance: float32 [n], or [0] for none, out: uint8 [n_rows, row_bytes], start,
# stop): rows start..stop of x, quantized. Types without a search take no notice of the importance, as in ggml.
QUANTIZE_WEIGHTS: dict[GGMLType, Kernel] = {
    GGMLType.F32: _unweighted(quantize.quantize_row_f32, "F32"),
    GGMLType.F16: _unweighted(quantize.quantize_row_f16, "F16"),
    GGMLType.BF16: _unweighted(quantize.quantize_row_bf16, "BF16"),
    GGMLType.Q4_0: _over_rows(quantize_32.quantize_row_q4_0, "Q4_0"),
    GGMLType.Q4_1: _over_rows(quantize_32.quantize_row_q4_1, "Q4_1"),
    GGMLType.Q5_0: _over_rows(quantize_32.quantize_row_q5_0, "Q5_0"),
    GGMLType.Q5_1: _over_rows(quantize_32.quantize_row_q5_1, "Q5_1"),
    GGMLType.Q8_0: _unweighted(quantize.quantize_row_q8_0, "Q8_0"),
    GGMLType.Q8_1: _unweighted(quantize.quantize_row_q8_1, "Q8_1"),
    GGMLType.Q2_K: _over_rows(quantize_k.quantize_row_q2_k, "Q2_K"),
    GGMLType.Q3_K: _over_rows(quantize_k.quantize_row_q3_k, "Q3_K"),
    GGMLType.Q4_K: _over_rows(quantize_k.quantize_row_q4_k, "Q4_K"),
    GGMLType.Q5_K: _over_rows(quantize_k.quantize_row_q5_k, "Q5_K"),
    GGMLType.Q6_K: _over_rows(quantize_k.quantize_row_q6_k, "Q6_K"),
    GGMLType.Q8_K: _unweighted(quantize.quantize_row_q8_k, "Q8_K"),
    GGMLType.IQ4_NL: _over_rows(quantize_iq4.quantize_row_iq4_nl, "IQ4_NL"),
    GGMLType.IQ4_XS: _over_rows(quantize_iq4.quantize_row_iq4_xs, "IQ4_XS"),
    GGMLType.TQ1_0: _over_rows(quantize_low_bit.quantize_row_tq1_0, "TQ1_0"),
    GGMLType.TQ2_0: _over_rows(quantize_low_bit.quantize_row_tq2_0, "TQ2_0"),
    GGMLType.Q1_0: _over_rows(quantize_low_bit.quantize_row_q1_0, "Q1_0"),
    GGMLType.Q2_0: _over_rows(quantize_low_bit.quantize_row_q2_0, "Q2_0"),
    GGMLType.MXFP4: _over_rows(quantize_fp4.quantize_row_mxfp4, "MXFP4"),
    GGMLType.NVFP4: _over_rows(quantize_fp4.quantize_row_nvfp4, "NVFP4"),
}
