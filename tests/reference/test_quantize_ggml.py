"""Quantizing weights against ggml: ``ggml_quantize_chunk`` and ``quantize_row_*_ref``, block by block.

The library of libggml-python has FMA only in its CPU backend; quantizing is in ``libggml-base``, compiled without. So
every block must be equal there too, and the live baseline build sees more of the same inputs.
"""

from __future__ import annotations

import platform
import sys

import numpy as np
import pytest

from minillama.gguf.constants import GGMLType
from minillama.kernels.layouts import LAYOUTS
from minillama.kernels.reference.quantize_iq4 import quantize_row_iq4_nl_ref
from tests.reference import ggml
from tests.unit.kernels import quantize_inputs as inputs
from tests.unit.kernels.kernel_inputs import as_weight, generator

HAS_WHEELS = sys.platform == "linux" and platform.machine() == "x86_64"
PACKAGED = pytest.param(
    "packaged", marks=pytest.mark.skipif(not HAS_WHEELS, reason="libggml-python has wheels for Linux on x86-64 only")
)
BASELINE = pytest.param("baseline", marks=pytest.mark.llama_cpp)
EVERY_BUILD = pytest.mark.parametrize("build", [PACKAGED, BASELINE])
# rows, values: one block of every type, odd numbers of blocks, thousands of values; ten times the rows live
SHAPES = ((1, 256), (3, 768), (2, 2304))
NOT_IN_CHUNK = (GGMLType.Q8_1, GGMLType.Q8_K)
CASES = [(t, i) for t, i in inputs.CASES if t not in NOT_IN_CHUNK]
QUANTIZED = [t for t in inputs.QUANTIZE_WEIGHTS if t not in (GGMLType.F32, GGMLType.IQ4_NL)]


def library(build):
    return {"packaged": ggml.packaged, "baseline": ggml.baseline}[build]()


def values(build, kind, *key):
    rng = generator("weights", build, kind, *key)
    for n_rows, n in SHAPES:
        yield inputs.weight_values(kind, n_rows * (10 if build == "baseline" else 1), n, rng), rng


@EVERY_BUILD
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0].name}-{case[1]}")
def test_chunk(case, build):
    type_, importance_kind = case
    for kind in inputs.WEIGHT_INPUTS:
        for x, rng in values(build, kind, *case):
            importance = inputs.importances(importance_kind, x.shape[1], rng)
            want = library(build).quantize_chunk(type_, x, importance)
            got = inputs.quantize_weights(type_, x, importance)
            inputs.assert_same_blocks(type_, got, want, f"{kind} {x.shape}, importance {importance_kind}")


@EVERY_BUILD
@pytest.mark.parametrize("name", ["Q2_K", "Q4_K", "Q5_K"])
def test_negative_scale_levels(name, build):
    # Where few values count, scales can come out negative: their levels wrap, and only Q5_K limits them again.
    type_, rng = GGMLType[name], generator("wrapped", name)
    x = inputs.weight_values("heavy", 300, 2304, rng)
    importance = inputs.importances("sparse", 2304, rng)
    want = library(build).quantize_chunk(type_, x, importance)
    inputs.assert_same_blocks(type_, inputs.quantize_weights(type_, x, importance), want)


@EVERY_BUILD
@pytest.mark.parametrize("type_", QUANTIZED, ids=lambda t: t.name)
def test_ref(type_, build):
    for kind in inputs.WEIGHT_INPUTS:
        for x, _ in values(build, kind, type_.name):
            want = library(build).quantize_rows(type_, x)
            inputs.assert_same_blocks(type_, inputs.quantize_weights(type_, x), want, f"{kind} {x.shape}")


@EVERY_BUILD
def test_iq4_nl_ref(build):
    layout = LAYOUTS[GGMLType.IQ4_NL]
    for kind in inputs.WEIGHT_INPUTS:
        for x, _ in values(build, kind):
            want = np.stack([library(build).quantize(GGMLType.IQ4_NL, row) for row in x])
            got = np.full_like(want, 0x5A)
            for row, out in zip(as_weight(x), got, strict=True):
                quantize_row_iq4_nl_ref(row, out)
            nothing = np.abs(x).reshape(-1, 32).max(axis=1) < np.float32(1e-15)
            want.reshape(-1, layout.type_size)[nothing] = 0  # ggml leaves the levels uninitialised
            inputs.assert_same_blocks(GGMLType.IQ4_NL, got, want, f"ref, {kind} {x.shape}")


@EVERY_BUILD
def test_mxfp4_scales_on_both_sides_of_every_power_of_two(build):
    # log2f rounds up to the power just below it, over more values the larger the exponent.
    powers = np.arange(1, 255, dtype=np.int64)[:, None] << 23
    largest = (powers + np.arange(-100, 101)).astype(np.uint32).ravel().view(np.float32)
    x = np.zeros((len(largest), 32), np.float32)
    x[:, 3] = largest
    want = library(build).quantize_chunk(GGMLType.MXFP4, x, None)
    inputs.assert_same_blocks(GGMLType.MXFP4, inputs.quantize_weights(GGMLType.MXFP4, x), want)


@EVERY_BUILD
def test_nvfp4_scales_of_every_size(build):
    bits = np.arange(0, 0x7F800000, 0x1234567 // 911, dtype=np.uint32)
    x = np.zeros((len(bits) // 64, 64), np.float32)
    x[:, ::16] = bits[: 4 * len(x)].view(np.float32).reshape(-1, 4)
    want = library(build).quantize_chunk(GGMLType.NVFP4, x, None)
    inputs.assert_same_blocks(GGMLType.NVFP4, inputs.quantize_weights(GGMLType.NVFP4, x), want)
