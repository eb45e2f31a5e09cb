"""Arithmetic, activations and gated units, value by value, on 16 lanes: ``reference.elementwise`` and ``activations``.

All work on rows ``start`` to ``stop`` of float32 arrays [n_tokens, n] and write to ``out`` of the same shape. Where a
value depends on nothing but the values at its place, rows are one stream, whose end is a vector of fewer lanes.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from minillama.kernels.jit import Kernel, jit
from minillama.kernels.simd.floats import divide, load_first, store_first, where_greater
from minillama.kernels.simd.functions import (
    ABOVE_MINUS_10,
    exp_c_lanes,
    gelu_lanes,
    gelu_quick_lanes,
    negative,
    relu_lanes,
    sigmoid_lanes,
    tanh_lanes,
)
from minillama.kernels.simd.vectors import add, load_f32x16, multiply, splat_f32x16, store
from minillama.kernels.types import F32, I64

LANES = 16
_ZERO, _ONE = np.float32(0), np.float32(1)


def _make_stream(name: str, lanes: Kernel) -> Kernel:
    """``lanes(x, y, a, b)`` of n values of two arrays and of two numbers."""

    @jit(name=f"stream_{name}")
    def stream(x: F32, x_at: int, y: F32, y_at: int, a: np.float32, b: np.float32, out: F32, at: int, n: int) -> None:
        whole = n - n % LANES
        for k in range(0, whole, LANES):
            value = lanes(load_f32x16(x, 4 * (x_at + k)), load_f32x16(y, 4 * (y_at + k)), a, b)
            store(out, 4 * (at + k), value)
        if whole < n:
            rest = n - whole
            left, right = load_first(x, 4 * (x_at + whole), rest), load_first(y, 4 * (y_at + whole), rest)
            store_first(out, 4 * (at + whole), rest, lanes(left, right, a, b))

    return stream


def _make_unary(name: str, function: Kernel) -> Kernel:
    """``kernel(x, out, start, stop)``."""

    @jit(name=f"lanes_{name}")
    def lanes(x: object, _y: object, _a: np.float32, _b: np.float32) -> object:
        return function(x)

    stream = _make_stream(name, lanes)

    @jit(name=f"simd_{name}")
    def kernel(x: F32, out: F32, start: int, stop: int) -> None:
        n, flat = x.shape[1], x.reshape(-1)
        stream(flat, start * n, flat, start * n, _ZERO, _ZERO, out.reshape(-1), start * n, (stop - start) * n)

    return kernel


def _make_binary(name: str, lanes: Kernel) -> Kernel:
    """``kernel(x, y, out, start, stop)`` of two arrays of one shape."""
    stream = _make_stream(name, lanes)

    @jit(name=f"simd_{name}")
    def kernel(x: F32, y: F32, out: F32, start: int, stop: int) -> None:
        at, n = start * x.shape[1], (stop - start) * x.shape[1]
        stream(x.reshape(-1), at, y.reshape(-1), at, _ZERO, _ZERO, out.reshape(-1), at, n)

    return kernel


def _make_with_row(name: str, lanes: Kernel) -> Kernel:
    """``kernel(x, row, out, start, stop)`` of every row of x and one row."""
    stream = _make_stream(f"{name}_row", lanes)

    @jit(name=f"simd_{name}_row")
    def kernel(x: F32, row: F32, out: F32, start: int, stop: int) -> None:
        n, flat, result = x.shape[1], x.reshape(-1), out.reshape(-1)
        for t in range(start, stop):
            stream(flat, t * n, row, 0, _ZERO, _ZERO, result, t * n, n)

    return kernel


@jit
def _sum(x: object, y: object, _a: np.float32, _b: np.float32) -> object:
    return add(x, y)


@jit
def _product(x: object, y: object, _a: np.float32, _b: np.float32) -> object:
    return multiply(x, y)


@jit
def _quotient(x: object, y: object, _a: np.float32, _b: np.float32) -> object:
    return divide(x, y)


add_rows, div = _make_binary("add", _sum), _make_binary("div", _quotient)
add_bias, mul_row = _make_with_row("add", _sum), _make_with_row("mul", _product)


@jit
def _scaled(x: object, _y: object, factor: np.float32, _b: np.float32) -> object:
    return multiply(x, splat_f32x16(factor))


@jit
def _scaled_and_moved(x: object, _y: object, factor: np.float32, bias: np.float32) -> object:
    return add(multiply(x, splat_f32x16(factor)), splat_f32x16(bias))


@jit
def _capped(x: object, _y: object, cap: np.float32, inverse: np.float32) -> object:
    return multiply(tanh_lanes(multiply(x, splat_f32x16(inverse))), splat_f32x16(cap))


_stream_scaled, _stream_moved = _make_stream("scaled", _scaled), _make_stream("moved", _scaled_and_moved)
_stream_capped = _make_stream("capped", _capped)


@jit(name="simd_scale")
def scale(x: F32, factor: np.float32, bias: np.float32, out: F32, start: int, stop: int) -> None:
    """``ggml_scale_bias``; a bias of zero is not added."""
    flat, result, at, n = x.reshape(-1), out.reshape(-1), start * x.shape[1], (stop - start) * x.shape[1]
    if bias != 0:
        _stream_moved(flat, at, flat, at, factor, bias, result, at, n)
    else:
        _stream_scaled(flat, at, flat, at, factor, bias, result, at, n)


@jit(name="simd_mul_column")
def mul_column(x: F32, column: F32, out: F32, start: int, stop: int) -> None:
    """``ggml_mul`` of every row t with one number, ``column[t, 0]``."""
    n, flat, result = x.shape[1], x.reshape(-1), out.reshape(-1)
    for t in range(start, stop):
        _stream_scaled(flat, t * n, flat, t * n, column[t, 0], _ZERO, result, t * n, n)


@jit(name="simd_softcap")
def softcap(x: F32, cap: np.float32, out: F32, start: int, stop: int) -> None:
    """``cap * tanh(x / cap)`` as llama.cpp composes it: scaled by the inverse, ``ggml_tanh``, scaled."""
    flat, at, n = x.reshape(-1), start * x.shape[1], (stop - start) * x.shape[1]
    _stream_capped(flat, at, flat, at, cap, np.float32(_ONE / cap), out.reshape(-1), at, n)


@jit
def _copied(x: object, _y: object, _a: np.float32, _b: np.float32) -> object:
    return x


_stream_copied = _make_stream("copied", _copied)


@jit(name="simd_select_rows")
def select_rows(x: F32, rows: I64, out: F32, start: int, stop: int) -> None:
    """``ggml_get_rows`` of float32: row ``rows[i]`` of x becomes row i."""
    n, flat, result = x.shape[1], x.reshape(-1), out.reshape(-1)
    for i in range(start, stop):
        _stream_copied(flat, rows[i] * n, flat, rows[i] * n, _ZERO, _ZERO, result, i * n, n)


@jit(name="simd_select_columns")
def select_columns(x: F32, first: int, out: F32, start: int, stop: int) -> None:
    """Columns of x from ``first`` on, as many as ``out`` has."""
    n, width, flat, result = out.shape[1], x.shape[1], x.reshape(-1), out.reshape(-1)
    for t in range(start, stop):
        at = t * width + first
        _stream_copied(flat, at, flat, at, _ZERO, _ZERO, result, t * n, n)


@jit
def _reglu(gate: object, up: object, _a: np.float32, _b: np.float32) -> object:
    zero = splat_f32x16(_ZERO)
    return where_greater(gate, zero, multiply(gate, up), zero)


@jit
def _geglu(gate: object, up: object, _a: np.float32, _b: np.float32) -> object:
    product = multiply(gelu_lanes(gate), up)
    return where_greater(splat_f32x16(ABOVE_MINUS_10), gate, splat_f32x16(_ZERO), product)


@jit
def _geglu_quick(gate: object, up: object, _a: np.float32, _b: np.float32) -> object:
    return multiply(gelu_quick_lanes(gate), up)


@jit
def _swiglu_oai(gate: object, up: object, alpha: np.float32, limit: np.float32) -> object:
    most, least, one = splat_f32x16(limit), splat_f32x16(np.float32(-limit)), splat_f32x16(_ONE)
    x = where_greater(gate, most, most, gate)
    y = where_greater(least, up, least, where_greater(up, most, most, up))
    glu = divide(x, add(one, exp_c_lanes(multiply(splat_f32x16(alpha), negative(x)))))
    return multiply(glu, add(y, one))


_stream_oai = _make_stream("swiglu_oai", _swiglu_oai)


@jit(name="simd_swiglu_oai")
def swiglu_oai(gate: F32, up: F32, alpha: np.float32, limit: np.float32, out: F32, start: int, stop: int) -> None:
    """``ggml_compute_forward_swiglu_oai_f32`` (gpt-oss): ``gate * sigmoid(alpha gate) * (up + 1)``, both clamped."""
    at, n = start * gate.shape[1], (stop - start) * gate.shape[1]
    _stream_oai(gate.reshape(-1), at, up.reshape(-1), at, alpha, limit, out.reshape(-1), at, n)


# activation(x, out, start, stop) and gated(gate, up, out, start, stop), as in reference.activations
ACTIVATIONS: Mapping[str, Kernel] = {
    "relu": _make_unary("relu", relu_lanes),
    "sigmoid": _make_unary("sigmoid", sigmoid_lanes),
    "tanh": _make_unary("tanh", tanh_lanes),
    "gelu": _make_unary("gelu", gelu_lanes),
    "gelu_quick": _make_unary("gelu_quick", gelu_quick_lanes),
}
GATED: Mapping[str, Kernel] = {
    "reglu": _make_binary("reglu", _reglu),
    "geglu": _make_binary("geglu", _geglu),
    "geglu_quick": _make_binary("geglu_quick", _geglu_quick),
}
