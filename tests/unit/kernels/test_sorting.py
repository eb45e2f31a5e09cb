"""Argsort: a sorted permutation, and the order of equal values where it can be told without the C++ library."""

import numpy as np
import pytest
from deep_sort import ASCENDING
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_inputs import generator

from minillama.kernels.reference.sorting import argsort

ORDERS = pytest.mark.parametrize("descending", [False, True])


def run(x, descending):
    out = np.full(np.shape(x), -1, np.int32)
    argsort(np.asarray(x, np.float32), descending, out, 0, len(out))
    return out


def assert_sorts(x, descending):
    x = np.asarray(x, np.float32)
    ids = run(x[None], descending)[0]
    assert sorted(ids.tolist()) == list(range(len(x)))
    np.testing.assert_array_equal(x[ids], np.sort(x)[::-1] if descending else np.sort(x))


@ORDERS
@settings(deadline=None)  # the first example waits for the compiler
@given(st.lists(st.integers(-20, 20), min_size=1, max_size=400))
def test_any_row_is_sorted(descending, values):
    assert_sorts(values, descending)


@ORDERS
@pytest.mark.parametrize("n", [1, 2, 16, 17, 18, 100, 1000, 5000])
def test_rows_of_every_pattern(n, descending):
    rng = generator("sort", n)
    patterns = [
        np.arange(n), np.arange(n)[::-1], np.zeros(n), np.arange(n) % 2, rng.standard_normal(n),
        rng.integers(0, 3, n), np.concatenate([np.arange(n // 2), np.arange(n - n // 2)]),
    ]  # fmt: skip
    for x in patterns:
        assert_sorts(x, descending)


@ORDERS
def test_the_heap_that_quick_sort_falls_back_to(descending):
    assert_sorts(-ASCENDING if descending else ASCENDING, descending)


@ORDERS
@pytest.mark.parametrize("n", range(1, 17))
def test_up_to_16_equal_values_keep_their_order(n, descending):
    # A single insertion sort. Beyond, equal values move: the comparison with ggml holds where to.
    x = generator("ties", n).integers(0, 3, n).astype(np.float32)
    want = np.argsort(-x if descending else x, kind="stable")
    assert run(x[None], descending)[0].tolist() == want.tolist()


@ORDERS
def test_infinities_are_sorted(descending):
    assert_sorts([1, np.inf, -np.inf, 0, np.inf], descending)


def test_the_top_of_a_router():
    # ggml_argsort_top_k: the first k of the descending order.
    logits = np.array([[0.1, 2.5, -1, 2.5, 0.7, 3, -2, 0]], np.float32)
    assert run(logits, True)[0, :4].tolist() == [5, 1, 3, 4]


def test_only_the_asked_for_rows_are_written():
    x = generator("rows").standard_normal((5, 20)).astype(np.float32)
    out = np.full(x.shape, -1, np.int32)
    argsort(x, True, out, 1, 3)
    np.testing.assert_array_equal(out[1:3], run(x, True)[1:3])
    assert (out[[0, 3, 4]] == -1).all()
