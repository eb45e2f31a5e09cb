"""Multiply-add, fused and separate: where a compiler would contract is written down, never left to one."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, overload

from minillama.kernels.jit import jit


def fma(a: float, b: float, c: float) -> float:
    """``a * b + c`` in double, rounded once. This body runs when jitting is disabled; all arguments must be finite."""
    return float(Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c)))


def fmaf(a: np.float32, b: np.float32, c: np.float32) -> np.float32:
    """``a * b + c`` in float32, rounded once. This body runs when jitting is disabled."""
    product = float(a) * float(b)  # exact: 48 bits
    total = product + float(c)
    if math.isfinite(total):
        # Rounded to odd, so that what is lost here still counts when the sum is rounded to float32.
        lost = Fraction(product) + Fraction(float(c)) - Fraction(total)
        if lost and not np.float64(total).view(np.uint64) & np.uint64(1):
            total = math.nextafter(total, math.inf if lost > 0 else -math.inf)
    return np.float32(total)


def _make_llvm_fma(floating: Any, number: Any, suffix: str) -> Any:
    @intrinsic
    def llvm_fma(_typing: Any, a: Any, b: Any, c: Any) -> Any:
        def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            signature = ir.FunctionType(floating, [floating] * 3)
            name = f"llvm.fma.{suffix}"
            return builder.call(cgutils.get_or_insert_function(builder.module, signature, name), arguments)

        return number(number, number, number), codegen

    return llvm_fma


_llvm_fma = _make_llvm_fma(ir.DoubleType(), types.float64, "f64")
_llvm_fmaf = _make_llvm_fma(ir.FloatType(), types.float32, "f32")


@overload(fma)
def _fma_overload(a: float, b: float, c: float) -> Any:
    def compiled(a: float, b: float, c: float) -> Any:
        return _llvm_fma(a, b, c)

    return compiled


@overload(fmaf)
def _fmaf_overload(a: np.float32, b: np.float32, c: np.float32) -> Any:
    def compiled(a: np.float32, b: np.float32, c: np.float32) -> Any:
        return _llvm_fmaf(a, b, c)

    return compiled


@jit
def fused_multiply_add(a: np.float32, b: np.float32, c: np.float32) -> np.float32:
    """``a * b + c`` in float32, rounded once: what a compiler makes of it that contracts."""
    return fmaf(a, b, c)


@jit
def separate_multiply_add(a: np.float32, b: np.float32, c: np.float32) -> np.float32:
    """``a * b + c`` in float32, the product rounded and then the sum: what the source says."""
    return np.float32(np.float32(a * b) + c)
