"""Log probabilities against math.log in plain Python."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from minillama.errors import InvalidInputError
from minillama.sampling import TokenLogprobs, logprobs


@given(arrays(np.float32, st.integers(1, 50), elements=st.floats(-80, 80, width=32)), st.data())
def test_equals_a_plain_log_softmax(logits, data):
    n = data.draw(st.integers(0, len(logits)))
    token = data.draw(st.integers(0, len(logits) - 1))
    values = [float(x) for x in logits]
    log_sum = max(values) + math.log(math.fsum(math.exp(v - max(values)) for v in values))
    order = sorted(range(len(values)), key=lambda i: (-values[i], i))[:n]
    got = logprobs(logits, n, token)
    close = {"rel": 1e-12, "abs": 1e-12}  # sums in another order
    assert got.token == token
    assert got.logprob == pytest.approx(values[token] - log_sum, **close)
    assert [i for i, _ in got.top] == order
    assert [p for _, p in got.top] == pytest.approx([values[i] - log_sum for i in order], **close)


def test_equal_logits_are_listed_by_id():
    assert logprobs(np.zeros(4, np.float32), 3, 2) == TokenLogprobs(
        2, -math.log(4), ((0, -math.log(4)), (1, -math.log(4)), (2, -math.log(4)))
    )


def test_the_chosen_token_need_not_be_among_the_top():
    got = logprobs(np.float32([0, 5, 4]), 1, 0)
    assert [i for i, _ in got.top] == [1]
    assert got.logprob < got.top[0][1]


def test_infinite_logits():
    assert logprobs(np.float32([0, np.inf, np.inf, -np.inf]), 4, 3) == TokenLogprobs(
        3, -math.inf, ((1, -math.log(2)), (2, -math.log(2)), (0, -math.inf), (3, -math.inf))
    )


def test_logits_are_not_modified():
    logits = np.float32([1, 2, np.inf])
    logits.setflags(write=False)
    logprobs(logits, 2, 0)
    assert logits.tolist() == [1, 2, np.inf]


@pytest.mark.parametrize(
    ("logits", "n", "token", "match"),
    [
        (np.float32([1, np.nan]), 1, 0, "1 NaN among 2"),
        (np.float32([-np.inf, -np.inf]), 1, 0, "-inf in all 2"),
        (np.float64([1, 2]), 1, 0, "found float64"),
        (np.float32([1, 2]), 3, 0, "n: found 3, wanted an integer from 0 to 2"),
        (np.float32([1, 2]), -1, 0, "n: found -1"),
        (np.float32([1, 2]), 1.5, 0, "n: found 1.5"),
        (np.float32([1, 2]), 1, 2, "token: found 2, wanted an id from 0 to 1"),
        (np.float32([1, 2]), 1, -1, "token: found -1"),
    ],
)
def test_bad_input_is_refused(logits, n, token, match):
    with pytest.raises(InvalidInputError, match=match):
        logprobs(logits, n, token)
