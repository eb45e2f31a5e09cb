"""Choosing experts and adding up their results, as ``build_moe_ffn`` of llama.cpp composes it of ggml's operations."""

from __future__ import annotations

import numpy as np

from minillama.kernels.jit import jit
from minillama.kernels.types import F32, I32

# The least sum that weights are divided by: the smallest normal half.
_LEAST = np.float32(6.103515625e-5)


@jit
def take_experts(scores: F32, order: I32, ids: I32, weights: F32, start: int, stop: int) -> None:
    """``ggml_get_rows`` by the first experts of ``order``: their ids and scores, [n_tokens, n_used] each."""
    for t in range(start, stop):
        for i in range(ids.shape[1]):
            ids[t, i] = order[t, i]
            weights[t, i] = scores[t, order[t, i]]


@jit
def normalize_weights(weights: F32, out: F32, start: int, stop: int) -> None:
    """``ggml_sum_rows`` (a double sum, in order), ``ggml_clamp`` from below, ``ggml_div``."""
    for t in range(start, stop):
        total = np.float64(0)
        for i in range(weights.shape[1]):
            total += np.float64(weights[t, i])
        divisor = max(np.float32(total), _LEAST)
        for i in range(weights.shape[1]):
            out[t, i] = weights[t, i] / divisor


@jit
def add_expert_bias(x: F32, bias: F32, ids: I32, out: F32, start: int, stop: int) -> None:
    """``ggml_add_id``: to each expert's result, float32 [n_tokens, n_used, n], the expert's row of ``bias``."""
    for t in range(start, stop):
        for i in range(ids.shape[1]):
            for k in range(x.shape[2]):
                out[t, i, k] = x[t, i, k] + bias[ids[t, i], k]


@jit
def sum_experts(x: F32, weights: F32, out: F32, start: int, stop: int) -> None:
    """``ggml_mul`` of each expert's result by its weight and ``ggml_add`` of all, the first expert first."""
    for t in range(start, stop):
        for k in range(x.shape[2]):
            total = np.float32(x[t, 0, k] * weights[t, 0])
            for i in range(1, x.shape[1]):
                total = np.float32(total + np.float32(x[t, i, k] * weights[t, i]))
            out[t, k] = total
