"""Products with the experts that each token chose (``ggml_mul_mat_id``)."""

from __future__ import annotations

from minillama.gguf.constants import GGMLType
from minillama.kernels.jit import Kernel, jit
from minillama.kernels.reference.dot import DOT
from minillama.kernels.types import F32, I32, U8


def _make_mul_mat_id(type_: GGMLType) -> Kernel:
    dot = DOT[type_]

    @jit(name=f"mul_mat_id_{type_.name}")
    def mul_mat_id(weight: U8, activation: U8, ids: I32, n: int, out: F32, scratch: U8, start: int, stop: int) -> None:
        for r in range(start, stop):
            for t in range(ids.shape[0]):
                for i in range(ids.shape[1]):
                    other = activation[t, i % activation.shape[1]]
                    out[t, i, r] = dot(weight[ids[t, i], r], other, n, scratch)

    return mul_mat_id


# mul_mat_id(weight: uint8 [n_expert, n_rows, row_bytes], activation: uint8 [n_tokens, n_used or 1, row_bytes], ids:
# int32 [n_tokens, n_used], n, out: float32 [n_tokens, n_used, n_rows], scratch, start, stop): rows start..stop of the
# chosen experts, each product as in ``mul_mat``.
MUL_MAT_ID: dict[GGMLType, Kernel] = {type_: _make_mul_mat_id(type_) for type_ in DOT}
