"""Each step of the chain on its own, against the slow obvious way."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from minillama.errors import InvalidInputError
from minillama.sampling import processors as steps

numbers32 = st.floats(-50, 50, width=32)
scores_of = arrays(np.float32, st.integers(1, 300), elements=st.one_of(numbers32, st.sampled_from([0.0, 1.0, -np.inf])))
values_of = arrays(np.float64, st.integers(1, 300), elements=st.floats(-30, 30, width=32))


def slow_order(scores):
    return sorted(range(len(scores)), key=lambda i: (-scores[i], i))


@given(scores_of, st.integers(1, 400))
def test_largest_is_a_full_sort_cut_off(scores, k):
    assert steps.largest(scores, k).tolist() == slow_order(scores)[:k]


@pytest.mark.parametrize("k", [1, 40, 2000, 9000])
@pytest.mark.parametrize("kind", ["distinct", "rounded", "equal", "clustered"])
def test_largest_on_a_vocabulary_with_block_maxima(k, kind):
    rng = np.random.default_rng(5)
    scores = rng.normal(size=9001).astype(np.float32)
    if kind == "rounded":
        scores = np.round(scores)
    elif kind == "equal":
        scores = np.zeros_like(scores)
    elif kind == "clustered":  # the largest share columns, so the bound from the column maxima is loose
        scores[:: 9001 // 64] += 100
    assert steps.largest(scores, k).tolist() == slow_order(scores)[:k]


@pytest.mark.parametrize("k", [0, -1, -40])
def test_top_k_off_keeps_all_but_the_banned(k):
    assert steps.top_k(np.float32([1, -np.inf, 3]), k).tolist() == [0, 2]


def test_top_k_never_fills_up_with_banned_tokens():
    assert steps.top_k(np.float32([-np.inf, 2, -np.inf, 5]), 3).tolist() == [3, 1]


@given(values_of, st.floats(0, 1, exclude_max=True))
def test_top_p_is_the_smallest_set_that_reaches_p(values, p):
    kept = steps.top_p(values, p)
    probabilities = np.exp(values - values.max())
    probabilities /= math.fsum(probabilities)
    assert kept.tolist() == slow_order(values)[: len(kept)]
    rounding = 1e-12  # the sums are taken in another order here
    assert math.fsum(probabilities[kept]) >= p - rounding
    if len(kept) > 1:
        assert math.fsum(probabilities[kept[:-1]]) < p + rounding


def test_top_p_keeps_the_token_that_crosses():
    values = np.log([0.5, 0.3, 0.2])
    assert steps.top_p(values, 0.6).tolist() == [0, 1]
    assert steps.top_p(values, 0.0).tolist() == [0]


@pytest.mark.parametrize("n", [64, 2048, 8192, 16383])
def test_top_p_of_a_flat_vocabulary_needs_more_than_its_first_guess(n):
    assert steps.top_p(np.zeros(2**14), n / 2**14).tolist() == list(range(n))  # exact: powers of two


@given(values_of, st.floats(0.001, 1))
def test_min_p_is_a_fraction_of_the_largest_probability(values, p):
    wanted = [i for i, v in enumerate(values) if v >= max(values) + math.log(p)]
    assert steps.min_p(values, p).tolist() == wanted


@given(scores_of, st.lists(st.integers(0, 7), max_size=30), st.floats(0.5, 2), st.floats(-2, 2), st.floats(-2, 2))
def test_penalties_follow_llama_cpp_in_float32(scores, history, repeat, frequency, presence):
    scores = np.resize(scores, 8)
    wanted = scores.copy()
    for token in set(history):
        logit = wanted[token]
        logit = logit * np.float32(repeat) if logit <= 0 else logit / np.float32(repeat)
        count = np.float32(history.count(token))
        wanted[token] = logit - (count * np.float32(frequency) + np.float32(presence))
    ids, counts = steps.window_counts(history, -1, 8)
    got = steps.penalize(scores, ids, counts, repeat=repeat, frequency=frequency, presence=presence)
    assert got.dtype == np.float32
    assert np.array_equal(got, wanted)


def test_repeat_penalty_acts_once_however_often_a_token_occurs():  # field failure 88
    ids, counts = steps.window_counts([1] * 80, -1, 3)
    got = steps.penalize(np.float32([0.5, 1, -1]), ids, counts, repeat=1.1, frequency=0, presence=0)
    assert got[1] == np.float32(1) / np.float32(1.1)


@pytest.mark.parametrize(
    ("last_n", "ids", "counts"), [(3, [2, 5], [1, 2]), (-1, [1, 2, 5], [2, 1, 2]), (99, [1, 2, 5], [2, 1, 2])]
)
def test_window_is_the_end_of_the_history(last_n, ids, counts):
    got_ids, got_counts = steps.window_counts([1, 1, 5, 2, 5], last_n, 6)
    assert (got_ids.tolist(), got_counts.tolist()) == (ids, counts)


@pytest.mark.parametrize("history", [[6], [-1], [0.5], [[1]], ["a"]])
def test_history_that_is_no_list_of_ids_is_refused(history):
    with pytest.raises(InvalidInputError, match="history: found"):
        steps.window_counts(history, -1, 6)


def test_bias_adds_and_bans():
    scores = np.float32([1, np.inf, 3, -np.inf])
    got = steps.add_bias(scores, np.array([0, 1, 3]), np.float32([0.5, -np.inf, 100]))
    assert got.tolist() == [1.5, -np.inf, 3, -np.inf]


@pytest.mark.parametrize(
    "step",
    [
        lambda s: steps.add_bias(s, np.array([0]), np.float32([1])),
        lambda s: steps.penalize(s, np.array([0]), np.array([1]), repeat=2, frequency=1, presence=1),
        lambda s: steps.top_k(s, 2),
        lambda s: steps.largest(s, 2),
        lambda s: steps.top_p(s, 0.5),
        lambda s: steps.min_p(s, 0.5),
        lambda s: steps.softmax(s, 0.5),
    ],
)
def test_steps_do_not_modify_their_argument(step):
    scores = np.float32([3, 1, 2])
    scores.setflags(write=False)
    assert not np.shares_memory(step(scores), scores)
