"""The sampling chain and its random numbers."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from minillama.errors import InvalidInputError
from minillama.sampling import processors as steps
from minillama.sampling.checks import Logits, check_logits
from minillama.sampling.params import SamplingParams

Processor = Callable[[Logits, Sequence[int]], "Logits | None"]
"""``f(logits, history)``: edits the copy it is given in place and returns None, or returns a new array like it."""


class Distribution(NamedTuple):
    """The tokens that can still be drawn, in a fixed order that is not always that of their probabilities."""

    ids: steps.Ids
    probabilities: steps.Values


class Sampler:
    """Chooses the tokens of one generation: make a new one for each.

    The chain is llama.cpp's default: custom processors first, then logit bias, penalties, top-k, top-p, min-p,
    temperature, draw. The generator (PCG64) is made once, here, and gives one number per token.

    Infinite logits: a token at ``-inf`` is never chosen. Tokens at ``+inf`` are certain: they alone remain, equally
    likely. NaN is refused.

    Parameters
    ----------
    params
        The settings.
    n_vocab
        Length of the logits; None takes any.
    processors
        Called in order on a copy of the logits, before everything else.

    Attributes
    ----------
    params
        The settings.
    seed
        The seed in use, ``params.seed`` or the fresh one drawn in its place: the same seed repeats the generation.

    Raises
    ------
    InvalidInputError
        A biased token is not in the vocabulary.
    """

    def __init__(
        self, params: SamplingParams, n_vocab: int | None = None, *, processors: Sequence[Processor] = ()
    ) -> None:
        self.params = params
        # 53 bits survive every JSON reader
        self.seed = secrets.randbits(53) if params.seed is None else params.seed
        self._n_vocab = n_vocab
        self._processors = tuple(processors)
        self._bias_ids = np.array(sorted(params.logit_bias), np.int64)
        self._bias_amounts = np.array([params.logit_bias[i] for i in sorted(params.logit_bias)], np.float32)
        self._rng = np.random.Generator(np.random.PCG64(self.seed))
        if n_vocab is not None:
            self._check_bias(n_vocab)

    def sample(self, logits: Logits, history: Sequence[int] = ()) -> int:
        """Choose a token.

        Parameters
        ----------
        logits
            float32 ``[n_vocab]``; not modified.
        history
            All tokens so far, prompt included, for the penalties and the processors.

        Returns
        -------
        int
            The token id.

        Raises
        ------
        InvalidInputError
            The logits, the history or a processor's result is unusable, or every token is banned.
        """
        ids, probabilities = self.distribution(logits, history)
        cumulative = np.cumsum(probabilities)
        # side="right" steps over tokens of probability 0; random() < 1 keeps the position inside
        position = np.searchsorted(cumulative, self._rng.random() * cumulative[-1], side="right")
        return int(ids[position])

    def distribution(self, logits: Logits, history: Sequence[int] = ()) -> Distribution:
        """Return the probabilities `sample` draws from, without drawing; arguments and errors are the same."""
        params = self.params
        scores = self._certain_only(self._edited(logits, history))
        if params.temperature == 0.0:
            return Distribution(np.array([np.argmax(scores)]), np.ones(1))
        ids = steps.top_k(scores, params.top_k)
        values = scores[ids].astype(np.float64)
        if params.top_p < 1.0:
            kept = steps.top_p(values, params.top_p)
            ids, values = ids[kept], values[kept]
        if params.min_p > 0.0:
            kept = steps.min_p(values, params.min_p)
            ids, values = ids[kept], values[kept]
        return Distribution(ids, steps.softmax(values, params.temperature))

    def _edited(self, logits: Logits, history: Sequence[int]) -> Logits:
        """Apply the steps that keep the whole vocabulary: processors, bias, penalties."""
        params = self.params
        scores = check_logits(logits, self._n_vocab)
        for processor in self._processors:
            scores = _call(processor, scores, history)
        with np.errstate(over="ignore"):  # a score that overflows is a certain token
            if self._bias_ids.size:
                self._check_bias(scores.size)
                scores = steps.add_bias(scores, self._bias_ids, self._bias_amounts)
            if params.has_penalties:
                ids, counts = steps.window_counts(history, params.penalty_last_n, scores.size)
                scores = steps.penalize(
                    scores,
                    ids,
                    counts,
                    repeat=params.repeat_penalty,
                    frequency=params.frequency_penalty,
                    presence=params.presence_penalty,
                )
        return scores

    @staticmethod
    def _certain_only(scores: Logits) -> Logits:
        """Refuse scores that are all ``-inf``; let those of ``+inf`` push out the others."""
        peak = scores.max()
        if np.isneginf(peak):
            raise InvalidInputError(f"logits: all {scores.size} tokens are at -inf, wanted at least one to choose from")
        if np.isposinf(peak):
            return np.where(np.isposinf(scores), np.float32(0), np.float32(-np.inf))
        return scores

    def _check_bias(self, n_vocab: int) -> None:
        if self._bias_ids.size and self._bias_ids[-1] >= n_vocab:
            raise InvalidInputError(
                f"logit_bias: found token id {self._bias_ids[-1]}, wanted ids from 0 to {n_vocab - 1}"
            )


def _call(processor: Processor, scores: Logits, history: Sequence[int]) -> Logits:
    """Run one processor on a copy, as it may edit in place what the caller or an earlier processor still holds."""
    given = scores.copy()
    result = processor(given, history)
    name = getattr(processor, "__name__", type(processor).__name__)
    return check_logits(given if result is None else result, scores.size, f"result of processor {name!r}")
