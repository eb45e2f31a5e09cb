"""Softmax with mask, ALiBi and sinks: against float64, by hand, and beside the attention's own."""

import numpy as np
import oracles
import pytest
from kernel_inputs import assert_same_bits, generator

from minillama.kernels.reference.attention import soft_max
from minillama.kernels.reference.softmax import SOFT_MAX_EXT, alibi_slope

HALF_ULP = 2.0**-24
DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.uint16], ids=["f32", "f16"])
NONE = np.empty(0, np.float32)


def run(scores, mask=None, sinks=NONE, scale=1.0, max_bias=0.0, dtype=np.float32, rows=None):
    if mask is None:
        mask = np.empty((0, 0), dtype)
    elif dtype == np.uint16:
        mask = mask.astype(np.float16).view(np.uint16)
    out = np.full_like(scores, 12345.0)
    start, stop = rows or (0, scores.shape[0] * scores.shape[1])
    SOFT_MAX_EXT[np.dtype(dtype)](scores, mask, sinks, np.float32(scale), np.float32(max_bias), out, start, stop)
    return out


def scores_of(*shape, spread=6.0):
    return (generator("scores", shape).standard_normal(shape) * spread).astype(np.float32)


@DTYPES
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7, 16, 64, 257])
@pytest.mark.parametrize(("max_bias", "with_sinks"), [(0, False), (0, True), (8, False), (8, True)])
def test_against_double(dtype, n, max_bias, with_sinks):
    scores, rng = scores_of(6, 3, n), generator("mask", n)
    mask = -rng.integers(0, 10, (3, n)).astype(np.float32)
    mask[1:, : n // 2] = -np.inf
    sinks = rng.standard_normal(6).astype(np.float32) if with_sinks else NONE
    want = oracles.soft_max(scores, mask, sinks, 0.5, max_bias)
    # Scores and masks are below 25 in magnitude: product, sum and difference leave 25 + 25 + 50 half ulps in the
    # exponent, a slope's own few; exponential 4, sums 4, inverse and product 3.
    got = run(scores, mask, sinks, 0.5, max_bias, dtype)
    np.testing.assert_allclose(got, want, rtol=(100 + 20 + 11) * HALF_ULP, atol=2.0**-126)
    assert (got[:, 1:, : n // 2] == 0).all()


@pytest.mark.parametrize("n", [4, 8, 64, 256])
def test_without_extras_it_is_the_attentions(n):
    scores = scores_of(2, 3, n)
    want = scores.copy()
    for row in want.reshape(-1, n):
        soft_max(row, n, np.float32(0.3))
    assert_same_bits(run(scores, scale=0.3), want)


def test_slopes_by_hand():
    # The paper: 8 heads halve from 1/2 to 1/256; of 12 heads, the last four take every other root of those.
    assert [alibi_slope(h, 8, np.float32(8)) for h in range(8)] == [2.0**-i for i in range(1, 9)]
    twelve = [float(alibi_slope(h, 12, np.float32(8))) for h in range(12)]
    assert twelve[:8] == [2.0**-i for i in range(1, 9)]
    assert twelve[8:] == pytest.approx([2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5], rel=3e-7)
    assert alibi_slope(5, 12, np.float32(0)) == 1
    np.testing.assert_allclose(twelve, oracles.alibi_slopes(12, 8), rtol=3e-7)


def test_slopes_scale_the_mask_of_their_head():
    # Equal scores and a mask of -ln 2 at one position: with slope 1/2 its weight is 2^-1/2 of the other's.
    got = run(np.zeros((2, 1, 2), np.float32), np.array([[0, -np.log(2)]], np.float32), max_bias=2.0)
    ratio = got[:, 0, 1] / got[:, 0, 0]
    np.testing.assert_allclose(ratio, [2**-0.5, 2**-0.25], rtol=1e-6)


def test_a_sink_takes_its_share():
    # Four equal scores and an equal sink: a fifth each, and what the sink takes is missing.
    got = run(np.zeros((1, 1, 4), np.float32), sinks=np.zeros(1, np.float32))
    assert_same_bits(got, np.full((1, 1, 4), np.float32(1 / 5)))
    assert run(np.zeros((1, 1, 4), np.float32), sinks=np.full(1, 1e4, np.float32)).tolist() == [[[0, 0, 0, 0]]]
    unseen = run(scores_of(2, 1, 9), sinks=np.full(2, -1e4, np.float32))
    assert_same_bits(unseen, run(scores_of(2, 1, 9)))


def test_each_head_has_its_sink():
    got = run(np.zeros((2, 2, 4), np.float32), sinks=np.array([0, -1e4], np.float32))
    assert got[0].tolist() == [[np.float32(0.2)] * 4] * 2
    assert got[1].tolist() == [[0.25] * 4] * 2


@DTYPES
def test_masks_of_both_types_agree(dtype):
    mask = np.where(np.arange(9)[None] <= np.arange(3)[:, None], 0, -np.inf).astype(np.float32)
    assert_same_bits(run(scores_of(2, 3, 9), mask, dtype=dtype), run(scores_of(2, 3, 9), mask))


def test_a_fully_masked_row_is_nan_as_in_ggml():
    mask = np.full((1, 5), -np.inf, np.float32)
    assert np.isnan(run(scores_of(1, 1, 5), mask)).all()


def test_only_the_asked_for_rows_are_written():
    scores = scores_of(3, 4, 7)
    whole, part = run(scores).reshape(12, 7), run(scores, rows=(5, 9)).reshape(12, 7)
    assert_same_bits(part[5:9], whole[5:9])
    assert (np.delete(part, range(5, 9), 0) == 12345.0).all()
