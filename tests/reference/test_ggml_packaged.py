"""Kernels against the ggml of libggml-python, which is compiled with FMA contraction.

Decoding and quantizing, and the dots of types in which contraction finds nothing or changes nothing, have
the bits of the baseline build there too. The rest is compared in ``test_ggml_baseline.py``.
"""

from __future__ import annotations

import platform
import sys

import numpy as np
import pytest

from minillama.gguf.constants import GGMLType
from minillama.kernels.layouts import LAYOUTS, WEIGHT_TYPES
from minillama.kernels.registry import BACKENDS, kernel_set
from tests.reference import ggml
from tests.unit.kernels import kernel_inputs as inputs

HAS_WHEELS = sys.platform == "linux" and platform.machine() == "x86_64"
pytestmark = pytest.mark.skipif(not HAS_WHEELS, reason="libggml-python has wheels for Linux on x86-64 only")

KERNELS = kernel_set("reference")
CONVERTED = [t for t in inputs.ACTIVATION_TYPES if t is not GGMLType.F32]
UNCONTRACTED_DOTS = [GGMLType[name] for name in ("Q4_0", "Q5_0", "Q8_0", "Q3_K", "Q6_K")]


def named(types):
    return pytest.mark.parametrize("type_", types, ids=lambda t: t.name)


@pytest.mark.parametrize("kind", inputs.WEIGHT_KINDS)
@named([t for t in WEIGHT_TYPES if t is not GGMLType.F32])
def test_dequantize(type_, kind):
    n = 4 * max(32, LAYOUTS[type_].block_size)
    packed = inputs.packed_rows(type_, 100, n, inputs.generator("packaged", type_.name, kind), kind)
    want = np.stack([ggml.packaged().dequantize(type_, row, n) for row in packed])
    inputs.assert_same_bits(inputs.get_rows(KERNELS, type_, packed, n), want, type_.name)


@pytest.mark.parametrize("kind", inputs.INPUT_KINDS)
@named(CONVERTED)
def test_quantize(type_, kind):
    x = inputs.input_rows(kind, 100, 1024, inputs.generator("packaged", type_.name, kind))
    want = np.stack([ggml.packaged().quantize(type_, row) for row in x])
    inputs.assert_same_bits(inputs.quantize(KERNELS, type_, x), want, type_.name)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", inputs.INPUT_KINDS)
@named(UNCONTRACTED_DOTS)
def test_dot(type_, kind, backend):
    n, rng = 1024, inputs.generator("packaged", type_.name, kind)
    activation = inputs.quantize(KERNELS, LAYOUTS[type_].activation, inputs.input_rows(kind, 2, n, rng))
    for weights in inputs.FINITE_WEIGHTS:
        packed = inputs.packed_rows(type_, 15, n, rng, weights)
        want = np.array([[ggml.packaged().dot(type_, row, a, n) for row in packed] for a in activation])
        got = inputs.mul_mat(kernel_set(backend), type_, packed, activation, n)
        inputs.assert_same_bits(got, want, f"{type_.name} {weights}")
