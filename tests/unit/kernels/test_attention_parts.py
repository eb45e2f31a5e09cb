"""Attention in three parts has the bits of attention in one."""

from __future__ import annotations

import numpy as np
import pytest

from minillama.kernels.reference.attention import ATTENTION, BLOCK
from minillama.kernels.reference.attention_parts import ATTENTION_OUTPUTS, ATTENTION_SCORES, attention_soft_max
from minillama.kernels.reference.attention_window import ATTENTION_WINDOW

N_HEAD, N_HEAD_KV, HEAD_DIM, VALUE_DIM = 4, 2, 16, 24
POSITION = np.array([0, 1, 62, 63, 64, 70, 129, 3, 90], np.int64)
SEQUENCE = np.array([0, 0, 0, 0, 0, 0, 0, 1, 1], np.int64)
TABLE = np.array([[3, 0, 5, 1], [2, 4, 0, 0]], np.int64)
NO_SINKS = np.zeros(0, np.float32)


def inputs(dtype: type) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(5)
    q = rng.standard_normal((len(POSITION), N_HEAD * HEAD_DIM)).astype(np.float32)
    keys, values = (
        rng.standard_normal(shape).astype(np.float32)
        for shape in ((6, N_HEAD_KV, HEAD_DIM, BLOCK), (6, N_HEAD_KV, BLOCK, VALUE_DIM))
    )
    if dtype is np.uint16:
        keys, values = (array.astype(np.float16).view(np.uint16) for array in (keys, values))
    return q, keys, values


@pytest.mark.parametrize("dtype", [np.float32, np.uint16])
@pytest.mark.parametrize(("window", "cap", "sinks"), [(0, 0, NO_SINKS), (5, 3, NO_SINKS), (66, 0, np.ones(4, "f4"))])
def test_parts_equal_the_whole(dtype: type, window: int, cap: float, sinks: np.ndarray) -> None:
    q, keys, values = inputs(dtype)
    place, n_items, scale = (TABLE, SEQUENCE, POSITION), len(POSITION) * N_HEAD, np.float32(0.25)
    scratch = np.zeros(1 << 16, np.uint8)
    whole = np.zeros((len(POSITION), N_HEAD * VALUE_DIM), np.float32)
    if window or cap or len(sinks):
        kernel, limits = ATTENTION_WINDOW[np.dtype(dtype)], (window, np.float32(cap), sinks)
    else:
        kernel, limits = ATTENTION[np.dtype(dtype)], ()
    kernel(q, keys, values, *place, N_HEAD, scale, *limits, whole, scratch, 0, n_items)

    scores, weights = (np.full((len(POSITION), N_HEAD, 130), np.nan, np.float32) for _ in range(2))
    out = np.zeros_like(whole)
    for first, last in ((0, 7), (7, n_items)):  # items may be divided anywhere
        ATTENTION_SCORES[np.dtype(dtype)](q, keys, *place, N_HEAD, scores, first, last)
        attention_soft_max(scores, POSITION, N_HEAD, scale, window, np.float32(cap), sinks, weights, first, last)
        ATTENTION_OUTPUTS[np.dtype(dtype)](weights, values, *place, N_HEAD, out, first, last)
    np.testing.assert_array_equal(out, whole)

    hidden = np.arange(130) > POSITION[:, None]
    assert np.isneginf(scores.transpose(0, 2, 1)[hidden]).all()
    assert not weights.transpose(0, 2, 1)[hidden].any()
    if not len(sinks):
        np.testing.assert_allclose(weights.sum(axis=2), 1, rtol=1e-6)  # rounded to float32 one by one
