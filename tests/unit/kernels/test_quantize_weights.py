"""Quantizing weights: by hand, against gguf-py where it has the type, round trips, and as plain Python.

The bits of every type are compared with ggml's in ``tests/reference/test_quantize_ggml.py``.
"""

import os
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import plain_quantize
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from kernel_inputs import as_weight, generator, get_rows
from quantize_inputs import (
    CASES,
    SEARCHED,
    assert_same_blocks,
    importances,
    quantize_weights,
    weight_values,
)

from minillama.gguf.constants import GGMLType
from minillama.kernels.layouts import LAYOUTS
from minillama.kernels.reference import quantize_search
from minillama.kernels.reference.quantize_weights import QUANTIZE_WEIGHTS
from minillama.kernels.registry import kernel_set

KERNELS = kernel_set("reference")
DECODED = [t for t in QUANTIZE_WEIGHTS if t in KERNELS.get_rows and t is not GGMLType.F32]
GGUF_PY = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "TQ1_0", "TQ2_0", "MXFP4")
HALF = 2.0**-11  # rounding a scale to half precision


def named(types):
    return pytest.mark.parametrize("type_", types, ids=lambda t: t.name)


def decoded(type_, packed):
    layout = LAYOUTS[type_]
    return get_rows(KERNELS, type_, packed, packed.shape[1] // layout.type_size * layout.block_size)


def round_trip(type_, x, importance=None):
    return decoded(type_, quantize_weights(type_, x, importance))


@named([t for t in QUANTIZE_WEIGHTS if t.name in GGUF_PY])
def test_equals_gguf_py(type_):
    x = weight_values("normal", 7, 512, generator("gguf", type_.name))
    want = np.ascontiguousarray(gguf.quants.quantize(x, gguf.GGMLQuantizationType[type_.name])).view(np.uint8)
    assert_same_blocks(type_, quantize_weights(type_, x), want.reshape(7, -1))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0].name}-{case[1]}")
def test_every_row_by_itself_and_nothing_else_is_written(case):
    type_, kind = case
    rng = generator("rows", type_.name)
    x, importance = weight_values("normal", 5, 512, rng), importances(kind, 512, rng)
    whole = quantize_weights(type_, x, importance)
    out = np.full_like(whole, 0x5A)
    weights = as_weight(np.empty(0, np.float32) if importance is None else importance)
    QUANTIZE_WEIGHTS[type_](as_weight(x), weights, out, 1, 3)
    np.testing.assert_array_equal(out[1:3], whole[1:3])
    assert (out[[0, 3, 4]] == 0x5A).all()
    for row in range(5):
        assert_same_blocks(type_, whole[row : row + 1], quantize_weights(type_, x[row : row + 1], importance), row)


@named([t for t in SEARCHED if t in DECODED])
@pytest.mark.parametrize("kind", ["normal", "sparse", "constant", "negative"])
def test_importances_of_zero_give_finite_values(type_, kind):
    x = weight_values(kind, 4, 512, generator("zero", type_.name))
    assert np.isfinite(round_trip(type_, x, np.zeros(512, np.float32))).all()


@named([t for t in SEARCHED if t in DECODED])
def test_importances_move_the_error_to_where_it_costs_less(type_):
    rng = generator("importance", type_.name)
    x = weight_values("normal", 40, 512, rng)
    importance = np.where(rng.random(512) < 0.25, 100, 0.01).astype(np.float32)
    with_, without = (
        (importance * (round_trip(type_, x, i) - x).astype(np.float64) ** 2).sum() for i in (importance, None)
    )
    assert with_ < without


@named([t for t in QUANTIZE_WEIGHTS if t not in SEARCHED])
def test_types_without_a_search_take_no_notice_of_importances(type_):
    x = weight_values("normal", 3, 512, generator("ignored"))
    importance = np.linspace(0, 5, 512, dtype=np.float32)
    assert_same_blocks(type_, quantize_weights(type_, x, importance), quantize_weights(type_, x))


# The largest error in a block: by its largest magnitude, or (second) by the distance of its extremes. Reasons:
# half a step, plus the rounding of the scale (and minimum) to half precision times the largest level.
BOUNDS = {
    "F16": (HALF, 0),
    "BF16": (2.0**-8, 0),
    "Q8_0": ((0.5 + 127 * HALF) / 127, 0),
    "Q8_1": ((0.5 + 127 * HALF) / 127, 0),
    "Q8_K": (0.501 / 127, 0),  # the scale stays float32
    "Q4_0": ((1 + 8 * HALF) / 8, 0),  # the value opposite the extreme one has level 7 of 8: a whole step
    "Q5_0": ((1 + 16 * HALF) / 16, 0),
    "Q4_1": (HALF, 0.5 / 15 + HALF),
    "Q5_1": (HALF, 0.5 / 31 + HALF),
    "TQ1_0": (0.5 + HALF, 0),
    "TQ2_0": (0.5 + HALF, 0),
    "Q2_0": (0.5 + HALF, 0),
    "Q1_0": (1 + HALF, 0),  # every value becomes plus or minus the mean magnitude
    "MXFP4": (0.5, 0),  # just below a power of two values are cut from 8 units to 6
    "NVFP4": (17 / 16 / 6, 0),  # half of the largest step, which is 2 of 6 units, by a scale rounded to 3 bits
}
SIMPLE = [t for t in DECODED if t.name in BOUNDS]
# Values at which every scale is a normal half and NVFP4's do not saturate (2688).
moderate = st.floats(-2000, 2000, width=32).map(lambda v: np.float32(v) if abs(v) > 0.5 else np.float32(0))


