"""Norms, arithmetic and SwiGLU against float64 numpy, and what holds exactly."""

import numpy as np
import oracles
import pytest
from kernel_inputs import INPUT_KINDS, assert_same_bits, generator, input_rows

from minillama.kernels.reference import elementwise
from minillama.kernels.reference.libm import exp_lane, expf
from minillama.kernels.registry import kernel_set

KERNELS = kernel_set("reference")
EPS = np.float32(1e-5)
HALF_ULP = 2.0**-24  # largest relative error of one rounding to float32
FINITE_KINDS = [kind for kind in INPUT_KINDS if kind != "huge"]  # squares of 1e30 are infinite in float32


def run(name, *arguments):
    out = np.full_like(arguments[0], 12345.0)
    getattr(elementwise, name)(*arguments, out, 0, len(out))
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


@pytest.mark.parametrize(
    "name", ["rms_norm", "layer_norm", "add", "add_bias", "mul", "div", "scale", "softcap", "swiglu"]
)
def test_only_the_asked_for_rows_are_written(name):
    x, y = input_rows("normal", 6, 9, generator(0)), input_rows("normal", 6, 9, generator(1))
    arguments = {
        "rms_norm": (x, y[0], EPS), "layer_norm": (x, y[0], EPS), "add_bias": (x, y[0]), "softcap": (x, EPS),
        "scale": (x, EPS, EPS),
    }.get(name, (x, y))  # fmt: skip
    whole = run(name, *arguments)
    out = np.full_like(x, 12345.0)
    getattr(elementwise, name)(*arguments, out, 2, 4)
    assert_same_bits(out[2:4], whole[2:4])
    assert (out[[0, 1, 4, 5]] == 12345.0).all()


@pytest.mark.parametrize("kind", FINITE_KINDS)
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7, 64, 577])
def test_layer_norm_against_double(n, kind):
    x, weight = input_rows(kind, 3, n, generator(n, kind)), input_rows("normal", 1, n, generator(n))[0]
    want = oracles.layer_norm(x, weight, EPS)
    # The mean is rounded twice, so a difference is off by two half ulps of the largest value, divided by the deviation
    # or by sqrt(eps); the rest are the roundings of the RMS norm and two more of the squares' sums.
    deviation = np.sqrt(np.var(x.astype(np.float64), axis=1, keepdims=True) + EPS)
    shift = 3 * HALF_ULP * np.abs(x).max(1, keepdims=True) / deviation * np.abs(weight)
    relative = 12 * HALF_ULP + 2 * shift.max(1, keepdims=True)
    assert (np.abs(run("layer_norm", x, weight, EPS) - want) <= relative * np.abs(want) + shift + 2.0**-126).all()


def test_layer_norm_by_hand():
    # Mean 3, deviations -2, 0, 2, 0: variance 2, and with eps = 2 the scale is 1 / 2.
    x, weight = np.array([[1, 3, 5, 3]], np.float32), np.array([1, 1, 1, 7], np.float32)
    assert run("layer_norm", x, weight, np.float32(2)).tolist() == [[-1, 0, 1, 0]]


def test_layer_norm_adds_squares_in_fours():
    # After subtracting a mean of 0: 4096^2 + 1 rounds to 4096^2 within a four, but not between a four and the tail.
    for tail in range(4):
        x = np.zeros((1, 4 + tail), np.float32)
        x[0, :2] = 4096, -4096
        x[0, 2:4] = 1, -1
        squares = float(np.float32(4096.0**2 * 2) + np.float32(2))
        variance = np.float32(squares / (4 + tail))
        want = x * (np.float32(1) / np.sqrt(variance + EPS))
        assert_same_bits(run("layer_norm", x, np.ones(4 + tail, np.float32), EPS), want)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 9, 67])
def test_layer_norm_to_the_bit(n):
    # The documented order, in numpy.
    x = input_rows("heavy", 200, n, generator("layer", n))
    mean = np.add.accumulate(x.astype(np.float64), axis=1)[:, -1:].astype(np.float32) / np.float32(n)
    centred = x - mean
    squares, total, whole = centred * centred, np.zeros((200, 1)), n - n % 4
    for k in range(0, whole, 4):
        four = (squares[:, k] + squares[:, k + 1]) + (squares[:, k + 2] + squares[:, k + 3])
        total[:, 0] += four.astype(np.float64)
    for k in range(whole, n):
        total[:, 0] += squares[:, k].astype(np.float64)
    scale = np.float32(1) / np.sqrt((total / n).astype(np.float32) + EPS)
    assert_same_bits(run("layer_norm", x, np.ones(n, np.float32), EPS), centred * scale)


@pytest.mark.parametrize("kind", INPUT_KINDS)
def test_products_and_quotients_are_one_rounding(kind):
    x, y = (input_rows(kind, 4, 33, generator(kind, i)) for i in range(2))
    with np.errstate(all="ignore"):
        assert_same_bits(run("mul", x, y), x * y)
        assert_same_bits(run("div", x, y), x / y)


def test_scale_rounds_before_the_bias():
    x = input_rows("normal", 4, 33, generator("scale"))
    assert_same_bits(run("scale", x, np.float32(0.3), np.float32(0)), x * np.float32(0.3))
    assert_same_bits(run("scale", x, np.float32(0.3), np.float32(1)), x * np.float32(0.3) + np.float32(1))
    assert np.signbit(run("scale", np.float32([[-0.0]]), np.float32(2), np.float32(0)))  # zero is not added


def test_softcap_against_double():
    x = input_rows("heavy", 4, 101, generator("softcap")) * np.float32(20)
    # The quotient as a product with the inverse: two roundings; tanh within two ulps; the product.
    np.testing.assert_allclose(run("softcap", x, np.float32(30)), oracles.softcap(x, 30), rtol=7 * HALF_ULP)
    limits = run("softcap", np.float32([[0, 1e30, -np.inf]]), np.float32(50))
    assert limits.tolist() == [[0, 50, -50]]


def test_rows_and_columns_are_multiplied():
    x, weight = input_rows("heavy", 3, 7, generator("mul")), input_rows("normal", 1, 7, generator("weight"))[0]
    assert_same_bits(run("mul_row", x, weight), x * weight)
    assert_same_bits(run("mul_column", x, weight[:3, None].copy()), x * weight[:3, None])


def test_columns_are_copied():
    x, out = input_rows("heavy", 3, 7, generator("columns")), np.zeros((3, 4), np.float32)
    elementwise.select_columns(x, 2, out, 0, 3)
    assert_same_bits(out, x[:, 2:6])
