"""The exponential of ggml's SSE2 branch and the C library's functions, to the bit."""

from __future__ import annotations

import ctypes
import os
import platform
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import oracles
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_inputs import assert_same_bits, ulps
from numba import njit

from minillama.kernels.fma import fma
from minillama.kernels.reference.fdlibm import erff, tanhf
from minillama.kernels.reference.libm import cosf, exp_lane, expf, logf, powf, sinf
from minillama.model.config import ModelConfig

GLIBC = platform.libc_ver()[0] == "glibc"
# From 2.41 on glibc's tanhf and erff round correctly; the bits wanted are those of the versions before.
FDLIBM = GLIBC and tuple(int(part) for part in platform.libc_ver()[1].split(".")) < (2, 41)
FUNCTIONS = {"expf": expf, "logf": logf, "sinf": sinf, "cosf": cosf, "tanhf": tanhf, "erff": erff}
DOUBLE = {"expf": np.exp, "logf": np.log, "sinf": np.sin, "cosf": np.cos, "tanhf": np.tanh, "erff": oracles.erf}
LARGEST_ERROR = {"tanhf": 2}  # in ulps; 1 for the others
STRIDE = 251  # prime, so that every low bit of the mantissa and every exponent is met: 17 million floats


def c_function(name, n_arguments=1):
    function = getattr(ctypes.CDLL("libm.so.6"), name)
    function.restype, function.argtypes = ctypes.c_float, [ctypes.c_float] * n_arguments
    return function


def over(kernel, values):
    """The kernel applied to every value, in one compiled loop."""

    @njit
    def loop(values, out):
        for i in range(len(values)):
            out[i] = kernel(values[i])

    out = np.empty_like(values)
    loop(values, out)
    return out


def sweep_against_c(name):
    """A function (first, last, stride) -> (how many patterns differ, one of them) for float32 bit patterns."""
    ours, theirs = FUNCTIONS[name], c_function(name)

    @njit(nogil=True)
    def sweep(first, last, stride):
        wrong, example = 0, np.int64(-1)
        for pattern in range(first, last, stride):
            x = np.uint32(pattern).view(np.float32)
            got, want = np.float32(ours(x)), np.float32(theirs(x))
            if got.view(np.uint32) != want.view(np.uint32) and not (np.isnan(got) and np.isnan(want)):
                wrong, example = wrong + 1, np.int64(pattern)
        return wrong, example

    return sweep


def assert_none_differ(name, results):
    wrong = sum(count for count, _ in results)
    examples = [np.uint32(pattern).view(np.float32) for count, pattern in results if count]
    assert wrong == 0, f"{name}: {wrong} floats differ from the C library's, among them {examples[:4]}"


@pytest.mark.skipif(not GLIBC, reason="the bits are glibc's; elsewhere the next test bounds the error")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_sample_of_all_floats_against_glibc(name):
    if name in ("tanhf", "erff") and not FDLIBM:
        pytest.skip("this glibc has another algorithm")
    assert_none_differ(name, [sweep_against_c(name)(0, 2**32, STRIDE)])


@pytest.mark.llama_cpp
@pytest.mark.parametrize("name", FUNCTIONS)
def test_all_floats_against_glibc(name):
    assert FDLIBM, "the baseline build is compared with where its C library is glibc before 2.41"
    sweep, n_parts = sweep_against_c(name), 64
    sweep(0, 1, 1)  # compiled before the threads start
    edges = np.linspace(0, 2**32, n_parts + 1).astype(np.int64)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(lambda i: sweep(edges[i], edges[i + 1], 1), range(n_parts)))
    assert_none_differ(name, results)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_within_one_ulp_of_double(name):
    # The functions are not correctly rounded: their double polynomials are off by up to 0.02 ulp before the rounding.
    # Those of fdlibm work in float32, tanhf with several roundings.
    x = np.linspace(-100, 88, 300_001).astype(np.float32)
    x = np.concatenate([x, np.float32(2.0) ** np.arange(-140, 127 if name != "expf" else 6, 0.25, np.float32)])
    if name == "logf":
        x = x[x > 0]
    want = DOUBLE[name](x.astype(np.float64)).astype(np.float32)
    assert ulps(over(FUNCTIONS[name], x), want).max() <= LARGEST_ERROR.get(name, 1)


