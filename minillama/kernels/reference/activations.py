"""Activations and gated linear units, in ggml's arithmetic: every step rounded to float32.

All work on rows ``start`` to ``stop`` of float32 arrays [n_tokens, n] and write to ``out`` of the same shape.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from minillama.kernels.bits import float_to_half, half_to_float
from minillama.kernels.jit import Kernel, jit
from minillama.kernels.reference.elementwise import swiglu
from minillama.kernels.reference.fdlibm import erff, tanhf
from minillama.kernels.reference.libm import exp_lane, expf
from minillama.kernels.types import F32

_F = np.float32
_ONE, _HALF = _F(1), _F(0.5)
_CUBIC, _SQRT_2_OVER_PI = _F(0.044715), _F(0.79788456080286535587989211986876)
_QUICK = _F(-1.702)
_INV_SQRT_2 = _F(0.70710678118654752440084436210484)


@jit
def relu_of(x: np.float32) -> np.float32:
    """``ggml_vec_relu_f32``; NaN gives 0."""
    return x if x > 0 else _F(0)


@jit
def sigmoid_of(x: np.float32) -> np.float32:
    """``ggml_vec_sigmoid_f32``: the C library's exponential for every value."""
    return _F(_ONE / _F(_ONE + expf(_F(-x))))


@jit
def gelu_of(x: np.float32) -> np.float32:
    """``ggml_vec_gelu_f32``: tanh's approximation, argument and result rounded to half, as ggml looks it up in a table.

    The table has a half for every half; beyond +-10 the value is taken without it.
    """
    if x <= _F(-10):
        return _F(0)
    if x >= _F(10):
        return x
    h = half_to_float(float_to_half(x))
    cubic = _F(_ONE + _F(_F(_CUBIC * h) * h))
    inner = tanhf(_F(_F(_SQRT_2_OVER_PI * h) * cubic))
    return half_to_float(float_to_half(_F(_F(_HALF * h) * _F(_ONE + inner))))


@jit
def gelu_quick_of(x: np.float32) -> np.float32:
    """``ggml_vec_gelu_quick_f32``: x times a sigmoid, argument and result rounded to half."""
    h = half_to_float(float_to_half(x))
    return half_to_float(float_to_half(_F(h * _F(_ONE / _F(_ONE + expf(_F(_QUICK * h)))))))


@jit
def gelu_erf_of(x: np.float32) -> np.float32:
    """``ggml_vec_gelu_erf_f32``: by the error function, in float32."""
    return _F(_F(_HALF * x) * _F(_ONE + erff(_F(x * _INV_SQRT_2))))


def _make_activation(name: str, function: Kernel) -> Kernel:
    @jit(name=f"activation_{name}")
    def activation(x: F32, out: F32, start: int, stop: int) -> None:
        for t in range(start, stop):
            for k in range(x.shape[1]):
                out[t, k] = function(x[t, k])

    return activation


def _make_gated(name: str, function: Kernel) -> Kernel:
    @jit(name=f"gated_{name}")
    def gated(gate: F32, up: F32, out: F32, start: int, stop: int) -> None:
        for t in range(start, stop):
            for k in range(gate.shape[1]):
                out[t, k] = function(gate[t, k]) * up[t, k]

    return gated


@jit
def silu(x: F32, out: F32, start: int, stop: int) -> None:
    """``ggml_vec_silu_f32``: ``x / (1 + exp(-x))``, in fours as in the SSE2 branch, the rest by libm."""
    n = x.shape[1]
    for t in range(start, stop):
        for k in range(n):
            power = exp_lane(_F(_F(0) - x[t, k])) if k < n - n % 4 else expf(_F(-x[t, k]))
            out[t, k] = x[t, k] / _F(_ONE + power)


@jit
def reglu(gate: F32, up: F32, out: F32, start: int, stop: int) -> None:
    """``ggml_vec_reglu_f32``: where the gate is not positive the result is 0, whatever ``up`` is."""
    for t in range(start, stop):
        for k in range(gate.shape[1]):
            out[t, k] = gate[t, k] * up[t, k] if gate[t, k] > 0 else _F(0)


@jit
def geglu(gate: F32, up: F32, out: F32, start: int, stop: int) -> None:
    """``ggml_vec_geglu_f32``: where the gate is at most -10 the result is 0, whatever ``up`` is."""
    for t in range(start, stop):
        for k in range(gate.shape[1]):
            out[t, k] = _F(0) if gate[t, k] <= _F(-10) else gelu_of(gate[t, k]) * up[t, k]


@jit
def swiglu_oai(gate: F32, up: F32, alpha: np.float32, limit: np.float32, out: F32, start: int, stop: int) -> None:
    """``ggml_compute_forward_swiglu_oai_f32`` (gpt-oss): ``gate * sigmoid(alpha gate) * (up + 1)``, both clamped."""
    for t in range(start, stop):
        for k in range(gate.shape[1]):
            x, y = gate[t, k], up[t, k]
            x = limit if limit < x else x
            y = _F(-limit) if y < -limit else limit if limit < y else y
            glu = _F(x / _F(_ONE + expf(_F(alpha * _F(-x)))))
            out[t, k] = glu * _F(y + _ONE)


# activation(x, out, start, stop)
ACTIVATIONS: Mapping[str, Kernel] = {
    "silu": silu,
    **{
        name: _make_activation(name, function)
        for name, function in {
            "relu": relu_of, "sigmoid": sigmoid_of, "tanh": tanhf, "gelu": gelu_of, "gelu_erf": gelu_erf_of,
            "gelu_quick": gelu_quick_of,
        }.items()
    },
}  # fmt: skip
# gated(gate, up, out, start, stop): ggml's GLU operations with gate and up apart (``ggml_*_split``)
GATED: Mapping[str, Kernel] = {
    "swiglu": swiglu,
    "reglu": reglu,
    "geglu": geglu,
    "geglu_erf": _make_gated("geglu_erf", gelu_erf_of),
    "geglu_quick": _make_gated("geglu_quick", gelu_quick_of),
}
