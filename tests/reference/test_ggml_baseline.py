"""Kernels against llama.cpp's baseline build, whose bits are the definition of theirs: every type, every operation."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from minillama.gguf.constants import GGMLType
from minillama.kernels.layouts import LAYOUTS, WEIGHT_TYPES
from minillama.kernels.reference.attention import BLOCK, soft_max
from minillama.kernels.registry import BACKENDS, kernel_set
from tests.reference import ggml
from tests.unit.kernels import kernel_inputs as inputs

pytestmark = pytest.mark.llama_cpp

KERNELS = kernel_set("reference")
N = 1024
EVERY_TYPE = pytest.mark.parametrize("type_", WEIGHT_TYPES, ids=lambda t: t.name)
EVERY_BACKEND = pytest.mark.parametrize("backend", BACKENDS)
EVERY_INPUT = pytest.mark.parametrize("kind", inputs.INPUT_KINDS)
CALLED = pytest.mark.parametrize("called", [False, True], ids=["reference", "called"])
CONVERTED = [t for t in inputs.ACTIVATION_TYPES if t is not GGMLType.F32]


@pytest.mark.parametrize("kind", inputs.WEIGHT_KINDS)
@EVERY_TYPE
def test_dequantize(type_, kind):
    if type_ is GGMLType.F32:
        return  # there is nothing to decode, and ggml has no function for it
    packed = inputs.packed_rows(type_, 1000, N, inputs.generator("baseline", type_.name, kind), kind)
    want = np.stack([ggml.baseline().dequantize(type_, row, N) for row in packed])
    got = inputs.get_rows(KERNELS, type_, packed, N)
    inputs.assert_same_bits(got, want, f"{type_.name} {kind}")


@CALLED
@EVERY_INPUT
@pytest.mark.parametrize("type_", CONVERTED, ids=lambda t: t.name)
def test_quantize(type_, kind, called):
    x = inputs.input_rows(kind, 1000, N, inputs.generator("baseline", type_.name, kind))
    want = np.stack([ggml.baseline().quantize(type_, row, called=called) for row in x])
    inputs.assert_same_bits(inputs.quantize(KERNELS, type_, x), want, f"{type_.name} {kind}")


@EVERY_BACKEND
@CALLED
@EVERY_INPUT
@EVERY_TYPE
def test_dot(type_, kind, called, backend):
    rng, n_tokens = inputs.generator("baseline", type_.name, kind), 4
    activation = inputs.quantize(KERNELS, LAYOUTS[type_].activation, inputs.input_rows(kind, n_tokens, N, rng))
    for weights in inputs.FINITE_WEIGHTS:
        packed = inputs.packed_rows(type_, 50, N, rng, weights)
        dot = ggml.baseline().dot
        want = np.array([[dot(type_, row, a, N, called=called) for row in packed] for a in activation])
        got = inputs.mul_mat(kernel_set(backend), type_, packed, activation, N)
        inputs.assert_same_bits(got, want, f"{type_.name}, {kind} inputs, {weights} weights")


@EVERY_TYPE
def test_dot_of_other_lengths_and_activations(type_):
    # One block, an odd number, thousands; quants of -128, which quantizing does not give; scales that are not finite.
    block_size, rng = max(32, LAYOUTS[type_].block_size), inputs.generator("baseline", type_.name)
    for n_blocks, n_rows in ((1, 50), (3, 50), (2049, 3)):
        n = n_blocks * block_size
        activation = inputs.raw_activation(LAYOUTS[type_].activation, 3, n, rng)
        for weights in inputs.WEIGHT_KINDS:
            packed = inputs.packed_rows(type_, n_rows, n, rng, weights)
            want = np.array([[ggml.baseline().dot(type_, row, a, n) for row in packed] for a in activation])
            got = inputs.mul_mat(KERNELS, type_, packed, activation, n)
            inputs.assert_same_bits(got, want, f"{type_.name}, {n_blocks} blocks, {weights} weights")


@EVERY_TYPE
def test_weights_that_ggml_quantized(type_):
    if LAYOUTS[type_].block_size == 1:
        return  # those are conversions, compared above
    n, rng = 3 * LAYOUTS[type_].block_size, inputs.generator("baseline", type_.name)
    x = np.concatenate([inputs.input_rows(kind, 10, n, rng) for kind in ("normal", "heavy", "one_hot", "zero")])
    packed = ggml.baseline().quantize_weights(type_, x)
    want = np.stack([ggml.baseline().dequantize(type_, row, n) for row in packed])
    inputs.assert_same_bits(inputs.get_rows(KERNELS, type_, packed, n), want, type_.name)
    activation = inputs.quantize(KERNELS, LAYOUTS[type_].activation, inputs.input_rows("normal", 3, n, rng))
    want = np.array([[ggml.baseline().dot(type_, row, a, n) for row in packed] for a in activation])
    inputs.assert_same_bits(inputs.mul_mat(KERNELS, type_, packed, activation, n), want, type_.name)


@EVERY_BACKEND
@EVERY_INPUT
@EVERY_TYPE
def test_mul_mat(type_, kind, backend):
    # The conversion of the input and the product, as one operation of a graph.
    rng = inputs.generator("mul_mat", type_.name, kind)
    x, packed = inputs.input_rows(kind, 7, N, rng), inputs.packed_rows(type_, 33, N, rng)
    with ggml.baseline().graph() as g:
        want = g.compute(g.mul_mat(g.packed(type_, packed, N), g.tensor(x)), (7, 33))
    activation = inputs.quantize(KERNELS, LAYOUTS[type_].activation, x)
    got = inputs.mul_mat(kernel_set(backend), type_, packed, activation, N)
    inputs.assert_same_bits(got, want, f"{type_.name} {kind}")


@EVERY_INPUT
@pytest.mark.parametrize("n", [1, 3, 64, 576, 2048])
def test_rms_norm(n, kind):
    x = inputs.input_rows(kind, 50, n, inputs.generator("rms_norm", n, kind))
    weight = inputs.input_rows("normal", 1, n, inputs.generator("weight", n))
    for eps in (1e-5, 1e-6):
        with ggml.baseline().graph() as g:
            want = g.compute(g.mul(g.rms_norm(g.tensor(x), ctypes.c_float(eps)), g.tensor(weight)), x.shape)
        got = np.empty_like(x)
        KERNELS.rms_norm(x, weight[0], np.float32(eps), got, 0, len(x))
        inputs.assert_same_bits(got, want, f"{n} {kind} {eps}")


@EVERY_INPUT
def test_add(kind):
    x, y = (inputs.input_rows(kind, 20, 65, inputs.generator("add", i)) for i in range(2))
    for kernel, other in ((KERNELS.add, y), (KERNELS.add_bias, y[0])):
        with ggml.baseline().graph() as g:
            want = g.compute(g.add(g.tensor(x), g.tensor(other)), x.shape)
        got = np.empty_like(x)
        kernel(x, other, got, 0, len(x))
        inputs.assert_same_bits(got, want, kind)


@EVERY_INPUT
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7, 64, 1534, 1536])
def test_swiglu(n, kind):
    gate, up = (inputs.input_rows(kind, 50, n, inputs.generator("swiglu", n, kind, i)) for i in range(2))
    if kind == "normal":
        gate = gate * np.float32(25)  # to where the exponential overflows and underflows
    with ggml.baseline().graph() as g:
        want = g.compute(g.swiglu_split(g.tensor(gate), g.tensor(up)), gate.shape)
    got = np.empty_like(gate)
    KERNELS.swiglu(gate, up, got, 0, len(gate))
    inputs.assert_same_bits(got, want, f"{n} {kind}")


ROPE_MODES = {"rope_norm": 0, "rope_neox": 2}


@pytest.mark.parametrize("kernel", ROPE_MODES)
@pytest.mark.parametrize("n_rot", [16, 64, 80, 128])
@pytest.mark.parametrize(("base", "freq_scale"), [(1e4, 1.0), (1e6, 1.0), (5e5, 0.25), (1.5e5, 1 / 3)])
@pytest.mark.parametrize("with_factors", [False, True])
def test_rope(kernel, n_rot, base, freq_scale, with_factors):
    head_dim, n_head = 128, 3
    positions = np.array([0, 1, 2, 100, 119, 121, 511, 4095, 32767, 131071, 1000003], np.int64)
    rng = inputs.generator("rope", n_rot, base)
    x = inputs.input_rows("normal", len(positions), n_head * head_dim, rng)
    factors = np.ones(n_rot // 2, np.float32)
    if with_factors:
        factors = rng.uniform(1, 40, n_rot // 2).astype(np.float32)
    single, integer = ctypes.c_float, ctypes.c_int
    with ggml.baseline().graph() as g:
        rotated = g.rope_ext(
            g.tensor(x.reshape(-1, n_head, head_dim)), g.tensor(positions.astype(np.int32)),
            g.tensor(factors) if with_factors else None, integer(n_rot), integer(ROPE_MODES[kernel]), integer(0),
            single(base), single(freq_scale), single(0), single(1), single(32), single(1),
        )  # fmt: skip
        want = g.compute(rotated, x.shape)
    # The ratio of the angles has a test of its own; here it must be powf's.
    powf = ctypes.CDLL("libm.so.6").powf
    powf.argtypes, powf.restype = [single] * 2, single
    theta_scale = np.float32(powf(base, np.float32(-2) / np.float32(n_rot)))
    table, got = np.empty((len(positions), n_rot // 2, 2), np.float32), np.empty_like(x)
    KERNELS.rope_table(positions, theta_scale, np.float32(freq_scale), factors, table, 0, len(positions))
    getattr(KERNELS, kernel)(x, table, n_head, got, 0, len(positions))
    inputs.assert_same_bits(got, want, f"{kernel} {n_rot}")


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 63, 64, 65, 255, 256, 1000])
def test_soft_max(n):
    # llama.cpp's rows are padded to a multiple of 256 with masked positions.
    rng, padded = inputs.generator("soft_max", n), -(-n // 256) * 256
    scores = np.concatenate(
        [inputs.input_rows(kind, 30, padded, rng) for kind in ("normal", "heavy", "tiny", "zero", "one_hot", "huge")]
    )
    scores[:30] *= 8
    mask = np.where(np.arange(padded) < n, np.float32(0), np.float32(-np.inf)) * np.ones((len(scores), 1), np.float32)
    with ggml.baseline().graph() as g:
        soft = g.soft_max_ext(g.tensor(scores), g.tensor(mask), ctypes.c_float(0.125), ctypes.c_float(0))
        want = g.compute(soft, scores.shape)
    got = scores.copy()
    for row in got:
        soft_max(row, n, np.float32(0.125))
    inputs.assert_same_bits(got[:, :n], want[:, :n])
    assert not want[:, n:].any()


def ggml_attention(case: inputs.AttentionCase, t: int, head: int, dtype: type) -> np.ndarray:
    """One head of one token by llama.cpp's unfused graph."""
    s, p = case.sequence[t], case.position[t]
    group, padded = head // (case.n_head // case.n_head_kv), -(-(p + 1) // 256) * 256
    k, v = np.zeros((padded, case.head_dim), dtype), np.zeros((padded, case.value_dim), dtype)
    k[: p + 1] = case.k[s].reshape(-1, case.n_head_kv, case.head_dim)[: p + 1, group]
    v[: p + 1] = case.v[s].reshape(-1, case.n_head_kv, case.value_dim)[: p + 1, group]
    mask = np.where(np.arange(padded) <= p, np.float32(0), np.float32(-np.inf))[None]
    q = case.q[t : t + 1].reshape(case.n_head, case.head_dim)[head : head + 1]
    with ggml.baseline().graph() as g:
        scores = g.mul_mat(g.tensor(k), g.tensor(q))
        weights = g.soft_max_ext(scores, g.tensor(mask), ctypes.c_float(case.scale), ctypes.c_float(0))
        return g.compute(g.mul_mat(g.tensor(np.ascontiguousarray(v.T)), weights), (case.value_dim,))


@EVERY_BACKEND
@pytest.mark.parametrize("dtype", [np.float32, np.float16], ids=["f32", "f16"])
@pytest.mark.parametrize("head_dim", [24, 64, 128])
def test_attention(head_dim, dtype, backend):
    lengths = (1, BLOCK - 1, BLOCK, BLOCK + 1, 300)
    case = inputs.attention_case(
        inputs.generator("attention", head_dim), lengths, n_head=4, n_head_kv=2, head_dim=head_dim, spread=2.0
    )
    got = case.run(kernel_set(backend), np.float32 if dtype == np.float32 else np.uint16)
    want = [[ggml_attention(case, t, head, dtype) for head in range(4)] for t in range(len(lengths))]
    inputs.assert_same_bits(got, np.array(want).reshape(got.shape))
