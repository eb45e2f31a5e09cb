"""Norms and operations on single values, in ggml's arithmetic: every step rounded to float32 unless said otherwise.

All work on rows ``start`` to ``stop`` of float32 arrays [n_tokens, n] and write to ``out`` of the same shape.
"""

from __future__ import annotations

import numpy as np

from minillama.kernels.jit import jit
from minillama.kernels.reference.libm import exp_lane, expf
from minillama.kernels.types import F32


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
