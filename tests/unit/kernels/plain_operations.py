"""Results of the operations on tiny inputs, to be computed compiled and, in another process, as plain Python.

Usage: ``NUMBA_DISABLE_JIT=1 python -W error plain_operations.py results.npz``
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

import kernel_inputs as inputs

from minillama.gguf.constants import GGMLType
from minillama.kernels.reference import elementwise, rope, routing
from minillama.kernels.reference.activations import ACTIVATIONS, GATED, swiglu_oai
from minillama.kernels.reference.experts import MUL_MAT_ID
from minillama.kernels.reference.fdlibm import erff, tanhf
from minillama.kernels.reference.flash_attention import FLASH_ATTENTION
from minillama.kernels.reference.libm import logf, powf
from minillama.kernels.reference.softmax import SOFT_MAX_EXT
from minillama.kernels.reference.sorting import argsort
from minillama.kernels.registry import kernel_set
from minillama.kernels.scratch import DOT_BYTES

_F = np.float32


def _pointwise(results: dict[str, np.ndarray]) -> None:
    x, y = (inputs.input_rows("normal", 2, 11, inputs.generator("plain", i)) for i in range(2))
    x[0, :4] = 0, -20, 20, 0.5
    kernels = {
        "layer_norm": (elementwise.layer_norm, x, y[0], _F(1e-5)),
        "mul": (elementwise.mul, x, y),
        "div": (elementwise.div, x, y),
        "mul_row": (elementwise.mul_row, x, y[0]),
        "mul_column": (elementwise.mul_column, x, y[:, :1].copy()),
        "select_columns": (elementwise.select_columns, np.hstack([x, y]), 5),
        "scale": (elementwise.scale, x, _F(0.3), _F(1.5)),
        "softcap": (elementwise.softcap, x, _F(3)),
        "swiglu_oai": (swiglu_oai, x, y, _F(1.702), _F(7)),
        **{name: (kernel, x) for name, kernel in ACTIVATIONS.items()},
        **{name: (kernel, x, y) for name, kernel in GATED.items()},
    }
    for name, (kernel, *arguments) in kernels.items():
        results[name] = np.empty_like(x)
        kernel(*arguments, results[name], 0, 2)


def _window(results: dict[str, np.ndarray]) -> None:
    case = inputs.attention_case(inputs.generator("plain", "window"), (3, 66), head_dim=3, value_dim=5)
    kernels, sinks = kernel_set("reference"), np.array([0.5, -1], np.float32)
    for dtype in (np.dtype(np.float32), np.dtype(np.uint16)):
        keys, values = case.cache(kernels, dtype)
        out = results[f"attention_window {dtype}"] = np.empty((len(case.q), 10), np.float32)
        scratch = np.zeros(8 * 64 + 4 * 128, np.uint8)
        place = case.table, case.sequence, case.position, 2, case.scale
        kernels.attention_window[dtype](case.q, keys, values, *place, 6, _F(2), sinks, out, scratch, 0, 2 * len(case.q))


def _routing(results: dict[str, np.ndarray]) -> None:
    rng = inputs.generator("plain", "routing")
    scores, x = (rng.standard_normal(shape).astype(np.float32) for shape in ((3, 5), (3, 2, 7)))
    order, ids = np.argsort(-scores).astype(np.int32), np.empty((3, 2), np.int32)
    weights = results["take_experts"] = np.empty((3, 2), np.float32)
    routing.take_experts(scores, order, ids, weights, 0, 3)
    results["normalize_weights"] = np.empty_like(weights)
    routing.normalize_weights(weights, results["normalize_weights"], 0, 3)
    results["add_expert_bias"] = np.empty_like(x)
    routing.add_expert_bias(x, rng.standard_normal((5, 7)).astype(np.float32), ids, results["add_expert_bias"], 0, 3)
    results["sum_experts"] = np.empty((3, 7), np.float32)
    routing.sum_experts(x, weights, results["sum_experts"], 0, 3)


def _yarn(results: dict[str, np.ndarray]) -> None:
    first, last = rope.yarn_range(32, 4096, _F(1e4), _F(32), _F(1))
    for ext in (0.0, 1.0):
        table = np.empty((3, 16, 2), np.float32)
        numbers = _F(1e4 ** (-2 / 32)), _F(1 / 8), np.ones(16, np.float32), _F(ext), _F(0.9), first, last
        rope.rope_table_yarn(np.array([0, 3, 100_000]), *numbers, table, 0, 3)
        results[f"yarn {ext}"] = table


def _attention(results: dict[str, np.ndarray]) -> None:
    rng = inputs.generator("plain", "flash")
    scores = (rng.standard_normal((3, 2, 7)) * 4).astype(np.float32)
    mask = np.where(np.arange(7)[None] <= np.array([[3], [6]]), 0, -np.inf).astype(np.float16)
    sinks = np.array([0.5, -1, 9], np.float32)
    masks = {np.dtype(np.float32): mask.astype(np.float32), np.dtype(np.uint16): mask.view(np.uint16)}
    for dtype, typed in masks.items():
        out = results[f"soft_max_ext {dtype}"] = np.empty_like(scores)
        SOFT_MAX_EXT[dtype](scores, typed, sinks, _F(0.5), _F(8), out, 0, 6)
    for n_tokens in (2, 64):
        q = rng.standard_normal((3, n_tokens, 2)).astype(np.float32)
        k, v = (rng.standard_normal((1, 7, 2)).astype(np.float32) for _ in range(2))
        for dtype in masks:
            k_, v_ = (k, v) if dtype == np.float32 else (x.astype(np.float16).view(np.uint16) for x in (k, v))
            out = results[f"flash_attention {n_tokens} {dtype}"] = np.zeros((n_tokens, 3, 2), np.float32)
            rows = np.tile(mask.view(np.uint16), (n_tokens // 2, 1))
            FLASH_ATTENTION[dtype](q, k_, v_, rows, sinks, _F(0.7), _F(8), _F(5), out, 0, n_tokens + 1)


def _rows(results: dict[str, np.ndarray]) -> None:
    x = inputs.generator("plain", "sort").integers(0, 9, (2, 40)).astype(np.float32)
    for descending in (False, True):
        results[f"argsort {descending}"] = np.empty(x.shape, np.int32)
        argsort(x, descending, results[f"argsort {descending}"], 0, 2)
    type_, rng = GGMLType.Q8_0, inputs.generator("plain", "experts")
    weight = np.stack([inputs.packed_rows(type_, 2, 32, rng) for _ in range(2)])
    activation = inputs.quantize(kernel_set("reference"), type_, inputs.input_rows("normal", 2, 32, rng))
    out = results["mul_mat_id"] = np.empty((2, 1, 2), np.float32)
    ids = np.array([[1], [0]], np.int32)
    MUL_MAT_ID[type_](weight, activation[:, None], ids, 32, out, np.empty(DOT_BYTES, np.uint8), 0, 2)


def _functions(results: dict[str, np.ndarray]) -> None:
    values = [
        0.0,
        -0.0,
        1e-45,
        1e-30,
        2e-9,
        0.1,
        -0.3,
        0.5,
        -0.7,
        0.9,
        1.0,
        -1.3,
        2.0,
        3.0,
        -4.0,
        7.0,
        20.0,
        23.0,
        1e30,
    ]
    values += [-np.inf, np.inf, np.nan]
    for function in (logf, tanhf, erff):
        results[function.__name__] = np.array([function(_F(v)) for v in values], np.float32)
    results["powf"] = np.array([[powf(_F(x), _F(y)) for x in values] for y in values], np.float32)


def results() -> dict[str, np.ndarray]:
    """Every result by name."""
    found: dict[str, np.ndarray] = {}
    _pointwise(found)
    _yarn(found)
    _window(found)
    _routing(found)
    _attention(found)
    _rows(found)
    with np.errstate(
        all="ignore"
    ):  # these overflow on purpose; numpy's scalars would warn where compiled code does not
        _functions(found)
    return found


if __name__ == "__main__":
    np.savez(sys.argv[1], **results())
