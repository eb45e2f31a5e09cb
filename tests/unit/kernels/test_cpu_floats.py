"""The cpu backend's float kernels between matrix products against the reference: the same bits."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_inputs import INPUT_KINDS, assert_same_bits, generator, input_rows

from minillama.kernels.jit import jit
from minillama.kernels.reference import attention as reference
from minillama.kernels.reference.libm import exp_lane
from minillama.kernels.registry import kernel_set
from minillama.kernels.simd import softmax
from minillama.kernels.simd.elementwise import _mean_square
from minillama.kernels.simd.floats import exp_lanes
from minillama.kernels.simd.vectors import load_f32x16, store

REFERENCE, CPU = kernel_set("reference"), kernel_set("cpu")
WIDTHS = pytest.mark.parametrize("n", [1, 3, 4, 15, 16, 17, 31, 32, 50, 576])
SPECIAL = np.array([0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 3e38, -3e38, 126, 192], np.float32)


@jit
def exponentials(x, out):
    for at in range(0, 4 * len(x), 64):
        store(out, at, exp_lanes(load_f32x16(x, at)))


@jit
def reference_exponentials(x, out):
    for i in range(len(x)):
        out[i] = exp_lane(x[i])


def test_exponential_of_floats_of_every_size():
    # Every 977th float, of either sign, and the neighbourhoods of where the branches change.
    edges = (np.float32(np.log(2)) * np.array([125.5, 126.5, 149, 191.5, 192.5], np.float32)).view(np.uint32)
    near = (edges[:, None] + np.arange(-100, 100)).astype(np.uint32).reshape(-1)
    bits = np.concatenate([np.arange(0, 2**32, 977, dtype=np.uint32), near, near | 0x80000000, SPECIAL.view(np.uint32)])
    x = np.resize(bits, -(-len(bits) // 16) * 16).view(np.float32)
    got, want = np.empty_like(x), np.empty_like(x)
    exponentials(x, got)
    reference_exponentials(x, want)
    assert_same_bits(got, want)


def both(call, shape):
    """What the call makes of an array that is filled with 12345, for the cpu's kernels and for the reference's."""
    results = []
    for kernels in (CPU, REFERENCE):
        out = np.full(shape, 12345.0, np.float32)
        call(kernels, out)
        results.append(out)
    return results


def rowwise(name, x, *others, rows=None):
    start, stop = rows or (0, len(x))
    return both(lambda kernels, out: getattr(kernels, name)(x, *others, out, start, stop), x.shape)


@WIDTHS
@pytest.mark.parametrize("kind", [*INPUT_KINDS, "special"])
def test_rows_of_every_width_and_kind(kind, n):
    rng = generator(kind, n)
    x, y = (input_rows("normal" if kind == "special" else kind, 5, n, rng) for _ in range(2))
    if kind == "special":
        x[rng.random(x.shape) < 0.3] = np.nan
        x[:4] = rng.choice(SPECIAL, (4, n))
    eps = np.float32(1e-5)
    assert_same_bits(*rowwise("rms_norm", x, y[0], eps), "rms_norm")
    assert_same_bits(*rowwise("add", x, y), "add")
    assert_same_bits(*rowwise("add_bias", x, y[1]), "add_bias")
    with np.errstate(over="ignore"):
        gate = x * np.float32(30)
    assert_same_bits(*rowwise("swiglu", gate, y), "swiglu")


@pytest.mark.parametrize("rows", [(0, 0), (0, 1), (2, 4), (4, 5)])
@pytest.mark.parametrize("n", [20, 32])
def test_some_rows_leave_the_others(rows, n):
    rng = generator(rows, n)
    x, y = (input_rows("normal", 5, n, rng) for _ in range(2))
    for name, others in {
        "rms_norm": (y[0], np.float32(1e-5)), "add": (y,), "add_bias": (y[0],), "swiglu": (y,),
    }.items():  # fmt: skip
        got, want = rowwise(name, x, *others, rows=rows)
        assert_same_bits(got, want, name)
        assert (np.delete(got, range(*rows), axis=0) == 12345.0).all()


def test_a_mean_between_two_floats_is_summed_in_order():
    # The squares' mean is 1 + 2^-24, halfway between two floats: the sum by lanes must not decide.
    x = np.array([[1, 1, 1, 1 + 2.0**-23]], np.float32)
    assert not _mean_square(x[0], 0, 4)[1]
    assert _mean_square(np.ones(4, np.float32), 0, 4) == (1, True)
    assert_same_bits(*rowwise("rms_norm", x, np.ones(4, np.float32), np.float32(0)))


def test_sums_by_lanes_are_trusted_only_near_enough():
    # One large square and many that the sum in order loses: the sum by lanes keeps some of them.
    x = np.full((1, 4096), 2.0**-27, np.float32)
    x[0, 0] = 1
    assert_same_bits(*rowwise("rms_norm", x, np.ones(4096, np.float32), np.float32(0)))


@pytest.mark.parametrize("name", ["rope_norm", "rope_neox"])
@pytest.mark.parametrize(("head_dim", "n_rot"), [(64, 64), (80, 80), (128, 128), (24, 24), (40, 32), (70, 36), (6, 4)])
def test_rope(name, head_dim, n_rot):
    rng = generator(name, head_dim, n_rot)
    x, table = input_rows("heavy", 4, 3 * head_dim, rng), input_rows("normal", 4, n_rot, rng).reshape(4, n_rot // 2, 2)
    for rows in ((0, 4), (1, 3)):
        got, want = both(lambda kernels, out, rows=rows: getattr(kernels, name)(x, table, 3, out, *rows), x.shape)
        assert_same_bits(got, want)


@settings(max_examples=60, deadline=None)
@given(
    tokens=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 150)), min_size=1, max_size=4),
    shape=st.tuples(st.integers(1, 3), st.integers(1, 40), st.integers(1, 40)),
    dtype=st.sampled_from([np.float32, np.uint16]),
    data=st.data(),
)
def test_store_kv(tokens, shape, dtype, data):
    # Runs of tokens of three sequences, one after the other, some of them at the same sequence again.
    n_head_kv, head_dim, value_dim = shape
    rng, next_position = np.random.default_rng(data.draw(st.integers(0, 2**32))), [data.draw(st.integers(0, 70))] * 3
    sequence, position = [], []
    for s, count in tokens:
        sequence += [s] * count
        position += range(next_position[s], next_position[s] + count)
        next_position[s] += count
    n = len(sequence)
    n_blocks = -(-max([*position, 1]) // 64) + 1
    place = rng.permutation(3 * n_blocks).reshape(3, n_blocks), np.array(sequence), np.array(position)
    k, v = (input_rows("heavy", n, n_head_kv * dim, rng) for dim in (head_dim, value_dim))
    start = data.draw(st.integers(0, n))
    stop = data.draw(st.integers(start, n))
    stored = []
    for kernels in (CPU, REFERENCE):
        keys = np.full((3 * n_blocks, n_head_kv, head_dim, 64), 77, dtype)
        values = np.full((3 * n_blocks, n_head_kv, 64, value_dim), 77, dtype)
        kernels.store_kv[np.dtype(dtype)](k, v, *place, keys, values, start, stop)
        stored.append((keys, values))
    for got, want in zip(*stored, strict=True):
        assert_same_bits(got, want)


def soft_maxes(scores, scale=1.0):
    """The softmax of both backends of scores that stand after others, with garbage behind them."""
    n, scale = len(scores), np.float32(scale)
    padded = np.full(20 + n + 15, np.nan, np.float32)
    padded[20 : 20 + n] = scores
    softmax.soft_max(padded, 20, n, scale)
    assert np.isnan(padded[:20]).all()
    assert np.isnan(padded[20 + n + -n % 16 :]).all()
    want = scores.copy()
    reference.soft_max(want, n, scale)
    return padded[20 : 20 + n], want


@pytest.mark.parametrize("n", [*range(1, 36), 63, 64, 65, 1000])
@pytest.mark.parametrize("spread", [0, 1e-3, 8, 300, 1e38])
def test_soft_max(n, spread):
    scores = (generator(n, spread).standard_normal(n) * spread).astype(np.float32)
    assert_same_bits(*soft_maxes(scores, 0.25))


@pytest.mark.parametrize("value", SPECIAL)
@pytest.mark.parametrize("at", [0, 5, 16, 19])
def test_soft_max_with_a_special_score(value, at):
    scores = generator("special", at).standard_normal(20).astype(np.float32)
    scores[at] = value
    assert_same_bits(*soft_maxes(scores))
    assert_same_bits(*soft_maxes(np.full(20, value)))