@pytest.mark.parametrize(
    ("name", "x", "want"),
    [
        ("expf", np.inf, np.inf), ("expf", -np.inf, 0.0), ("expf", np.nan, np.nan), ("expf", -0.0, 1.0),
        ("expf", 88.72284, np.inf), ("expf", 88.72283, 3.402798519021476e38),
        ("expf", -103.97208, 1e-45), ("expf", -103.97209, 0.0),
        ("sinf", np.inf, np.nan), ("sinf", -np.inf, np.nan), ("sinf", np.nan, np.nan), ("sinf", -0.0, -0.0),
        ("sinf", 1e-45, 1e-45), ("cosf", np.inf, np.nan), ("cosf", -np.inf, np.nan), ("cosf", -0.0, 1.0),
        ("logf", 0.0, -np.inf), ("logf", -0.0, -np.inf), ("logf", 1.0, 0.0), ("logf", np.inf, np.inf),
        ("logf", -1.0, np.nan), ("logf", -np.inf, np.nan), ("logf", np.nan, np.nan), ("logf", 1e-45, -103.27893),
        ("tanhf", np.inf, 1.0), ("tanhf", -np.inf, -1.0), ("tanhf", np.nan, np.nan), ("tanhf", -0.0, -0.0),
        ("tanhf", -1e-45, -1e-45), ("tanhf", 22.0, 1.0), ("erff", np.inf, 1.0), ("erff", -np.inf, -1.0),
        ("erff", np.nan, np.nan), ("erff", -0.0, -0.0), ("erff", 6.0, 1.0), ("erff", 1e-45, 1e-45),
    ],
)  # fmt: skip
def test_edges_of_the_c_functions(name, x, want):
    assert_same_bits(np.float32(FUNCTIONS[name](np.float32(x))), np.float32(want))


def powf_against_c(x, y):
    """How many of the pairs give other bits than the C library's powf, and one of them."""
    theirs = c_function("powf", 2)

    @njit
    def compare(x, y):
        wrong, example = 0, -1
        for i in range(len(x)):
            got, want = np.float32(powf(x[i], y[i])), np.float32(theirs(x[i], y[i]))
            if got.view(np.uint32) != want.view(np.uint32) and not (np.isnan(got) and np.isnan(want)):
                wrong, example = wrong + 1, i
        return wrong, example

    wrong, example = compare(x, y)
    return wrong, (x[example], y[example])


def power_inputs(kind, n):
    """Pairs of n floats: any bits, moderate ones, negative bases, results at the ends of the range, rotary bases."""
    rng = np.random.default_rng(n)
    if kind == "any":
        return (rng.integers(0, 2**32, n, np.uint64).astype(np.uint32).view(np.float32) for _ in range(2))
    x, y = np.exp2(rng.uniform(-30, 30, n)), rng.uniform(-6, 6, n)
    if kind == "negative":
        x, y = -x, rng.integers(-20, 20, n)
    elif kind == "ends":
        x = np.exp2(rng.uniform(-149, 128, n)).astype(np.float32)
        y = rng.choice([-150, -149.5, -149, -126, 127.99, 128, -1e-3], n) / np.log2(x.astype(np.float64))
    elif kind == "rotary":
        x, y = 10 ** rng.uniform(2, 8, n), -2 / (2 * rng.integers(1, 129, n))
    return x.astype(np.float32), y.astype(np.float32)


POWERS = pytest.mark.parametrize("kind", ["any", "moderate", "negative", "ends", "rotary"])


@pytest.mark.skipif(not GLIBC, reason="the bits are glibc's")
@POWERS
def test_a_sample_of_powers_against_glibc(kind):
    assert powf_against_c(*power_inputs(kind, 1_000_000))[0] == 0


@pytest.mark.llama_cpp
@POWERS
def test_many_powers_against_glibc(kind):
    assert powf_against_c(*power_inputs(kind, 50_000_000))[0] == 0


