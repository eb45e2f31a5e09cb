"""The one place where a backend's name becomes kernels."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numba
import numpy as np

from minillama.errors import InvalidInputError
from minillama.gguf.constants import GGMLType
from minillama.kernels.jit import Kernel

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
    attention_items: Callable[[int, int], int]
    attention_scratch: Callable[[int, int], int]
    rms_norm: Kernel
    rope_table: Kernel
    rope_norm: Kernel
    rope_neox: Kernel
    add: Kernel
    add_bias: Kernel
    swiglu: Kernel


def _reference() -> KernelSet:
    from minillama.kernels.reference import attention, dequantize, dot, elementwise, quantize, rope

    return KernelSet(
        name="reference",
        get_rows=dequantize.GET_ROWS,
        quantize=quantize.QUANTIZE,
        mul_mat=dot.MUL_MAT,
        store_kv=attention.STORE_KV,
        attention=attention.ATTENTION,
        attention_items=attention.attention_items,
        attention_scratch=attention.attention_scratch,
        rms_norm=elementwise.rms_norm,
        rope_table=rope.rope_table,
        rope_norm=rope.rope_norm,
        rope_neox=rope.rope_neox,
        add=elementwise.add,
        add_bias=elementwise.add_bias,
        swiglu=elementwise.swiglu,
    )


def _cpu() -> KernelSet:
    from minillama.kernels.simd import attention, elementwise, mul_mat, rope, store_kv

    return replace(
        _reference(),
        name="cpu",
        mul_mat=mul_mat.MUL_MAT,
        store_kv=store_kv.STORE_KV,
        attention=attention.ATTENTION,
        attention_items=attention.attention_items,
        attention_scratch=attention.attention_scratch,
        rms_norm=elementwise.rms_norm,
        rope_norm=rope.rope_norm,
        rope_neox=rope.rope_neox,
        add=elementwise.add_rows,
        add_bias=elementwise.add_bias,
        swiglu=elementwise.swiglu,
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