@named(SIMPLE)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_round_trip_error(type_, data):
    block_size = LAYOUTS[type_].block_size
    x = data.draw(hnp.arrays(np.float32, (1, max(64, block_size)), elements=moderate, fill=st.nothing()))
    blocks = x.astype(np.float64).reshape(-1, block_size)
    error = np.abs(round_trip(type_, x).reshape(blocks.shape) - blocks).max(axis=1)
    by_size, by_range = BOUNDS[type_.name]
    group = 16 if type_ is GGMLType.NVFP4 else block_size
    largest = np.abs(blocks).reshape(len(blocks), -1, group).max(axis=2).max(axis=1)
    bound = by_size * largest + by_range * (blocks.max(axis=1) - blocks.min(axis=1))
    assert (error <= bound * (1 + 1e-5)).all()


# Searches give up accuracy at some values to fit the others: the largest error found by trying, and some room. By the
# distance of the extremes, zero included; a shift of one bit in a scale is beyond all of them.
SEARCHED_BOUNDS = {"Q2_K": 0.45, "Q3_K": 0.3, "Q4_K": 0.12, "Q5_K": 0.06, "Q6_K": 0.03, "IQ4_NL": 0.15, "IQ4_XS": 0.15}


@named([t for t in DECODED if t.name in SEARCHED_BOUNDS])
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_round_trip_error_of_a_search(type_, data):
    block_size = LAYOUTS[type_].block_size
    x = data.draw(hnp.arrays(np.float32, (1, 256), elements=moderate, fill=st.nothing()))
    blocks = x.astype(np.float64).reshape(-1, block_size)
    error = np.abs(round_trip(type_, x).reshape(blocks.shape) - blocks).max(axis=1)
    extremes = np.maximum(blocks.max(axis=1), 0) - np.minimum(blocks.min(axis=1), 0)
    assert (error <= SEARCHED_BOUNDS[type_.name] * extremes).all()


# Quantizing what was decoded gives the same bytes, where the scale can be read off the decoded values exactly.
STABLE = [t for t in SIMPLE if t.name not in ("Q8_1", "Q4_1", "Q5_1", "Q8_K")]


@named(STABLE)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_quantizing_decoded_values_changes_nothing(type_, data):
    block_size = LAYOUTS[type_].block_size
    x = data.draw(hnp.arrays(np.float32, (1, max(64, block_size)), elements=moderate, fill=st.nothing()))
    packed = quantize_weights(type_, x)
    again = quantize_weights(type_, decoded(type_, packed))
    np.testing.assert_array_equal(decoded(type_, again), decoded(type_, packed))
    if type_ is not GGMLType.NVFP4 and x.all():  # zeros have two codes in most types
        assert_same_blocks(type_, again, packed)


# Root mean square error of 100,000 normal values, as measured; a scale in the wrong place doubles it.
RMS = {"Q2_K": 0.298, "Q3_K": 0.151, "Q4_K": 0.072, "Q5_K": 0.0362, "Q6_K": 0.0178, "IQ4_NL": 0.0761, "IQ4_XS": 0.0768}


@pytest.mark.parametrize("kind", ["none", "uniform"])
@named([t for t in DECODED if t.name in RMS])
def test_error_on_normal_values(type_, kind):
    rng = generator("rms")
    x, importance = weight_values("normal", 25, 4096, rng), importances(kind, 4096, rng)
    error = np.sqrt(np.mean((round_trip(type_, x, importance) - x).astype(np.float64) ** 2))
    assert error == pytest.approx(RMS[type_.name], rel=0.08)  # importances trade the plain error for a weighted one


def test_the_search_minimises_the_weighted_error():
    # x = 2 * level exactly, but for a heavy value: its weight decides the scale.
    x = np.array([-8, -6, 2, 4, 0, 6, 2, -3], np.float32)
    levels = np.empty(8, np.int64)
    scale = quantize_search.search_scale(x, np.ones(8, np.float32), 4, levels)
    assert (levels - 4).tolist() == [-4, -3, 1, 2, 0, 3, 1, -2]
    errors = x - scale * (levels - 4)
    assert abs(float((errors * (levels - 4)).sum())) < 1e-5  # the least-squares scale: error orthogonal to levels


def test_a_cast_is_that_of_x86():
    values = [0.0, 1.9, -1.9, 2147483520.0, 2147483648.0, -2147483904.0, np.inf, -np.inf, np.nan]
    got = [quantize_search.truncated(np.float32(v)) for v in values]
    assert got == [0, 1, -1, 2147483520, *[-(2**31)] * 5]


def test_plain_python_gives_the_compiled_bits(tmp_path):
    file = tmp_path / "plain.npz"
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    command = [sys.executable, "-W", "error", str(Path(plain_quantize.__file__)), str(file)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    compiled = plain_quantize.results()
    with np.load(file) as plain:
        assert plain.files == list(compiled)
        for name in plain.files:
            np.testing.assert_array_equal(plain[name], compiled[name], err_msg=name)
