"""Products with the experts that each token chose (``ggml_mul_mat_id``)."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from minillama.gguf.constants import GGMLType
from minillama.kernels.jit import Kernel, jit
from minillama.kernels.reference.dot import MUL_MAT
from minillama.kernels.types import F32, I32, U8


@functools.cache  # where backends share a product, they share this too
def _make_mul_mat_id(type_: GGMLType, mul_mat: Kernel) -> Kernel:
    @jit(name=f"{mul_mat.__name__}_id_{type_.name}")
    def mul_mat_id(weight: U8, activation: U8, ids: I32, n: int, out: F32, scratch: U8, start: int, stop: int) -> None:
        for t in range(ids.shape[0]):
            for i in range(ids.shape[1]):
                own = i % activation.shape[1]
                rows, other = weight[ids[t, i]], activation[t, own : own + 1]
                mul_mat(rows, other, n, out[t, i : i + 1], scratch, start, stop)

    return mul_mat_id


def mul_mat_id_of(products: Mapping[GGMLType, Kernel]) -> dict[GGMLType, Kernel]:
    """A backend's products with chosen experts, out of its ``mul_mat`` kernels.

    ``mul_mat_id(weight: uint8 [n_expert, n_rows, row_bytes], activation: uint8 [n_tokens, n_used or 1, bytes], ids:
    int32 [n_tokens, n_used], n, out: float32 [n_tokens, n_used, n_rows], scratch, start, stop)``: rows of
    the chosen experts, each product as in ``mul_mat``.
    """
    return {type_: _make_mul_mat_id(type_, kernel) for type_, kernel in products.items()}


MUL_MAT_ID = mul_mat_id_of(MUL_MAT)
