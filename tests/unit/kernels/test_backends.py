"""The cpu kernels against the reference kernels, and the reference kernels as plain Python: the same bits."""

import os
import subprocess
import sys
from pathlib import Path

import guarded_run
import numpy as np
import plain_results
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_inputs import (
    ACTIVATION_TYPES,
    FINITE_WEIGHTS,
    INPUT_KINDS,
    assert_same_bits,
    attention_case,
    generator,
    input_rows,
    laid_out,
    mul_mat,
    packed_rows,
    quantize,
    raw_activation,
    set_sums,
)

import minillama
from minillama.errors import InvalidInputError
from minillama.kernels.layouts import LAYOUTS, WEIGHT_TYPES
from minillama.kernels.registry import BACKENDS, kernel_set

REFERENCE, CPU = kernel_set("reference"), kernel_set("cpu")
EVERY_TYPE = pytest.mark.parametrize("type_", WEIGHT_TYPES, ids=lambda t: t.name)
TYPES_OF_ITS_OWN = [t for t in WEIGHT_TYPES if CPU.mul_mat[t] is not REFERENCE.mul_mat[t]]
EVERY_TYPE_OF_ITS_OWN = pytest.mark.parametrize("type_", TYPES_OF_ITS_OWN, ids=lambda t: t.name)
UNQUANTIZED = [t for t in WEIGHT_TYPES if LAYOUTS[t].block_size == 1]
DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.uint16], ids=["f32", "f16"])


def block_of(type_):
    return max(32, LAYOUTS[type_].block_size)


def assert_same_product(type_, weight, activation, n, rows=None, label=""):
    got, want = (mul_mat(kernels, type_, weight, activation, n, rows) for kernels in (CPU, REFERENCE))
    assert_same_bits(got, want, f"{type_.name} {label}")


# One token, few, many (from 8 or 16 on, by type) and some beside whole tiles of them.
@pytest.mark.parametrize("n_tokens", [1, 2, 11, 19])
@pytest.mark.parametrize("n_blocks", [1, 3, 8])
@EVERY_TYPE_OF_ITS_OWN
def test_mul_mat_of_every_input_and_weight(type_, n_blocks, n_tokens):
    n, activation_type = n_blocks * block_of(type_), LAYOUTS[type_].activation
    for kind in INPUT_KINDS:
        rng = generator(type_.name, n_blocks, n_tokens, kind)
        activation = quantize(REFERENCE, activation_type, input_rows(kind, n_tokens, n, rng))
        for weights in FINITE_WEIGHTS:
            for n_rows in (5, 21):
                weight = packed_rows(type_, n_rows, n, rng, weights)
                assert_same_product(type_, weight, activation, n, label=f"{kind} inputs, {weights} weights")


@pytest.mark.parametrize("n_tokens", [1, 2, 9])
@pytest.mark.parametrize("n", [1, 15, 17, 255, 257, 300])
@pytest.mark.parametrize("type_", UNQUANTIZED, ids=lambda t: t.name)
def test_mul_mat_of_any_number_of_values(type_, n, n_tokens):
    # Whole vectors and chunks of columns, and what is left of them; sums of which many are negative zeros.
    rng = generator(type_.name, n, n_tokens)
    for kind in ("heavy", "zero"):
        x = input_rows(kind, n_tokens, n, rng)
        assert_same_bits(quantize(CPU, type_, x), laid_out(CPU, type_, quantize(REFERENCE, type_, x), n), kind)
        activation = quantize(REFERENCE, type_, x)
        for weights in ("any_scale", "zero", "not_finite"):
            for n_rows in (3, 16, 35):
                weight = packed_rows(type_, n_rows, n, rng, weights)
                assert_same_product(type_, weight, activation, n, label=f"{kind} inputs, {weights} weights")


