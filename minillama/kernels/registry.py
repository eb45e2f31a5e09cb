"""The one place where a backend's name becomes kernels."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numba
import numpy as np

from minillama.errors import InvalidInputError
from minillama.gguf.constants import GGMLType
from minillama.kernels.jit import Kernel
from minillama.kernels.layouts import LAYOUTS
from minillama.kernels.scratch import DOT_BYTES

BACKENDS = ("cpu", "reference")


@dataclass(frozen=True)
class KernelSet:
    """The kernels of one backend, by operation. Signatures are beside their definitions in ``kernels.reference``."""

    name: str
    get_rows: Mapping[GGMLType, Kernel]
    quantize: Mapping[GGMLType, Kernel]
    mul_mat: Mapping[GGMLType, Kernel]
    store_kv: Mapping[np.dtype[Any], Kernel]
    attention: Mapping[np.dtype[Any], Kernel]
    rms_norm: Kernel
    rope_table: Kernel
    rope_norm: Kernel
    rope_neox: Kernel
    add: Kernel
    add_bias: Kernel
    select_rows: Kernel
    swiglu: Kernel
    attention_window: Mapping[np.dtype[Any], Kernel]
    mul_mat_id: Mapping[GGMLType, Kernel]
    soft_max: Kernel
    argsort: Kernel
    take_experts: Kernel
    normalize_weights: Kernel
    add_expert_bias: Kernel
    sum_experts: Kernel
    layer_norm: Kernel
    rope_table_yarn: Kernel
    activation: Mapping[str, Kernel]
    gated: Mapping[str, Kernel]
    swiglu_oai: Kernel
    scale: Kernel
    softcap: Kernel
    div: Kernel
    mul_row: Kernel
    mul_column: Kernel
    select_columns: Kernel

    def activation_bytes(self, type_: GGMLType, n: int) -> int:
        """Bytes of ``n`` values in the form a product takes them in."""
        return LAYOUTS[type_].row_bytes(n)

    def mul_mat_scratch(self, _type: GGMLType, n: int, n_tokens: int) -> int:
        """Working memory of a thread in a matrix product."""
        return DOT_BYTES + 8 * n_tokens * -(-n // 32)

    def mul_mat_rows(self, _type: GGMLType) -> int:
        """Where ranges of rows are best cut."""
        return 1


def _reference() -> KernelSet:
    from minillama.kernels.reference import (
        activations,
        attention,
        attention_window,
        dequantize,
        dot,
        elementwise,
        experts,
        quantize,
        rope,
        routing,
        softmax,
        sorting,
    )

    return KernelSet(
        name="reference",
        get_rows=dequantize.GET_ROWS,
        quantize=quantize.QUANTIZE,
        mul_mat=dot.MUL_MAT,
        store_kv=attention.STORE_KV,
        attention=attention.ATTENTION,
        rms_norm=elementwise.rms_norm,
        rope_table=rope.rope_table,
        rope_norm=rope.rope_norm,
        rope_neox=rope.rope_neox,
        add=elementwise.add,
        add_bias=elementwise.add_bias,
        select_rows=elementwise.select_rows,
        swiglu=elementwise.swiglu,
        attention_window=attention_window.ATTENTION_WINDOW,
        mul_mat_id=experts.MUL_MAT_ID,
        soft_max=softmax.SOFT_MAX_EXT[np.dtype(np.float32)],
        argsort=sorting.argsort,
        take_experts=routing.take_experts,
        normalize_weights=routing.normalize_weights,
        add_expert_bias=routing.add_expert_bias,
        sum_experts=routing.sum_experts,
        layer_norm=elementwise.layer_norm,
        rope_table_yarn=rope.rope_table_yarn,
        activation=activations.ACTIVATIONS,
        gated=activations.GATED,
        swiglu_oai=activations.swiglu_oai,
        scale=elementwise.scale,
        softcap=elementwise.softcap,
        div=elementwise.div,
        mul_row=elementwise.mul_row,
        mul_column=elementwise.mul_column,
        select_columns=elementwise.select_columns,
    )


def _cpu() -> KernelSet:
    from minillama.kernels.simd import attention, mul_mat

    return replace(_reference(), name="cpu", mul_mat=mul_mat.MUL_MAT, attention=attention.ATTENTION)


@functools.cache
def kernel_set(backend: str) -> KernelSet:
    """Kernels of a backend: ``"cpu"`` (fast) or ``"reference"`` (plain loops); both give the same bits.

    Raises
    ------
    InvalidInputError
        There is no backend of that name.
    """
    if backend not in BACKENDS:
        raise InvalidInputError(f"backend {backend!r} does not exist, there are {', '.join(BACKENDS)}")
    if backend == "reference":
        return _reference()
    if numba.config.DISABLE_JIT:
        raise InvalidInputError(
            "backend 'cpu' needs numba's compiler, which NUMBA_DISABLE_JIT switches off; use backend='reference'"
        )
    return _cpu()
