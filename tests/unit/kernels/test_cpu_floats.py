"""The cpu backend's float kernels between matrix products against the reference: the same bits."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_inputs import INPUT_KINDS, assert_same_bits, generator, input_rows

from minillama.kernels.bits import float_to_half, half_to_float
from minillama.kernels.jit import jit
from minillama.kernels.reference import activations, attention_window, fdlibm, libm
from minillama.kernels.registry import kernel_set
from minillama.kernels.simd import floats, functions, softmax
from minillama.kernels.simd.elementwise import _mean, _mean_square
from minillama.kernels.simd.floats import exp_lanes
from minillama.kernels.simd.vectors import load_f32x16, store

REFERENCE, CPU = kernel_set("reference"), kernel_set("cpu")
WIDTHS = pytest.mark.parametrize("n", [1, 3, 4, 15, 16, 17, 31, 32, 50, 576])
SPECIAL = np.array([0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 3e38, -3e38, 126, 192], np.float32)


def lane_by_lane(lanes, one):
    """``lanes`` of an array in sixteens, and ``one`` of each of its values."""

    @jit(keep=False)
    def in_lanes(x, out):
        for at in range(0, 4 * len(x), 64):
            store(out, at, lanes(load_f32x16(x, at)))

    @jit(keep=False)
    def one_by_one(x, out):
        for i in range(len(x)):
            out[i] = one(x[i])

    return in_lanes, one_by_one


@jit(keep=False)
def through_half(x):
    return half_to_float(float_to_half(x))


FUNCTIONS = {
    "exp_lane": (exp_lanes, libm.exp_lane), "expf": (functions.exp_c_lanes, libm.expf),
    "tanhf": (functions.tanh_lanes, fdlibm.tanhf), "gelu": (functions.gelu_lanes, activations.gelu_of),
    "gelu_quick": (functions.gelu_quick_lanes, activations.gelu_quick_of),
    "half": (floats.half_lanes, through_half), "half_by_bits": (floats._through_half_bits, through_half),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_floats_of_every_size(name):
    # Every 977th float, of either sign, and the neighbourhoods of where the branches change.
    edges = [np.log(2) * n for n in (0.5, 1, 1.5, 2.5, 125.5, 126.5, 149, 191.5, 192.5)]
    edges += [1, 10, 2.0**-14, 2.0**-24, 2.0**-25, 2.0**-55, 65504, 65520, 87.3, 88.72283, 103.97207]
    near = (np.array(edges, np.float32).view(np.uint32)[:, None] + np.arange(-100, 100)).astype(np.uint32).reshape(-1)
    bits = np.concatenate([np.arange(0, 2**32, 977, dtype=np.uint32), near, near | 0x80000000, SPECIAL.view(np.uint32)])
    x = np.resize(bits, -(-len(bits) // 16) * 16).view(np.float32)
    got, want = np.empty_like(x), np.empty_like(x)
    for kernel, out in zip(lane_by_lane(*FUNCTIONS[name]), (got, want), strict=True):
        kernel(x, out)
    assert_same_bits(got, want)


def both(call, shape):
    """What the call makes of an array that is filled with 12345, for the cpu's kernels and for the reference's."""
    results = []
    for kernels in (CPU, REFERENCE):
        out = np.full(shape, 12345.0, np.float32)
        call(kernels, out)
        results.append(out)
    return results


def kernel_of(kernels, name):
    """A field of the kernel set, or the entry of one: ``"gated/geglu"``."""
    field, _, entry = name.partition("/")
    return getattr(kernels, field)[entry] if entry else getattr(kernels, field)


def rowwise(name, x, *others, rows=None):
    start, stop = rows or (0, len(x))
    return both(lambda kernels, out: kernel_of(kernels, name)(x, *others, out, start, stop), x.shape)


def row_operations(y):
    """Operations on rows, and what they take beside the first array."""
    eps, zero = np.float32(1e-5), np.float32(0)
    return {
        "rms_norm": (y[0], eps), "layer_norm": (y[0], eps), "add": (y,), "add_bias": (y[1],), "div": (y,),
        "mul_row": (y[1],), "mul_column": (y[:, :1].copy(),), "scale": (np.float32(1.7), zero),
        "softcap": (np.float32(30),), "swiglu": (y,), "swiglu_oai": (y, np.float32(1.702), np.float32(7)),
        **{f"activation/{kind}": () for kind in CPU.activation}, **{f"gated/{kind}": (y,) for kind in CPU.gated},
    }  # fmt: skip


# Values for gates are larger, so that they reach the ends of the functions.
GATE_SIZE = dict.fromkeys(("swiglu", "swiglu_oai", *(f"gated/{kind}" for kind in CPU.gated)), np.float32(30))


def test_a_scale_with_a_bias():
    x = np.where(input_rows("normal", 3, 21, generator("bias")) < 0, np.float32(-0.0), np.float32(3))
    for bias in (0, -0.0, 2):  # a zero is not added: -0 + 0 would be 0
        got, want = rowwise("scale", x, np.float32(1.5), np.float32(bias))
        assert_same_bits(got, want)


@WIDTHS
@pytest.mark.parametrize("kind", [*INPUT_KINDS, "special"])
def test_rows_of_every_width_and_kind(kind, n):
    rng = generator(kind, n)
    x, y = (input_rows("normal" if kind == "special" else kind, 5, n, rng) for _ in range(2))
    if kind == "special":
        x[rng.random(x.shape) < 0.3] = np.nan
        x[:4] = rng.choice(SPECIAL, (4, n))
    for name, others in row_operations(y).items():
        with np.errstate(over="ignore"):
            assert_same_bits(*rowwise(name, x * GATE_SIZE.get(name, np.float32(1)), *others), name)


@pytest.mark.parametrize("rows", [(0, 0), (0, 1), (2, 4), (4, 5)])
@pytest.mark.parametrize("n", [20, 32])
def test_some_rows_leave_the_others(rows, n):
    rng = generator(rows, n)
    x, y = (input_rows("normal", 5, n, rng) for _ in range(2))
    for name, others in row_operations(y).items():
        got, want = rowwise(name, x, *others, rows=rows)
        assert_same_bits(got, want, name)
        assert (np.delete(got, range(*rows), axis=0) == 12345.0).all()


@pytest.mark.parametrize(("first", "n"), [(0, 50), (3, 16), (20, 17), (49, 1)])
def test_rows_and_columns_are_copied(first, n):
    x, ids = input_rows("heavy", 5, 50, generator(first)), np.array([4, 0, 0, 3])
    assert_same_bits(*both(lambda kernels, out: kernels.select_columns(x, first, out, 1, 4), (5, n)))
    assert_same_bits(*both(lambda kernels, out: kernels.select_rows(x, ids, out, 1, 4), (4, 50)))


def test_a_mean_between_two_floats_is_summed_in_order():
    # The squares' mean is 1 + 2^-24, halfway between two floats: the sum by lanes must not decide.
    x = np.array([[1, 1, 1, 1 + 2.0**-23]], np.float32)
    assert not _mean_square(x[0], 0, 4)[1]
    assert _mean_square(np.ones(4, np.float32), 0, 4) == (1, True)
    assert_same_bits(*rowwise("rms_norm", x, np.ones(4, np.float32), np.float32(0)))


def test_a_sum_that_cancels_is_summed_in_order():
    # In order the small term is lost beside the large ones; by lanes it is not.
    x = np.array([[2.0**60, 1, -(2.0**60), *[0] * 30]], np.float32)
    assert not _mean(x[0], 0, 33)[1]
    assert _mean(np.full(33, 3, np.float32), 0, 33) == (3, True)
    assert_same_bits(*rowwise("layer_norm", x, np.ones(33, np.float32), np.float32(0)))


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


def soft_maxes(scores, scale=1.0, begin=0, sink=-np.inf):
    """The softmax of both backends of scores that stand after others, with garbage around them."""
    n, first, scale, sink = len(scores), 32 + begin - begin % 16, np.float32(scale), np.float32(sink)
    padded = np.full(32 + n + 15, np.nan, np.float32)
    padded[32 + begin : 32 + n] = scores[begin:]
    softmax.soft_max(padded, 32, begin, n, scale, sink)
    assert np.isnan(padded[:first]).all()
    assert np.isnan(padded[32 + n + -n % 16 :]).all()
    want = scores.copy()
    attention_window.soft_max_window(want, begin, n, scale, sink)
    return padded[32 + begin : 32 + n], want[begin:]


@pytest.mark.parametrize("n", [*range(1, 36), 63, 64, 65, 1000])
@pytest.mark.parametrize("spread", [0, 1e-3, 8, 300, 1e38])
def test_soft_max(n, spread):
    scores = (generator(n, spread).standard_normal(n) * spread).astype(np.float32)
    assert_same_bits(*soft_maxes(scores, 0.25))


@pytest.mark.parametrize("n", [1, 16, 35, 64])
@pytest.mark.parametrize("begin", [0, 1, 3, 4, 15, 16, 17, 34, 63])
@pytest.mark.parametrize("sink", [-np.inf, -3, 0, 50, np.nan])
def test_soft_max_of_a_window_with_a_sink(n, begin, sink):
    scores = (generator(n, begin).standard_normal(n) * 8).astype(np.float32)
    assert_same_bits(*soft_maxes(scores, 0.25, min(begin, n - 1), sink))


@pytest.mark.parametrize("value", SPECIAL)
@pytest.mark.parametrize("at", [0, 5, 16, 19])
def test_soft_max_with_a_special_score(value, at):
    scores = generator("special", at).standard_normal(20).astype(np.float32)
    scores[at] = value
    assert_same_bits(*soft_maxes(scores))
    assert_same_bits(*soft_maxes(np.full(20, value)))
