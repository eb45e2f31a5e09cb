"""Weights and importances that can hurt, quantizing by the kernels, and the comparison of blocks."""

from __future__ import annotations

import numpy as np

from minillama.gguf.constants import GGMLType
from minillama.kernels.layouts import LAYOUTS
from minillama.kernels.reference.quantize_weights import QUANTIZE_WEIGHTS
from tests.unit.kernels.kernel_inputs import INPUT_KINDS, as_weight, input_rows

WEIGHT_INPUTS = (*INPUT_KINDS, "constant", "negative", "steps", "sparse", "groups", "faint", "any_bits", "any_exponent")
IMPORTANCES = ("none", "uniform", "zero", "sparse", "extreme")
_UNSEARCHED = ("F32", "F16", "BF16", "Q8_0", "Q8_1", "Q8_K", "TQ1_0", "TQ2_0", "Q1_0", "Q2_0", "MXFP4", "NVFP4")
SEARCHED = tuple(t for t in QUANTIZE_WEIGHTS if t.name not in _UNSEARCHED)
CASES = tuple((t, i) for t in QUANTIZE_WEIGHTS for i in IMPORTANCES if t in SEARCHED or i in ("none", "uniform"))


def weight_values(kind: str, n_rows: int, n: int, rng: np.random.Generator) -> np.ndarray:
    """float32 [n_rows, n] of one of ``WEIGHT_INPUTS``."""
    if kind in INPUT_KINDS:
        return input_rows(kind, n_rows, n, rng)
    shape = n_rows, n
    x = rng.standard_normal(shape).astype(np.float32)
    sign = rng.integers(0, 2, shape).astype(np.uint32) << np.uint32(31)
    if kind == "constant":
        x[:] = rng.uniform(-2, 2, (n_rows, 1))
    elif kind == "negative":
        x = -np.abs(x) - np.float32(3)
    elif kind == "steps":  # few distinct values: ties in the searches
        x = rng.integers(-8, 9, shape).astype(np.float32) / 4
    elif kind == "sparse":
        x[rng.random(shape) < 0.9] = 0
    elif kind == "groups":  # groups of 16 far apart in size
        x *= np.repeat(10.0 ** rng.uniform(-8, 3, (n_rows, -(-n // 16))), 16, axis=1)[:, :n].astype(np.float32)
    elif kind == "faint":  # around 1e-15, below which a group or a scale is nothing
        x *= (10.0 ** rng.uniform(-16, -12, (n_rows, 1))).astype(np.float32)
    elif kind == "any_bits":
        x = (rng.integers(0, 0x7F800000, shape).astype(np.uint32) | sign).view(np.float32)
    elif kind == "any_exponent":  # rows of similar size, anywhere in the range
        exponent = np.clip(rng.integers(0, 255, (n_rows, 1)) - rng.integers(0, 7, shape), 0, 254).astype(np.uint32)
        x = ((exponent << np.uint32(23)) | rng.integers(0, 1 << 23, shape).astype(np.uint32) | sign).view(np.float32)
    return np.ascontiguousarray(x)


def importances(kind: str, n: int, rng: np.random.Generator) -> np.ndarray | None:
    """float32 [n] of one of ``IMPORTANCES``; None for "none"."""
    values = rng.random(n)
    if kind == "zero":
        values[:] = 0
    elif kind == "sparse":
        values[rng.random(n) < 0.7] = 0
    elif kind == "extreme":
        values = 10.0 ** rng.uniform(-30, 30, n)
    return None if kind == "none" else values.astype(np.float32)


def quantize_weights(type_: GGMLType, x: np.ndarray, importance: np.ndarray | None = None) -> np.ndarray:
    """Rows quantized by the kernel; what it does not write would show as 0x5A."""
    out = np.full((len(x), LAYOUTS[type_].row_bytes(x.shape[1])), 0x5A, np.uint8)
    weights = np.empty(0, np.float32) if importance is None else importance
    QUANTIZE_WEIGHTS[type_](as_weight(x), as_weight(weights), out, 0, len(x))
    return out


def assert_same_blocks(type_: GGMLType, got: np.ndarray, want: np.ndarray, label: object = "") -> None:
    """Fail with the type, how many blocks differ of how many, and the first that does, both of it."""
    assert got.shape == want.shape, f"{type_.name} {label}: shape {got.shape} against {want.shape}"
    ours, theirs = (packed.reshape(-1, LAYOUTS[type_].type_size) for packed in (got, want))
    wrong = np.flatnonzero((ours != theirs).any(axis=1))
    if len(wrong):
        first = int(wrong[0])
        raise AssertionError(
            f"{type_.name} {label}: {len(wrong)} of {len(ours)} blocks differ; first block {first}:"
            f" {ours[first].tobytes().hex(' ')}, {theirs[first].tobytes().hex(' ')} wanted"
        )
