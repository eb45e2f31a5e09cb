"""Choosing experts and adding up their results."""

import numpy as np
import pytest
from kernel_inputs import assert_same_bits, generator

from minillama.kernels.reference import routing


def normal(*shape, key="routing"):
    return generator(key, shape).standard_normal(shape).astype(np.float32)


def run(kernel, shape, *arguments, rows=None):
    out = np.full(shape, 12345.0, np.float32)
    kernel(*arguments, out, *(rows or (0, len(out))))
    return out


def test_experts_are_taken_in_the_given_order():
    scores, order = normal(3, 5), np.array([[4, 1, 0, 2, 3], [0, 1, 2, 3, 4], [2, 4, 3, 1, 0]], np.int32)
    ids, weights = np.full((3, 2), -1, np.int32), np.zeros((3, 2), np.float32)
    routing.take_experts(scores, order, ids, weights, 0, 3)
    np.testing.assert_array_equal(ids, order[:, :2])
    assert_same_bits(weights, np.take_along_axis(scores, order[:, :2], 1))


@pytest.mark.parametrize("n", [1, 2, 8])
def test_weights_are_divided_by_their_double_sum(n):
    weights = np.abs(normal(50, n))
    total = np.add.accumulate(weights.astype(np.float64), axis=1)[:, -1:].astype(np.float32)
    assert_same_bits(run(routing.normalize_weights, weights.shape, weights), weights / total)


def test_a_sum_of_nothing_is_the_smallest_half():
    weights = np.array([[1e-6, 0], [0, 0]], np.float32)
    want = weights / np.float32(2.0**-14)
    assert_same_bits(run(routing.normalize_weights, (2, 2), weights), want)


def test_each_expert_has_its_bias():
    x, bias, ids = normal(3, 2, 7), normal(4, 7), np.array([[3, 0], [1, 1], [2, 3]], np.int32)
    assert_same_bits(run(routing.add_expert_bias, x.shape, x, bias, ids), x + bias[ids])


@pytest.mark.parametrize("n_used", [1, 2, 5])
def test_results_are_weighted_and_added_first_expert_first(n_used):
    x, weights = normal(4, n_used, 33), normal(4, n_used)
    products = x * weights[..., None]
    want = products[:, 0]
    for i in range(1, n_used):
        want = want + products[:, i]
    assert_same_bits(run(routing.sum_experts, (4, 33), x, weights), want)


def test_only_the_asked_for_rows_are_written():
    x, weights = normal(4, 2, 5), normal(4, 2)
    whole, part = (run(routing.sum_experts, (4, 5), x, weights, rows=rows) for rows in (None, (1, 3)))
    assert_same_bits(part[1:3], whole[1:3])
    assert (part[[0, 3]] == 12345.0).all()