@pytest.mark.parametrize("n_tokens", [1, 9])
@pytest.mark.parametrize("type_", UNQUANTIZED, ids=lambda t: t.name)
def test_double_sums_are_in_order(type_, n_tokens):
    # Every product comes back with the other sign: what is left is roundings of doubles, of any other order others.
    rng, n = generator(type_.name, n_tokens), 600
    half = rng.permutation(n // 2)

    def spread(n_rows, sign):
        values = rng.standard_normal((n_rows, n // 2)) * 2.0 ** rng.integers(-12, 12, (n_rows, n // 2))
        return np.concatenate([values, sign * values[:, half]], axis=1).astype(np.float32)

    weight = quantize(REFERENCE, type_, spread(20, -1))
    activation = quantize(REFERENCE, type_, spread(n_tokens, 1))
    assert np.count_nonzero(mul_mat(REFERENCE, type_, weight, activation, n)) > 10 * n_tokens
    assert_same_product(type_, weight, activation, n)


@pytest.mark.parametrize("n_blocks", [1, 3, 18])
@pytest.mark.parametrize("type_", ACTIVATION_TYPES, ids=lambda t: t.name)
def test_activations_are_the_references_laid_out(type_, n_blocks):
    n = n_blocks * block_of(type_)
    for kind in (*INPUT_KINDS, "not_finite"):
        rng = generator(type_.name, n_blocks, kind)
        x = input_rows("normal" if kind == "not_finite" else kind, 6, n, rng)
        if kind == "not_finite":  # one in each row; the last row is NaNs among infinities
            x[np.arange(5), rng.integers(0, n, 5)] = np.array([np.inf, -np.inf, np.nan, np.inf, np.nan])
            x[5, ::3], x[5, 1::3] = np.nan, np.inf
        want = laid_out(CPU, type_, quantize(REFERENCE, type_, x), n)
        assert_same_bits(quantize(CPU, type_, x), want, kind)


@EVERY_TYPE_OF_ITS_OWN
def test_mul_mat_of_random_activation_bytes(type_):
    # Quants of -128, which quantizing never gives, are the largest products; scales are of either sign.
    n = 4 * block_of(type_)
    for weights in FINITE_WEIGHTS:
        rng = generator(type_.name, weights)
        activation = raw_activation(LAYOUTS[type_].activation, 17, n, rng)
        weight = packed_rows(type_, 40, n, rng, weights)
        for n_tokens in (3, 17):
            assert_same_product(type_, weight, activation[:n_tokens], n, label=weights)


@pytest.mark.parametrize("type_", [t for t in TYPES_OF_ITS_OWN if t not in UNQUANTIZED], ids=lambda t: t.name)
def test_integer_sums_at_their_limits(type_):
    # All bytes of the weight equal and all bytes of the activation -128, 127 or alternating between them.
    n, rng = 2 * block_of(type_), generator(type_.name)
    patterns = np.array([[128, 128], [127, 127], [128, 127], [129, 127]], np.uint8)
    layout = LAYOUTS[LAYOUTS[type_].activation]
    activation = raw_activation(layout.type, len(patterns), n, rng).reshape(len(patterns), -1, layout.type_size)
    at = layout.offset("qs")
    activation[:, :, at : at + layout.block_size] = np.tile(patterns, layout.block_size // 2)[:, None]
    if "bsums" in dict(layout.fields):
        set_sums(activation)
    for fill in (0x00, 0x7F, 0x80, 0x88, 0xF0, 0x0F, 0xFF):
        weight = packed_rows(type_, 16, n, rng, "low").copy().reshape(16, -1, LAYOUTS[type_].type_size)
        for field, size in LAYOUTS[type_].fields:
            if field not in ("d", "dmin", "m"):
                start = LAYOUTS[type_].offset(field)
                weight[:, :, start : start + size] = fill
        flat = activation.reshape(len(patterns), -1)
        for tokens in (flat, np.tile(flat, (4, 1))):
            assert_same_product(type_, weight.reshape(16, -1), tokens, n, label=f"fill {fill:#x}")


@EVERY_TYPE_OF_ITS_OWN
def test_mul_mat_with_scales_that_are_not_finite(type_):
    # Which elements are NaN and which infinite is part of the result.
    n, rng = 2 * block_of(type_), generator(type_.name, "nan")
    activation = quantize(REFERENCE, LAYOUTS[type_].activation, input_rows("normal", 17, n, rng))
    weight = packed_rows(type_, 20, n, rng, "not_finite")
    for n_tokens in (3, 17):
        assert_same_product(type_, weight, activation[:n_tokens], n)


@pytest.mark.parametrize("n_tokens", [2, 17])
@pytest.mark.parametrize("rows", [(0, 0), (0, 1), (3, 9), (8, 31), (20, 41), (40, 41), (0, 41)])
@EVERY_TYPE
def test_mul_mat_of_some_rows_leaves_the_others(type_, rows, n_tokens):
    n, rng = 3 * block_of(type_), generator(type_.name, rows)
    weight = packed_rows(type_, 41, n, rng)
    activation = quantize(REFERENCE, LAYOUTS[type_].activation, input_rows("normal", n_tokens, n, rng))
    whole = mul_mat(REFERENCE, type_, weight, activation, n)
    for kernels in (CPU, REFERENCE):
        part = mul_mat(kernels, type_, weight, activation, n, rows)
        assert_same_bits(part[:, slice(*rows)], whole[:, slice(*rows)], kernels.name)
        assert (np.delete(part, range(*rows), axis=1) == 12345.0).all()


@EVERY_TYPE
def test_tokens_do_not_see_each_other(type_):
    n, rng = 3 * block_of(type_), generator(type_.name)
    weight = packed_rows(type_, 18, n, rng)
    activation = quantize(REFERENCE, LAYOUTS[type_].activation, input_rows("heavy", 19, n, rng))
    whole = mul_mat(CPU, type_, weight, activation, n)
    for t in range(19):
        assert_same_bits(mul_mat(CPU, type_, weight, activation[t : t + 1], n), whole[t : t + 1], f"token {t}")


@settings(max_examples=150, deadline=None)
@given(
    type_=st.sampled_from(TYPES_OF_ITS_OWN),
    shape=st.tuples(st.integers(1, 40), st.integers(1, 20), st.integers(1, 7)),
    kinds=st.tuples(st.sampled_from(INPUT_KINDS), st.sampled_from(FINITE_WEIGHTS)),
    seed=st.integers(0, 2**32),
)
def test_mul_mat_of_any_shape(type_, shape, kinds, seed):
    n_rows, n_tokens, n_blocks = shape
    n, rng = n_blocks * block_of(type_), np.random.default_rng(seed)
    activation = quantize(REFERENCE, LAYOUTS[type_].activation, input_rows(kinds[0], n_tokens, n, rng))
    assert_same_product(type_, packed_rows(type_, n_rows, n, rng, kinds[1]), activation, n)


def assert_same_attention(case, dtype, label=""):
    assert_same_bits(case.run(CPU, dtype), case.run(REFERENCE, dtype), label)


@DTYPES
@pytest.mark.parametrize("head_dim", [16, 24, 64, 80, 128])
@pytest.mark.parametrize("length", [1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 192])
def test_attention_of_every_length(dtype, head_dim, length):
    positions = ((0, length - 1), (0, length // 2), (0, 0))
    case = attention_case(generator(length, head_dim), (length,), head_dim=head_dim, positions=positions)
    assert_same_attention(case, dtype)


@DTYPES
@pytest.mark.parametrize(("n_head", "n_head_kv"), [(2, 2), (6, 2), (14, 2), (6, 1), (40, 2)])
@pytest.mark.parametrize("dims", [(24, 16), (16, 40), (3, 5), (130, 72)])
def test_attention_of_a_batch_of_sequences(dtype, n_head, n_head_kv, dims):
    lengths = (65, 1, 190, 64)
    positions = ((2, 189), (0, 64), (0, 63), (1, 0), (2, 100), (3, 63), (2, 0), (0, 30))
    case = attention_case(
        generator(n_head, n_head_kv, dims), lengths, n_head=n_head, n_head_kv=n_head_kv, head_dim=dims[0],
        value_dim=dims[1], positions=positions,
    )  # fmt: skip
    assert_same_attention(case, dtype)


@DTYPES
@pytest.mark.parametrize(("first", "n_tokens"), [(0, 1), (0, 15), (0, 16), (0, 33), (50, 40), (130, 20)])
def test_attention_of_prompts(dtype, first, n_tokens):
    # Tiles of neighbouring tokens, from the start of a sequence and after a prefix; the last one is not full.
    positions = tuple((0, p) for p in range(first, first + n_tokens))
    case = attention_case(
        generator(first, n_tokens), (200,), n_head=6, n_head_kv=2, head_dim=16, value_dim=24, positions=positions
    )
    assert_same_attention(case, dtype)


@DTYPES
def test_attention_of_prompts_and_single_tokens_side_by_side(dtype):
    positions = (*((0, p) for p in range(30, 51)), (1, 77), (2, 3), *((3, p) for p in range(10)), (2, 4))
    case = attention_case(
        generator("side by side"), (90, 80, 70, 10), n_head=6, n_head_kv=2, head_dim=16, positions=positions
    )
    assert_same_attention(case, dtype)


@DTYPES
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_attention_to_values_that_are_not_finite(dtype, value):
    # Which outputs are NaN and which infinite is part of the result; earlier tokens see nothing of it.
    positions = tuple((0, p) for p in range(60, 80))
    for part in ("k", "v"):
        case = attention_case(generator(value, part), (90,), n_head=3, head_dim=16, positions=positions)
        getattr(case, part)[0][70, 3] = value
        assert_same_attention(case, dtype, part)


@DTYPES
@pytest.mark.parametrize("spread", [0.0, 1e-20, 1e-3, 30.0, 1e4, 1e18])
def test_attention_of_small_and_large_values(dtype, spread):
    # From scores that are all zero to scores of which one takes all the weight, and products that overflow.
    case = attention_case(generator(spread), (70, 5), head_dim=24, spread=spread)
    assert_same_attention(case, dtype)


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 200), min_size=1, max_size=3),
    heads=st.sampled_from([(1, 1), (2, 1), (4, 2), (6, 2)]),
    dims=st.tuples(st.integers(1, 70), st.integers(1, 70)),
    dtype=st.sampled_from([np.float32, np.uint16]),
    data=st.data(),
)
def test_attention_of_any_shape(lengths, heads, dims, dtype, data):
    count = data.draw(st.integers(1, 4))
    sequences = [data.draw(st.integers(0, len(lengths) - 1)) for _ in range(count)]
    positions = tuple((s, data.draw(st.integers(0, lengths[s] - 1))) for s in sequences)
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    case = attention_case(
        rng, tuple(lengths), n_head=heads[0], n_head_kv=heads[1], head_dim=dims[0], value_dim=dims[1],
        positions=positions,
    )  # fmt: skip
    assert_same_attention(case, dtype)


def test_what_a_backend_does_not_replace_is_the_references_own():
    # So comparing these kernels, here and in test_cpu_floats, compares the backends whole.
    different = {
        field for field in vars(REFERENCE) if field != "name" and getattr(CPU, field) is not getattr(REFERENCE, field)
    }
    products = {"quantize", "activation_bytes", "mul_mat", "mul_mat_scratch", "mul_mat_rows", "mul_mat_id"}
    attention = {f"{name}{part}" for name in ("attention", "attention_window") for part in ("", "_items", "_scratch")}
    attention.add("attention_all")
    rows = {"rms_norm", "layer_norm", "rope_norm", "rope_neox", "swiglu", "activation", "gated", "swiglu_oai"}
    arithmetic = {"add", "add_bias", "div", "mul_row", "mul_column", "scale", "softcap"}
    copies = {"store_kv", "select_rows", "select_columns"}
    assert different == products | attention | rows | arithmetic | copies
    assert CPU.mul_mat.keys() == REFERENCE.mul_mat.keys()


def test_backends_by_name():
    assert [kernel_set(name).name for name in BACKENDS] == list(BACKENDS)
    with pytest.raises(InvalidInputError, match="backend 'cuda' does not exist, there are cpu, reference"):
        kernel_set("cuda")


def run_script(module, *arguments, **environment):
    """Run a module's file in a process of its own, with the package that this process uses."""
    environment = {**os.environ, "PYTHONPATH": str(Path(minillama.__file__).parent.parent), **environment}
    command = [sys.executable, "-W", "error", module.__file__, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.skipif(sys.platform == "win32", reason="memory is protected through POSIX's mprotect")
def test_kernels_stay_inside_their_arrays():
    done = run_script(guarded_run)
    assert done.returncode == 0, f"exit code {done.returncode} (-11 is a segmentation fault): {done.stderr[-2000:]}"
    assert done.stdout == "nothing outside was touched\n"


def test_plain_python_gives_the_compiled_bits(tmp_path):
    # What a person steps through with NUMBA_DISABLE_JIT=1 is what runs; ordinary inputs must not even warn.
    file = tmp_path / "plain.npz"
    done = run_script(plain_results, str(file), NUMBA_DISABLE_JIT="1")
    assert done.returncode == 0, done.stderr[-3000:]
    compiled = plain_results.results()
    with np.load(file) as plain:
        assert plain.files == list(compiled)
        for name in plain.files:
            assert_same_bits(plain[name], compiled[name], name)
