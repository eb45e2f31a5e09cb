"""Every setting is checked when it is made."""

import dataclasses
import math

import numpy as np
import pytest

from minillama.errors import InvalidInputError
from minillama.sampling import SamplingParams


def test_defaults_are_llama_cpps():
    params = SamplingParams()  # common_params_sampling in common.h
    assert (params.temperature, params.top_k, params.top_p, params.min_p) == (0.8, 40, 0.95, 0.05)
    assert (params.repeat_penalty, params.frequency_penalty, params.presence_penalty) == (1.0, 0.0, 0.0)
    assert (params.penalty_last_n, params.logit_bias, params.seed) == (64, {}, None)


def test_setting_one_field_leaves_the_others_at_their_defaults():
    assert dataclasses.replace(SamplingParams(temperature=0.3), temperature=0.8) == SamplingParams()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[(name, math.nan) for name in ("temperature", "top_p", "min_p", "repeat_penalty", "frequency_penalty")],
        *[(name, "0.5") for name in ("temperature", "top_k", "top_p", "presence_penalty", "penalty_last_n", "seed")],
        *[(name, True) for name in ("temperature", "top_k", "penalty_last_n", "seed")],
        *[(name, None) for name in ("temperature", "top_k", "top_p", "min_p", "logit_bias")],
        ("temperature", -0.1),
        ("temperature", math.inf),
        ("temperature", 10**400),
        ("top_k", 1.5),
        ("top_p", 1.01),
        ("top_p", -0.01),
        ("min_p", 1.01),
        ("min_p", -0.01),
        ("repeat_penalty", 0.0),
        ("repeat_penalty", -1.0),
        ("repeat_penalty", math.inf),
        ("frequency_penalty", math.inf),
        ("presence_penalty", -math.inf),
        ("presence_penalty", math.nan),
        ("penalty_last_n", -2),
        ("penalty_last_n", 2.0),
        ("seed", -1),
        ("seed", 1.0),
        ("logit_bias", [(1, 2.0)]),
        ("logit_bias", {-1: 1.0}),
        ("logit_bias", {"1": 1.0}),
        ("logit_bias", {True: 1.0}),
        ("logit_bias", {1: math.nan}),
        ("logit_bias", {1: math.inf}),
        ("logit_bias", {1: 1e39}),
        ("logit_bias", {1: "ban"}),
    ],
)
def test_bad_value_is_refused_by_name(field, value):
    with pytest.raises(InvalidInputError, match=rf"^{field}.*found .*, wanted ") as caught:
        SamplingParams(**{field: value})
    assert "\n" not in str(caught.value)


def test_numpy_numbers_become_plain_ones():
    params = SamplingParams(
        temperature=np.float32(0.5), top_k=np.int32(3), seed=np.uint64(7), logit_bias={np.int64(2): np.float32(1)}
    )
    assert [type(v) for v in (params.temperature, params.top_k, params.seed)] == [float, int, int]
    assert [type(v) for v in (*params.logit_bias, *params.logit_bias.values())] == [int, float]
    assert params == SamplingParams(temperature=0.5, top_k=3, seed=7, logit_bias={2: 1.0})


def test_frozen_hashable_and_independent_of_the_callers_dict():
    bias = {3: 1.0}
    params = SamplingParams(logit_bias=bias)
    bias[4] = math.nan
    assert params.logit_bias == {3: 1.0}
    assert hash(params) == hash(SamplingParams(logit_bias={3: 1.0}))
    with pytest.raises(dataclasses.FrozenInstanceError):
        params.temperature = 1.0