@pytest.mark.skipif(not GLIBC, reason="the bits are glibc's")
def test_powers_of_edges_against_glibc():
    edges = [0, 1, 2, 3, 0.5, np.inf, np.nan, 1e-45, 1e-40, 3.4e38, 2.0**-126, 2.0**23, 2.0**23 + 1, 2.0**24, 1e10]
    edges += [2.0**24 - 1, 2.0**22 + 0.5, 1 + 2.0**-23, 1 - 2.0**-24]
    values = np.array([*edges, *(-np.array(edges))], np.float32)
    x, y = (part.reshape(-1).copy() for part in np.meshgrid(values, values))
    wrong, example = powf_against_c(x, y)
    assert wrong == 0, f"powf{example} is among {wrong} that differ"


@pytest.mark.parametrize(
    ("x", "y", "want"),
    [(2, 10, 1024), (-2, 3, -8), (-2, 0.5, np.nan), (0, -1, np.inf), (-0.0, -1, -np.inf), (np.nan, 0, 1), (9, 0.5, 3)],
)
def test_powers_by_hand(x, y, want):
    assert_same_bits(np.float32(powf(np.float32(x), np.float32(y))), np.float32(want))


def test_powers_are_within_an_ulp_of_double():
    x, y = power_inputs("moderate", 300_000)

    @njit
    def loop(x, y, out):
        for i in range(len(x)):
            out[i] = powf(x[i], y[i])

    got = np.empty_like(x)
    loop(x, y, got)
    want = np.power(x.astype(np.float64), y.astype(np.float64))
    normal = (want > 2.0**-126) & (want < 2.0**127)
    assert ulps(got[normal], want[normal].astype(np.float32)).max() <= 1


def exp_lane_oracle(x):
    """The SSE2 exponential of ggml in float32 numpy, all branches computed for all lanes and chosen by masks."""
    f, c = np.float32, lambda text: np.float32(float.fromhex(text))
    with np.errstate(all="ignore"):
        z = x * c("0x1.715476p+0") + c("0x1.8p23")
        n = z - c("0x1.8p23")
        b = (x - n * c("0x1.62e4p-1")) - n * c("0x1.7f7d1cp-20")
        e = z.view(np.uint32) << np.uint32(23)
        k = (e + np.uint32(0x3F800000)).view(f)
        u = b * b
        inner = (c("0x1.573e2ep-5") + c("0x1.0e4020p-7") * b) * u + (c("0x1.fffdb6p-2") + c("0x1.555e66p-3") * b)
        j = inner * u + c("0x1.ffffecp-1") * b
        usual = k * j + k
        g = np.where(n <= 0, np.uint32(0x82000000), np.uint32(0))
        s1, s2 = (g + np.uint32(0x7F000000)).view(f), (e - g).view(f)
        far, split = s1 * s1, (s2 * j + s2) * s1
        return np.where(np.abs(n) > 192, far, np.where(np.abs(n) > 126, split, usual))


def exp_inputs():
    """Ordinary values, both sides of every switch of branch, the subnormal results, and a sample of all floats."""
    switches = np.log(2) * np.array([-192.5, -191.5, -149.5, -126.5, -125.5, 125.5, 126.5, 127.5, 191.5, 192.5])
    near = [s + np.linspace(-0.01, 0.01, 2001) for s in switches]
    values = [np.linspace(-200, 200, 200_001), *near, [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 3e38, -3e38]]
    everything = np.arange(0, 2**32, 65521, np.uint64).astype(np.uint32).view(np.float32)
    return np.concatenate([np.concatenate(values).astype(np.float32), everything])


def test_exp_lane_against_its_formula():
    x = exp_inputs()
    assert_same_bits(over(exp_lane, x), exp_lane_oracle(x))


def test_exp_lane_at_its_edges():
    assert exp_lane(np.float32(0)) == 1
    assert exp_lane(np.float32(-200)) == 0
    assert exp_lane(np.float32(200)) == np.inf
    assert 0 < exp_lane(np.float32(-100)) < np.finfo(np.float32).tiny
    assert exp_lane(np.float32(-1e30)) == 0


