"""Kernels against the ggml of libggml-python, which is compiled with FMA contraction.

Decoding and quantizing have the bits of the baseline build there too; the dots are those of ``DOT_FUSED``. Its F32, F16
and BF16 dots are sums of vectors in another order, which only ``test_ggml_baseline.py`` compares.
"""

from __future__ import annotations

import platform
import sys

import numpy as np
import pytest

from minillama.gguf.constants import GGMLType
from minillama.kernels.layouts import LAYOUTS, WEIGHT_TYPES
from minillama.kernels.reference.dot import DOT, DOT_FUSED
from minillama.kernels.registry import kernel_set
from tests.reference import ggml
from tests.unit.kernels import kernel_inputs as inputs

HAS_WHEELS = sys.platform == "linux" and platform.machine() == "x86_64"
pytestmark = pytest.mark.skipif(not HAS_WHEELS, reason="libggml-python has wheels for Linux on x86-64 only")

KERNELS = kernel_set("reference")
CONVERTED = [t for t in inputs.ACTIVATION_TYPES if t is not GGMLType.F32]
CONTRACTED = ("Q4_1", "Q5_1", "Q2_K", "Q4_K", "Q5_K", "IQ1_S", "IQ1_M")


def named(types):
    return pytest.mark.parametrize("type_", types, ids=lambda t: t.name)


def assert_same_values(type_, packed, n, label=""):
    want = np.stack([ggml.packaged().dequantize(type_, row, n) for row in packed])
    got = inputs.get_rows(KERNELS, type_, packed, n)
    inputs.assert_same_bits(got, want, f"{type_.name} {label}", block_size=LAYOUTS[type_].block_size)


@pytest.mark.parametrize("kind", inputs.WEIGHT_KINDS)
@named([t for t in WEIGHT_TYPES if t is not GGMLType.F32])
def test_dequantize(type_, kind):
    for n_blocks, n_rows in ((1, 30), (3, 100), (2049, 1)):
        n = n_blocks * max(32, LAYOUTS[type_].block_size)
        packed = inputs.packed_rows(type_, n_rows, n, inputs.generator("packaged", type_.name, kind), kind)
        assert_same_values(type_, packed, n, kind)


@named([GGMLType.F16, GGMLType.BF16])
def test_every_pattern_of_16_bits_decodes_as_in_ggml(type_):
    assert_same_values(type_, np.arange(65536, dtype="<u2").view(np.uint8)[None], 65536)


@pytest.mark.parametrize("kind", inputs.INPUT_KINDS)
def test_dequantize_q8_k(kind):
    x = inputs.input_rows(kind, 50, 768, inputs.generator("packaged", kind))
    assert_same_values(GGMLType.Q8_K, inputs.quantize(KERNELS, GGMLType.Q8_K, x), 768, kind)


@pytest.mark.parametrize("kind", inputs.INPUT_KINDS)
@named(CONVERTED)
def test_quantize(type_, kind):
    x = inputs.input_rows(kind, 100, 1024, inputs.generator("packaged", type_.name, kind))
    want = np.stack([ggml.packaged().quantize(type_, row) for row in x])
    inputs.assert_same_bits(inputs.quantize(KERNELS, type_, x), want, type_.name)


def assert_same_dots(type_, packed, activation, n, label=""):
    want = np.array([[ggml.packaged().dot(type_, row, a, n) for row in packed] for a in activation])
    got = inputs.dots(DOT_FUSED, type_, packed, activation, n)
    inputs.assert_same_bits(got, want, f"{type_.name} {label}")


@pytest.mark.parametrize("n_blocks", [1, 3, 8])
@pytest.mark.parametrize("kind", inputs.INPUT_KINDS)
@named(DOT_FUSED)
def test_dot(type_, kind, n_blocks):
    n, rng = n_blocks * LAYOUTS[type_].block_size, inputs.generator("packaged", type_.name, kind, n_blocks)
    activation = inputs.quantize(KERNELS, LAYOUTS[type_].activation, inputs.input_rows(kind, 2, n, rng))
    for weights in inputs.WEIGHT_KINDS:
        assert_same_dots(type_, inputs.packed_rows(type_, 10, n, rng, weights), activation, n, f"{kind} {weights}")


@named(DOT_FUSED)
def test_dot_of_random_activation_bytes(type_):
    n, rng = 5 * LAYOUTS[type_].block_size, inputs.generator("packaged", type_.name)
    activation = inputs.raw_activation(LAYOUTS[type_].activation, 4, n, rng)
    for weights in inputs.FINITE_WEIGHTS:
        assert_same_dots(type_, inputs.packed_rows(type_, 25, n, rng, weights), activation, n, weights)


@named(DOT_FUSED)
def test_dot_of_thousands_of_blocks(type_):
    n, rng = 2049 * LAYOUTS[type_].block_size, inputs.generator("packaged", type_.name)
    activation = inputs.quantize(KERNELS, LAYOUTS[type_].activation, inputs.input_rows("normal", 2, n, rng))
    assert_same_dots(type_, inputs.packed_rows(type_, 3, n, rng), activation, n)


# Before it quantizes to one of these types, ggml works on its tables for up to a quarter of a minute.
SLOWLY_QUANTIZED = [GGMLType[name] for name in ("IQ1_S", "IQ1_M", "IQ2_XS", "IQ2_S")]


@named([t if t not in SLOWLY_QUANTIZED else pytest.param(t, marks=pytest.mark.llama_cpp) for t in DOT_FUSED])
def test_weights_that_ggml_quantized(type_):
    # Random bytes have quants and scales of every kind side by side; these have the ones that occur together.
    n, rng = 3 * LAYOUTS[type_].block_size, inputs.generator("packaged", type_.name)
    x = np.concatenate([inputs.input_rows(kind, 4, n, rng) for kind in ("normal", "heavy", "one_hot", "zero")])
    packed = ggml.packaged().quantize_weights(type_, x)
    assert_same_values(type_, packed, n)
    activation = inputs.quantize(KERNELS, LAYOUTS[type_].activation, inputs.input_rows("normal", 3, n, rng))
    assert_same_dots(type_, packed, activation, n)


@named(DOT_FUSED)
def test_contraction_is_in_the_types_that_say_so(type_):
    n, rng = 8 * LAYOUTS[type_].block_size, inputs.generator("contraction")
    activation = inputs.quantize(KERNELS, LAYOUTS[type_].activation, inputs.input_rows("normal", 4, n, rng))
    packed = inputs.packed_rows(type_, 50, n, rng)
    fused, separate = (inputs.dots(table, type_, packed, activation, n) for table in (DOT_FUSED, DOT))
    assert (DOT_FUSED[type_] is not DOT[type_]) == (type_.name in CONTRACTED)
    assert np.array_equal(fused, separate) == (type_.name not in CONTRACTED)
