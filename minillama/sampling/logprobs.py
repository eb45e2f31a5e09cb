"""Log probabilities of tokens, straight from the model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from minillama.errors import InvalidInputError
from minillama.sampling.checks import Logits, check_logits, is_integer
from minillama.sampling.processors import largest


@dataclass(frozen=True)
class TokenLogprobs:
    """A token's log probability and those of the most likely tokens at its position.

    Attributes
    ----------
    token
        Id of the chosen token.
    logprob
        Its natural log probability, whether or not it is among ``top``.
    top
        ``(id, logprob)`` of the most likely tokens, likeliest first, the lowest id first among equal logits.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


def logprobs(logits: Logits, n: int, token: int) -> TokenLogprobs:
    """Log probabilities under the model's own distribution: a float64 log-softmax of the raw logits.

    Biases, penalties, filters and temperature have no part in them. Logits of ``+inf`` share all probability equally;
    a logit of ``-inf`` has log probability ``-inf``.

    Parameters
    ----------
    logits
        float32 ``[n_vocab]`` as the model gave them; not modified.
    n
        How many of the most likely tokens to list, from 0 to ``n_vocab``.
    token
        Id of the chosen token.

    Raises
    ------
    InvalidInputError
        NaN or nothing but ``-inf`` in the logits; ``n`` or ``token`` out of range.
    """
    check_logits(logits, None)
    if not is_integer(n) or not 0 <= n <= logits.size:
        raise InvalidInputError(f"n: found {n!r}, wanted an integer from 0 to {logits.size}")
    if not is_integer(token) or not 0 <= token < logits.size:
        raise InvalidInputError(f"token: found {token!r}, wanted an id from 0 to {logits.size - 1}")
    log_p = _log_softmax(logits)
    top = largest(logits, n) if n else ()
    return TokenLogprobs(int(token), float(log_p[token]), tuple((int(i), float(log_p[i])) for i in top))


def _log_softmax(logits: Logits) -> npt.NDArray[np.float64]:
    peak = logits.max()
    if np.isneginf(peak):
        raise InvalidInputError(f"logits: found -inf in all {logits.size} values, wanted at least one finite")
    if np.isposinf(peak):
        logits = np.where(np.isposinf(logits), np.float32(0), np.float32(-np.inf))
        peak = np.float32(0)
    shifted = logits.astype(np.float64) - np.float64(peak)
    log_p: npt.NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum())
    return log_p
