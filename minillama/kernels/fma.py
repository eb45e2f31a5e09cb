"""Fused multiply-add as an operation of its own: where it happens is written down, never left to a compiler."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, overload


def fma(a: float, b: float, c: float) -> float:
    """``a * b + c`` in double, rounded once. This body runs when jitting is disabled; all arguments must be finite."""
    return float(Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c)))


@intrinsic
def _llvm_fma(_typing: Any, a: Any, b: Any, c: Any) -> Any:
    def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        double = ir.DoubleType()
        signature = ir.FunctionType(double, [double, double, double])
        return builder.call(cgutils.get_or_insert_function(builder.module, signature, "llvm.fma.f64"), arguments)

    return types.float64(types.float64, types.float64, types.float64), codegen


@overload(fma)
def _fma_overload(a: float, b: float, c: float) -> Any:
    def compiled(a: float, b: float, c: float) -> Any:
        return _llvm_fma(a, b, c)

    return compiled
