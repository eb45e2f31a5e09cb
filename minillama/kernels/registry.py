"""The one place where a backend's name becomes kernels."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numba
import numpy as np

from minillama.errors import InvalidInputError
from minillama.gguf.constants import GGMLType
from minillama.kernels.jit import Kernel
from minillama.kernels.layouts import LAYOUTS
from minillama.kernels.scratch import DOT_BYTES

if TYPE_CHECKING:
    from minillama.kernels.reference.kv_kinds import Pair

BACKENDS = ("cpu", "reference")


@dataclass(frozen=True)
class KernelSet:
    """The kernels of one backend, by operation. Signatures are beside their definitions in ``kernels.reference``.

    How a converted row is laid out is the backend's own affair: its ``mul_mat`` reads what its ``quantize`` writes.

    Attributes
    ----------
    activation_bytes
        ``activation_bytes(type, n)``: bytes of a row of ``n`` values converted to an activation type.
    mul_mat_scratch
        ``mul_mat_scratch(type, n, n_tokens)``: bytes of scratch a thread needs for a product with weights of a type.
    attention
        Only for caches whose keys and values are of one dtype, as ``attention_window``; ``attention_of_any_kind``
        is for all, with the limits of ``attention_window``, a head of a token an item.
    mul_mat_rows
        ``mul_mat_rows(type)``: ranges of the weight's rows are best cut at multiples of this.
    """

    name: str
    get_rows: Mapping[GGMLType, Kernel]
    quantize: Mapping[GGMLType, Kernel]
    activation_bytes: Callable[[GGMLType, int], int]
    mul_mat: Mapping[GGMLType, Kernel]
    mul_mat_scratch: Callable[[GGMLType, int, int], int]
    mul_mat_rows: Callable[[GGMLType], int]
    store_kv: Mapping[Pair, Kernel]
    attention: Mapping[np.dtype[Any], Kernel]
    attention_all: Kernel
    attention_items: Callable[[int, int], int]
    attention_scratch: Callable[[int, int], int]
    rms_norm: Kernel
    rope_table: Kernel
    rope_norm: Kernel
    rope_neox: Kernel
    add: Kernel
    add_bias: Kernel
    select_rows: Kernel
    swiglu: Kernel
    attention_window: Mapping[np.dtype[Any], Kernel]
    attention_window_items: Callable[[int, int], int]
    attention_window_scratch: Callable[[int, int, int], int]
    attention_of_any_kind: Mapping[Pair, Kernel]
    attention_scores: Mapping[Pair, Kernel]
    attention_soft_max: Kernel
    attention_soft_max_all: Kernel
    attention_outputs: Mapping[Pair, Kernel]
    hadamard: Kernel
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


def _reference() -> KernelSet:
    from minillama.kernels.reference import (
        activations,
        attention,
        attention_parts,
        attention_window,
        dequantize,
        dot,
        elementwise,
        experts,
        hadamard,
        kv_kinds,
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
        activation_bytes=lambda type_, n: LAYOUTS[type_].row_bytes(n),
        mul_mat=dot.MUL_MAT,
        mul_mat_scratch=lambda _type, _n, _n_tokens: DOT_BYTES,
        mul_mat_rows=lambda _type: 1,
        store_kv=kv_kinds.REFERENCE_STORE_KV,
        attention=attention.ATTENTION,
        attention_all=attention.ATTENTION_ALL,
        attention_items=attention.attention_items,
        attention_scratch=attention.attention_scratch,
        rms_norm=elementwise.rms_norm,
        rope_table=rope.rope_table,
        rope_norm=rope.rope_norm,
        rope_neox=rope.rope_neox,
        add=elementwise.add,
        add_bias=elementwise.add_bias,
        select_rows=elementwise.select_rows,
        swiglu=elementwise.swiglu,
        attention_window={dtype: attention_window.ATTENTION_WINDOW[dtype] for dtype in attention.ATTENTION},
        attention_window_items=attention.attention_items,
        attention_window_scratch=attention_window.attention_window_scratch,
        attention_of_any_kind=attention_window.ATTENTION_WINDOW,
        attention_scores=attention_parts.ATTENTION_SCORES,
        attention_soft_max=attention_parts.attention_soft_max,
        attention_soft_max_all=attention_parts.attention_soft_max_all,
        attention_outputs=attention_parts.ATTENTION_OUTPUTS,
        hadamard=hadamard.hadamard,
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
    from minillama.kernels.reference import experts, kv_kinds
    from minillama.kernels.simd import activations, attention, elementwise, mul_mat, rope, store_kv, values

    plain = _reference()
    return replace(
        plain,
        name="cpu",
        quantize=activations.QUANTIZE,
        activation_bytes=activations.activation_bytes,
        mul_mat=mul_mat.MUL_MAT,
        mul_mat_id=experts.mul_mat_id_of(mul_mat.MUL_MAT),
        mul_mat_scratch=mul_mat.mul_mat_scratch,
        mul_mat_rows=mul_mat.mul_mat_rows,
        store_kv=kv_kinds.store_kv_by_kind(store_kv.STORE_KV),
        attention=attention.ATTENTION,
        attention_all=attention.ATTENTION_ALL,
        attention_items=attention.attention_items,
        attention_scratch=attention.attention_scratch,
        attention_window=attention.ATTENTION_WINDOW,
        attention_window_items=attention.attention_items,
        attention_window_scratch=lambda n_kv, head_dim, _value_dim: attention.attention_scratch(n_kv, head_dim),
        rms_norm=elementwise.rms_norm,
        rope_norm=rope.rope_norm,
        rope_neox=rope.rope_neox,
        add=values.add_rows,
        add_bias=values.add_bias,
        select_rows=values.select_rows,
        swiglu=elementwise.swiglu,
        layer_norm=elementwise.layer_norm,
        activation={**plain.activation, **values.ACTIVATIONS, "silu": elementwise.silu},
        gated={**plain.gated, **values.GATED, "swiglu": elementwise.swiglu},
        swiglu_oai=values.swiglu_oai,
        scale=values.scale,
        softcap=values.softcap,
        div=values.div,
        mul_row=values.mul_row,
        mul_column=values.mul_column,
        select_columns=values.select_columns,
    )


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
