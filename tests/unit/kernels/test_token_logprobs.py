"""Log probabilities as llama.cpp's perplexity has them: float exponentials, a double sum in order."""

from __future__ import annotations

import math

import numpy as np

from minillama.kernels.logprobs import token_logprobs
from minillama.kernels.reference.libm import expf


def test_the_sum_is_a_double_in_order() -> None:
    rng = np.random.default_rng(5)
    logits = (rng.normal(size=(6, 501)) * 8).astype(np.float32)
    logits[4] = logits[4] - np.float32(1e4)
    tokens, found = rng.integers(0, 501, 6), np.empty(6)
    token_logprobs(logits, tokens, found)
    for row, token, logprob in zip(logits, tokens, found, strict=True):
        total = 0.0
        for value in row:
            total += float(expf(np.float32(value - row.max())))
        assert logprob == float(np.float32(row[token] - row.max())) - math.log(total)
