"""Results of the reference kernels on tiny inputs, to be computed compiled and, in another process, as plain Python.

Usage: ``NUMBA_DISABLE_JIT=1 python -W error plain_results.py results.npz``
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

import kernel_inputs as inputs

from minillama.kernels.layouts import LAYOUTS, WEIGHT_TYPES
from minillama.kernels.reference.attention import soft_max
from minillama.kernels.reference.dequantize import GET_ROWS
from minillama.kernels.reference.dot import DOT_FUSED
from minillama.kernels.reference.libm import cosf, exp_lane, expf, sinf
from minillama.kernels.registry import KernelSet, kernel_set


def _dots(kernels: KernelSet, results: dict[str, np.ndarray]) -> None:
    for type_ in WEIGHT_TYPES:
        layout, rng = LAYOUTS[type_], inputs.generator("plain", type_.name)
        n = max(32, layout.block_size)
        weight = inputs.packed_rows(type_, 2, n, rng)
        activation = inputs.quantize(kernels, layout.activation, inputs.input_rows("normal", 1, n, rng))
        results[f"get_rows {type_.name}"] = inputs.get_rows(kernels, type_, weight, n)
        results[f"quantize {layout.activation.name}"] = activation
        results[f"mul_mat {type_.name}"] = inputs.mul_mat(kernels, type_, weight, activation, n)
        if type_ in DOT_FUSED:
            results[f"dot_fused {type_.name}"] = inputs.dots(DOT_FUSED, type_, weight, activation, n)
        if layout.activation in GET_ROWS:
            results[f"get_rows {layout.activation.name}"] = inputs.get_rows(kernels, layout.activation, activation, n)


def _extreme_blocks(kernels: KernelSet, results: dict[str, np.ndarray]) -> None:
    for type_ in inputs.ACTIVATION_TYPES:
        n = max(32, LAYOUTS[type_].block_size)
        for kind in inputs.INPUT_KINDS:
            x = inputs.input_rows(kind, 1, n, inputs.generator("plain", kind))
            results[f"quantize {type_.name} {kind}"] = inputs.quantize(kernels, type_, x)
    for type_ in WEIGHT_TYPES:
        n = max(32, LAYOUTS[type_].block_size)
        for kind in inputs.WEIGHT_KINDS:
            weight = inputs.packed_rows(type_, 1, n, inputs.generator("plain", type_.name, kind), kind)
            results[f"get_rows {type_.name} {kind}"] = inputs.get_rows(kernels, type_, weight, n)


def _rows(kernels: KernelSet, results: dict[str, np.ndarray]) -> None:
    x, y = (inputs.input_rows("normal", 2, 11, inputs.generator("plain", i)) for i in range(2))
    x[0, :3] = 0, -80, 80  # the exponential of -x: one, huge, tiny
    for name, arguments in {
        "rms_norm": (x, y[0], np.float32(1e-5)), "add": (x, y), "add_bias": (x, y[0]), "swiglu": (x, y),
    }.items():  # fmt: skip
        results[name] = np.empty_like(x)
        getattr(kernels, name)(*arguments, results[name], 0, 2)
    factors, positions = np.ones(4, np.float32), np.array([0, 3, 100_000])
    table = np.empty((3, 4, 2), np.float32)
    kernels.rope_table(positions, np.float32(0.1), np.float32(1), factors, table, 0, 3)
    results["rope_table"] = table
    heads = inputs.input_rows("normal", 3, 20, inputs.generator("plain", "heads"))
    for name in ("rope_norm", "rope_neox"):
        results[name] = np.empty_like(heads)
        getattr(kernels, name)(heads, table, 2, results[name], 0, 3)
    scores = inputs.input_rows("heavy", 1, 8, inputs.generator("plain", "scores"))[0]
    soft_max(scores, 7, np.float32(0.25))
    results["soft_max"] = scores


def _attention(kernels: KernelSet, results: dict[str, np.ndarray]) -> None:
    case = inputs.attention_case(inputs.generator("plain", "attention"), (3, 5), head_dim=4)
    for dtype in (np.float32, np.uint16):
        results[f"attention {np.dtype(dtype).name}"] = case.run(kernels, dtype)


def _functions(results: dict[str, np.ndarray]) -> None:
    values = [0.0, -0.0, 0.1, -0.7, 0.8, 3.0, -50.0, 88.0, -88.0, -100.0, -103.9, 119.0, 121.0, -1e5, 1e30]
    values += [-np.inf, np.inf, np.nan]
    for function in (exp_lane, expf, sinf, cosf):
        results[function.__name__] = np.array([function(np.float32(v)) for v in values], np.float32)


def results() -> dict[str, np.ndarray]:
    """Every result by name."""
    kernels, found = kernel_set("reference"), {}
    _dots(kernels, found)
    _rows(kernels, found)
    _attention(kernels, found)
    with np.errstate(
        all="ignore"
    ):  # these overflow on purpose; numpy's scalars would warn where compiled code does not
        _extreme_blocks(kernels, found)
        _functions(found)
    return found


if __name__ == "__main__":
    np.savez(sys.argv[1], **results())
