"""Norm, sums and SwiGLU against float64 numpy, and what holds exactly."""

import numpy as np
import pytest
from kernel_inputs import INPUT_KINDS, assert_same_bits, generator, input_rows

from minillama.kernels.reference.libm import exp_lane, expf
from minillama.kernels.registry import kernel_set

KERNELS = kernel_set("reference")
EPS = np.float32(1e-5)
HALF_ULP = 2.0**-24  # largest relative error of one rounding to float32
FINITE_KINDS = [kind for kind in INPUT_KINDS if kind != "huge"]  # squares of 1e30 are infinite in float32


def run(name, *arguments):
    out = np.full_like(arguments[0], 12345.0)
    getattr(KERNELS, name)(*arguments, out, 0, len(out))
    return out


def rms_norm_oracle(x, weight):
    x = x.astype(np.float64)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float64(EPS)) * weight


@pytest.mark.parametrize("kind", FINITE_KINDS)
@pytest.mark.parametrize("n", [1, 7, 64, 576])
def test_rms_norm_against_double(n, kind):
    x, weight = input_rows(kind, 3, n, generator(n, kind)), input_rows("normal", 1, n, generator(n))[0]
    want = rms_norm_oracle(x, weight)
    # At most nine roundings: square, mean and the sum with eps (halved by the root), root, inverse, two products. Below
    # the normal range errors are absolute: the scale is at most 1 / sqrt(eps) = 317 and weights are under 5.
    np.testing.assert_allclose(run("rms_norm", x, weight, EPS), want, rtol=9 * HALF_ULP, atol=317 * 5 * 2.0**-149)


@pytest.mark.parametrize("n", [1, 5, 576])
def test_rms_norm_to_the_bit(n):
    # The documented order: float32 squares, a double sum one after the other, and float32 from the mean on.
    x, weight = input_rows("heavy", 300, n, generator("bits", n)), input_rows("normal", 1, n, generator(n))[0]
    total = np.add.accumulate((x * x).astype(np.float64), axis=1)[:, -1]
    mean = (total / n).astype(np.float32)
    scale = np.float32(1) / np.sqrt(mean + EPS)
    assert_same_bits(run("rms_norm", x, weight, EPS), (x * scale[:, None]) * weight)


def test_rms_norm_by_hand():
    # Mean square of (3, 4, 0, 0) is 6.25; with eps = 0 the scale is 1 / 2.5 = 0.4.
    x = np.array([[3, 4, 0, 0]], np.float32)
    got = run("rms_norm", x, np.array([1, 2, 5, 5], np.float32), np.float32(0))
    scale = np.float32(1) / np.float32(2.5)
    assert_same_bits(got, np.array([[np.float32(3) * scale, np.float32(4) * scale * 2, 0, 0]], np.float32))


def test_rms_norm_adds_in_double():
    # In float32 4097 squares of 1 after a square of 2^24 would be lost one by one.
    x = np.ones((1, 4097), np.float32)
    x[0, 0] = 4096
    want = rms_norm_oracle(x, np.ones(4097))
    np.testing.assert_allclose(run("rms_norm", x, np.ones(4097, np.float32), EPS), want, rtol=9 * HALF_ULP)


def test_rms_norm_squares_in_float32():
    # 1e30 squared is infinite in float32, as in ggml: the scale is 0.
    x = np.array([[1e30, 1.0]], np.float32)
    assert run("rms_norm", x, np.ones(2, np.float32), EPS).tolist() == [[0, 0]]


def test_rows_of_a_norm_do_not_see_each_other():
    x, weight = input_rows("heavy", 5, 64, generator("rows")), input_rows("normal", 1, 64, generator("weight"))[0]
    whole = run("rms_norm", x, weight, EPS)
    for t in range(5):
        assert_same_bits(run("rms_norm", x[t : t + 1], weight, EPS), whole[t : t + 1])


@pytest.mark.parametrize("kind", INPUT_KINDS)
def test_add_is_one_rounding(kind):
    x, y = input_rows(kind, 4, 33, generator(kind, 0)), input_rows(kind, 4, 33, generator(kind, 1))
    assert_same_bits(run("add", x, y), x + y)
    assert_same_bits(run("add_bias", x, y[2]), x + y[2])


def swiglu_oracle(gate, up):
    gate = gate.astype(np.float64)
    with np.errstate(over="ignore"):
        return gate / (1 + np.exp(-gate)) * up


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 6, 7, 64, 65, 66, 67])
def test_swiglu_against_double(n):
    gate = input_rows("normal", 5, n, generator("gate", n)) * np.float32(10)
    up = input_rows("normal", 5, n, generator("up", n))
    # The exponential is within 1.95 ulp (of twice half an ulp each), then a sum, a quotient and a product are rounded.
    want = swiglu_oracle(gate, up)
    np.testing.assert_allclose(run("swiglu", gate, up), want, rtol=(4 + 3) * HALF_ULP, atol=2.0**-149)


def test_swiglu_at_its_limits():
    gate = np.array([[0, -0.0, 100, -100, 1e30, -1e30, -87.5, 20]], np.float32)
    got = run("swiglu", gate, np.ones_like(gate))[0]
    assert got[:3].tolist() == [0, 0, 100]
    assert np.signbit(got[1])
    assert got[3] == 0  # the exponential of 100 is infinite: -100 / inf
    assert got[4:6].tolist() == [np.float32(1e30), 0]
    assert got[6] == pytest.approx(-87.5 * np.exp(-87.5), rel=1e-6, abs=0)
    assert got[7] == 20  # 1 + exp(-20) rounds to 1


def first_difference():
    """A gate for which ggml's lane exponential and the C library's give different SwiGLU values."""
    for gate in input_rows("normal", 1, 10_000, generator("difference"))[0]:
        lane, libm = (np.float32(gate / np.float32(1 + np.float32(f(-gate)))) for f in (exp_lane, expf))
        if lane != libm:
            return gate, lane, libm
    raise AssertionError("the two exponentials agree on every gate tried")


@pytest.mark.parametrize("n", range(1, 12))
def test_the_last_n_mod_4_values_of_swiglu_use_the_c_library(n):
    gate, lane, libm = first_difference()
    got = run("swiglu", np.full((1, n), gate, np.float32), np.ones((1, n), np.float32))[0]
    tail = n % 4
    assert got.tolist() == [lane] * (n - tail) + [libm] * tail


@pytest.mark.parametrize("name", ["rms_norm", "add", "add_bias", "swiglu"])
def test_only_the_asked_for_rows_are_written(name):
    x, y = input_rows("normal", 6, 9, generator(0)), input_rows("normal", 6, 9, generator(1))
    arguments = {"rms_norm": (x, y[0], EPS), "add_bias": (x, y[0])}.get(name, (x, y))
    whole = run(name, *arguments)
    out = np.full_like(x, 12345.0)
    getattr(KERNELS, name)(*arguments, out, 2, 4)
    assert_same_bits(out[2:4], whole[2:4])
    assert (out[[0, 1, 4, 5]] == 12345.0).all()
