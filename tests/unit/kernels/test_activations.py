"""Activations and gated units against float64, at their edges, and what holds exactly."""

import numpy as np
import oracles
import pytest
from kernel_inputs import assert_same_bits, generator, input_rows, ulps

from minillama.kernels.reference.activations import ACTIVATIONS, GATED, swiglu_oai

EVERY_ACTIVATION = pytest.mark.parametrize("name", ACTIVATIONS)
EVERY_GATE = pytest.mark.parametrize("name", GATED)
HALF = 2.0**-11  # largest relative error of one rounding to half
# Largest error of one value beside the oracle: relative, and absolute in the units of its argument.
# - silu, sigmoid, tanh: three or four roundings of 2^-24, exponential or tanh within 2 ulps.
# - gelu, gelu_quick: argument and result are rounded to half; the slope of either is below 1.2.
# - gelu_erf: 1 + erf cancels below zero, where an ulp of 1 is left of it.
BOUNDS = {
    "silu": (8 * 2.0**-24, 0), "sigmoid": (8 * 2.0**-24, 0), "tanh": (4 * 2.0**-24, 0), "relu": (0, 0),
    "gelu": (HALF, 1.2 * HALF), "gelu_quick": (HALF, 1.2 * HALF), "gelu_erf": (8 * 2.0**-24, 2.0**-23),
}  # fmt: skip


def run(kernel, *arguments):
    out = np.full_like(arguments[0], 12345.0)
    kernel(*arguments, out, 0, len(out))
    return out


def points():
    """A row of ordinary values for each size of tail, closely spaced."""
    return np.linspace(-12, 12, 4 * 4001).astype(np.float32).reshape(4, -1)[:, : 4001 - 2]


@EVERY_ACTIVATION
def test_against_double(name):
    x = points()
    want, (relative, absolute) = oracles.activation(name, x), BOUNDS[name]
    tolerance = relative * np.abs(want) + absolute * np.maximum(np.abs(x), 2.0**-14)
    assert (np.abs(run(ACTIVATIONS[name], x) - want) <= tolerance).all()


GATES = {"swiglu": "silu", "reglu": "relu", "geglu": "gelu", "geglu_erf": "gelu_erf", "geglu_quick": "gelu_quick"}

ZERO_UP_TO = {"reglu": 0, "geglu": -10}


@EVERY_GATE
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7, 16, 67])
def test_a_gate_multiplies_its_activation(name, n):
    gate, up = (input_rows("normal", 3, n, generator(name, n, i)) * np.float32(4) for i in range(2))
    want = run(ACTIVATIONS[GATES[name]], gate) * up
    if name in ZERO_UP_TO:
        want[gate <= ZERO_UP_TO[name]] = 0  # not the product, which may be -0
    assert_same_bits(run(GATED[name], gate, up), want)


@EVERY_ACTIVATION
def test_edges(name):
    x = np.array([[0.0, -0.0, np.inf, -np.inf, np.nan, 1e30, -1e30, 1e-45]], np.float32)
    wanted = {
        "silu": [0, -0.0, np.inf, np.nan, np.nan, 1e30, -0.0, 0],
        "relu": [0, 0, np.inf, 0, 0, 1e30, 0, 1e-45],
        "sigmoid": [0.5, 0.5, 1, 0, np.nan, 1, 0, 0.5],
        "tanh": [0, -0.0, 1, -1, np.nan, 1, -1, 1e-45],
        "gelu": [0, -0.0, np.inf, 0, np.nan, 1e30, 0, 0],
        "gelu_erf": [0, -0.0, np.inf, np.nan, np.nan, 1e30, -0.0, 1e-45],
        # 1e30 is infinite in half, and an infinity times a sigmoid of 0 is NaN.
        "gelu_quick": [0, -0.0, np.inf, np.nan, np.nan, np.inf, np.nan, 0],
    }  # fmt: skip
    got = run(ACTIVATIONS[name], x)
    if name == "gelu_erf":  # half of the smallest number is rounded to even: zero, and so is the product
        wanted[name][-1] = 0
    assert_same_bits(got, np.array([wanted[name]], np.float32))


def test_gelu_is_a_table_of_halves():
    # Every value between -10 and 10 gives a half, and that of the half nearest to it.
    x = np.clip(input_rows("normal", 4, 1000, generator("halves")) * np.float32(3), -9.9, 9.9)
    got = run(ACTIVATIONS["gelu"], x)
    assert_same_bits(got.astype(np.float16).astype(np.float32), got)
    assert_same_bits(run(ACTIVATIONS["gelu"], x.astype(np.float16).astype(np.float32)), got)
    beyond = np.array([[-10, np.nextafter(np.float32(-10), np.float32(0)), 10, 10.123]], np.float32)
    values = run(ACTIVATIONS["gelu"], beyond)[0]
    assert values.tolist()[0] == 0
    assert not np.signbit(values[0])
    assert values[1] == 0
    assert np.signbit(values[1])  # the table's -0
    assert values.tolist()[2:] == [10, float(np.float32(10.123))]


def test_zero_gates_stop_infinities():
    # Where ggml writes 0 instead of a product, an infinity or NaN of the other factor does not pass.
    gate = np.array([[-10, -11, -1, -np.inf]], np.float32)
    up = np.array([[np.inf, np.nan, np.inf, -np.inf]], np.float32)
    assert_same_bits(run(GATED["reglu"], gate, up), np.zeros((1, 4), np.float32))
    assert_same_bits(run(GATED["geglu"], gate, up), np.array([[0, 0, -np.inf, 0]], np.float32))


def test_swiglu_oai_clamps_both():
    # gpt-oss: the gate from above only, the other factor on both sides; then gate * sigmoid(1.702 gate) * (up + 1).
    gate = np.array([[100, 7, -100, 1, 1, 0]], np.float32)
    up = np.array([[0, 0, 0, 100, -100, 5]], np.float32)
    got = run(swiglu_oai, gate, up, np.float32(1.702), np.float32(7))[0]
    one = np.float32(1 / (1 + np.exp(-1.702)))
    assert got[0] == got[1] == pytest.approx(7, rel=1e-5)
    assert got[2] == 0
    assert ulps(got[3:5], np.array([one * 8, one * -6], np.float32)).max() <= 2
    assert got[5] == 0


def test_swiglu_oai_against_double():
    gate, up = (input_rows("normal", 5, 33, generator("oai", i)) * np.float32(5) for i in range(2))
    got = run(swiglu_oai, gate, up, np.float32(1.702), np.float32(7))
    # The exponent is rounded: up to 20 half ulps; the exponential, sum, quotient, up + 1 and product: 8.
    want = oracles.swiglu_oai(gate, up, np.float32(1.702), 7.0)
    np.testing.assert_allclose(got, want, rtol=40 * 2.0**-24, atol=2.0**-24 * 10)


@pytest.mark.parametrize("name", [*ACTIVATIONS, *GATED])
def test_only_the_asked_for_rows_are_written(name):
    arrays = [input_rows("normal", 6, 9, generator(name, i)) for i in range(2 if name in GATED else 1)]
    kernel = {**ACTIVATIONS, **GATED}[name]
    out = np.full_like(arrays[0], 12345.0)
    kernel(*arrays, out, 2, 4)
    assert_same_bits(out[2:4], run(kernel, *arrays)[2:4])
    assert (out[[0, 1, 4, 5]] == 12345.0).all()