def test_exp_lane_is_within_two_ulps_of_exp():
    # ggml states a maximum of 1.45 + 0.5 ulp for normal results.
    x = np.linspace(-87.3, 88.7, 1_000_001).astype(np.float32)
    want = np.exp(x.astype(np.float64)).astype(np.float32)
    assert ulps(over(exp_lane, x), want).max() <= 2


@njit
def compiled_fma(a, b, c):
    return fma(a, b, c)


DOUBLES = st.floats(-1e100, 1e100, allow_subnormal=False).filter(lambda x: x == 0 or abs(x) > 1e-100)


@settings(deadline=None)  # the first example waits for the compiler
@given(DOUBLES.filter(bool), DOUBLES.filter(bool), DOUBLES)
def test_fma_as_plain_python_is_the_compiled_one(a, b, c):
    assert fma(a, b, c) == compiled_fma(a, b, c)


@settings(deadline=None)  # the first example waits for the compiler
@given(DOUBLES.filter(bool), DOUBLES.filter(bool), st.sampled_from([0.0, 1e-17, -3e-16, 1.0]))
def test_fma_keeps_what_cancellation_leaves(a, b, nudge):
    # With c = -(a * b) rounded, only one rounding at the end can give the product's own error.
    c = -(a * b) * (1 + nudge)
    assert fma(a, b, c) == compiled_fma(a, b, c)


def test_fma_by_hand():
    # (1 + 2^-30)^2 = 1 + 2^-29 + 2^-60, and the product rounded to double loses the last term.
    x = 1 + 2.0**-30
    assert fma(x, x, -(1 + 2.0**-29)) == compiled_fma(x, x, -(1 + 2.0**-29)) == 2.0**-60
    assert x * x - (1 + 2.0**-29) == 0


USUAL_BASES = (
    1e4, 2.5e4, 4e4, 5e4, 1e5, 1.5e5, 1.6e5, 2.5e5, 5e5, 6e5, 8e5, 1e6, 2e6, 3e6, 5e6, 8e6, 1e7, 1.1158840e7, 1e8,
)  # fmt: skip


CONFIG = ModelConfig(
    architecture="llama", name="", n_layer=1, n_embd=1, n_ff=1, n_head=1, n_head_kv=1, head_dim=1, value_dim=1,
    n_vocab=1, n_ctx_train=1, norm_eps=1e-5, n_rot=2, rope_freq_base=1e4, rope_freq_scale=1.0,
)  # fmt: skip


def theta_scale(base, n_rot):
    return replace(CONFIG, rope_freq_base=float(base), n_rot=n_rot).rope_theta_scale


def differing_from_powf(pairs):
    if GLIBC:
        powf = c_function("powf", 2)
        wanted = [powf(base, np.float32(-2) / np.float32(n_rot)) for base, n_rot in pairs]
        allowed = 0
    else:  # another C library's powf may differ from glibc's, whose bits are wanted, by an ulp
        wanted = [np.float32(base) ** np.float64(np.float32(-2) / np.float32(n_rot)) for base, n_rot in pairs]
        allowed = 1
    got = np.array([theta_scale(base, n_rot) for base, n_rot in pairs], np.float32)
    distance = ulps(got, np.array(wanted, np.float32))
    return [(float(base), n_rot) for (base, n_rot), d in zip(pairs, distance, strict=True) if d > allowed]


def test_theta_scale_is_powf_for_the_usual_bases():
    pairs = [(base, n_rot) for base in USUAL_BASES for n_rot in range(16, 257, 2)]
    assert differing_from_powf(pairs) == []


def test_theta_scale_is_powf_for_any_base():
    rng = np.random.default_rng(0)
    bases = (10 ** rng.uniform(2, 8, 20_000)).astype(np.float32)
    pairs = list(zip(bases, (2 * rng.integers(8, 129, len(bases))).tolist(), strict=True))
    assert differing_from_powf(pairs) == []
