"""Norms and operations on single values, in ggml's arithmetic: every step rounded to float32 unless said otherwise.

All work on rows ``start`` to ``stop`` of float32 arrays [n_tokens, n] and write to ``out`` of the same shape.
"""

from __future__ import annotations

import numpy as np

from minillama.kernels.jit import jit
from minillama.kernels.reference.fdlibm import tanhf
from minillama.kernels.reference.libm import exp_lane, expf
from minillama.kernels.types import F32, I64


@jit
def rms_norm(x: F32, weight: F32, eps: np.float32, out: F32, start: int, stop: int) -> None:
    """``ggml_compute_forward_rms_norm_f32`` and the product with the weight: double sum, in order, of float squares."""
    n = x.shape[1]
    for t in range(start, stop):
        total = np.float64(0)
        for k in range(n):
            total += np.float64(np.float32(x[t, k] * x[t, k]))
        mean = np.float32(total / n)
        scale = np.float32(np.float32(1) / np.float32(np.sqrt(np.float32(mean + eps))))
        for k in range(n):
            out[t, k] = np.float32(x[t, k] * scale) * weight[k]


@jit
def layer_norm(x: F32, weight: F32, eps: np.float32, out: F32, start: int, stop: int) -> None:
    """``ggml_compute_forward_norm_f32`` and the product with the weight.

    The mean is a double sum, in order; the squares of the differences are summed in fours, (s0 + s1) + (s2 + s3) in
    float32, the fours and the last n mod 4 squares in double.
    """
    n = x.shape[1]
    for t in range(start, stop):
        total = np.float64(0)
        for k in range(n):
            total += np.float64(x[t, k])
        mean = np.float32(np.float32(total) / np.float32(n))
        for k in range(n):
            out[t, k] = x[t, k] - mean
        squares = np.float64(0)
        for k in range(0, n - n % 4, 4):
            low = np.float32(np.float32(out[t, k] * out[t, k]) + np.float32(out[t, k + 1] * out[t, k + 1]))
            high = np.float32(np.float32(out[t, k + 2] * out[t, k + 2]) + np.float32(out[t, k + 3] * out[t, k + 3]))
            squares += np.float64(np.float32(low + high))
        for k in range(n - n % 4, n):
            squares += np.float64(np.float32(out[t, k] * out[t, k]))
        variance = np.float32(squares / n)
        scale = np.float32(np.float32(1) / np.float32(np.sqrt(np.float32(variance + eps))))
        for k in range(n):
            out[t, k] = np.float32(out[t, k] * scale) * weight[k]


@jit
def add(x: F32, y: F32, out: F32, start: int, stop: int) -> None:
    """``ggml_add`` of two arrays of one shape."""
    for t in range(start, stop):
        for k in range(x.shape[1]):
            out[t, k] = x[t, k] + y[t, k]


@jit
def add_bias(x: F32, bias: F32, out: F32, start: int, stop: int) -> None:
    """``ggml_add`` of one row to every row."""
    for t in range(start, stop):
        for k in range(x.shape[1]):
            out[t, k] = x[t, k] + bias[k]


@jit
def select_rows(x: F32, rows: I64, out: F32, start: int, stop: int) -> None:
    """``ggml_get_rows`` of float32: row ``rows[i]`` of x becomes row i."""
    for i in range(start, stop):
        for k in range(x.shape[1]):
            out[i, k] = x[rows[i], k]


@jit
def mul(x: F32, y: F32, out: F32, start: int, stop: int) -> None:
    """``ggml_mul`` of two arrays of one shape; of an array with itself, ``ggml_sqr``."""
    for t in range(start, stop):
        for k in range(x.shape[1]):
            out[t, k] = x[t, k] * y[t, k]


@jit
def mul_row(x: F32, weight: F32, out: F32, start: int, stop: int) -> None:
    """``ggml_mul`` of every row with one row."""
    for t in range(start, stop):
        for k in range(x.shape[1]):
            out[t, k] = x[t, k] * weight[k]


@jit
def mul_column(x: F32, weight: F32, out: F32, start: int, stop: int) -> None:
    """``ggml_mul`` of every row t with one number, ``weight[t, 0]``."""
    for t in range(start, stop):
        for k in range(x.shape[1]):
            out[t, k] = x[t, k] * weight[t, 0]


@jit
def select_columns(x: F32, first: int, out: F32, start: int, stop: int) -> None:
    """Columns of x from ``first`` on, as many as ``out`` has (ggml makes a view of them)."""
    for t in range(start, stop):
        for k in range(out.shape[1]):
            out[t, k] = x[t, first + k]


@jit
def div(x: F32, y: F32, out: F32, start: int, stop: int) -> None:
    """``ggml_div`` of two arrays of one shape."""
    for t in range(start, stop):
        for k in range(x.shape[1]):
            out[t, k] = x[t, k] / y[t, k]


@jit
def scale(x: F32, factor: np.float32, bias: np.float32, out: F32, start: int, stop: int) -> None:
    """``ggml_scale_bias``; a bias of zero is not added, as in ggml (a product of -0 stays -0)."""
    for t in range(start, stop):
        for k in range(x.shape[1]):
            out[t, k] = x[t, k] * factor
            if bias != 0:
                out[t, k] += bias


@jit
def softcap(x: F32, cap: np.float32, out: F32, start: int, stop: int) -> None:
    """``cap * tanh(x / cap)`` as llama.cpp composes it: scaled by the inverse, ``ggml_tanh``, scaled."""
    inverse = np.float32(np.float32(1) / cap)
    for t in range(start, stop):
        for k in range(x.shape[1]):
            out[t, k] = tanhf(np.float32(x[t, k] * inverse)) * cap


@jit
def swiglu(gate: F32, up: F32, out: F32, start: int, stop: int) -> None:
    """``ggml_vec_swiglu_f32``: ``gate / (1 + exp(-gate)) * up``, in fours as in the SSE2 branch, the rest by libm."""
    n = gate.shape[1]
    in_lanes = n - n % 4
    for t in range(start, stop):
        for k in range(in_lanes):
            sigmoid = np.float32(np.float32(1) + exp_lane(np.float32(np.float32(0) - gate[t, k])))
            out[t, k] = np.float32(gate[t, k] / sigmoid) * up[t, k]
        for k in range(in_lanes, n):
            sigmoid = np.float32(np.float32(1) + expf(np.float32(-gate[t, k])))
            out[t, k] = np.float32(gate[t, k] / sigmoid) * up[t, k]
