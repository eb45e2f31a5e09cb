"""The transformations of the sampling chain, each a pure function: none modifies its arguments.

``scores`` are logits on their way through the chain, ``[n_vocab]`` float32; after the top-k step the chain goes on in
float64 over the candidates that are left. No function expects NaN or ``+inf``; see `Sampler` for those.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from minillama.errors import InvalidInputError
from minillama.sampling.checks import Logits

Ids = npt.NDArray[np.int64]
Values = npt.NDArray[np.float64]

_COLUMN = 64  # scores per block maximum in `_kth_largest_bound`; 32 to 128 measured equal at 151,936 scores


def add_bias(scores: Logits, ids: Ids, amounts: Logits) -> Logits:
    """Add ``amounts`` to the scores of ``ids``; ``-inf`` bans even a score of ``+inf``."""
    biased = scores.copy()
    banned = np.isneginf(amounts)
    biased[ids[~banned]] += amounts[~banned]
    biased[ids[banned]] = -np.inf
    return biased


def window_counts(history: Sequence[int], last_n: int, n_vocab: int) -> tuple[Ids, Ids]:
    """Return the distinct tokens of the last ``last_n`` of ``history`` (-1: all) and how often each occurs there.

    Raises
    ------
    InvalidInputError
        The window holds something that is not a token id below ``n_vocab``.
    """
    window = np.asarray(history if last_n < 0 else history[-last_n:])
    if window.size == 0:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    if window.ndim != 1 or not np.issubdtype(window.dtype, np.integer):
        raise InvalidInputError(f"history: found {window.dtype} of shape {window.shape}, wanted a list of token ids")
    ids, counts = np.unique(window.astype(np.int64), return_counts=True)
    if ids[0] < 0 or ids[-1] >= n_vocab:
        outside = ids[0] if ids[0] < 0 else ids[-1]
        raise InvalidInputError(f"history: found token id {outside}, wanted ids from 0 to {n_vocab - 1}")
    return ids, counts.astype(np.int64)


def penalize(scores: Logits, ids: Ids, counts: Ids, *, repeat: float, frequency: float, presence: float) -> Logits:
    """Lower the scores of tokens seen ``counts`` times: the float32 arithmetic of llama.cpp's penalties sampler.

    The repeat penalty acts once per distinct token: it divides positive scores and multiplies the others, as dividing
    a negative score would make the token likelier.
    """
    factor = np.float32(repeat)
    seen = scores[ids]
    seen = np.where(seen <= 0, seen * factor, seen / factor)
    penalized = scores.copy()
    penalized[ids] = seen - (counts.astype(np.float32) * np.float32(frequency) + np.float32(presence))
    return penalized


def largest(scores: npt.NDArray[np.floating], k: int) -> Ids:
    """Positions of the ``k`` largest scores, largest first, the lowest position first among equals."""
    kept = np.arange(scores.size) if k >= scores.size else np.flatnonzero(scores >= _kth_largest_bound(scores, k))
    order = np.argsort(-scores[kept], kind="stable")[:k]
    return kept[order]


def _kth_largest_bound(scores: npt.NDArray[np.floating], k: int) -> np.floating:
    """Return a number that at least ``k`` scores reach, close below the k-th largest."""
    n_columns = scores.size // _COLUMN
    if n_columns > k:
        # k columns have a maximum of at least the k-th largest maximum, so at least k scores do
        scores = scores[: n_columns * _COLUMN].reshape(_COLUMN, n_columns).max(axis=0)
    kth = scores.size - k
    bound: np.floating = np.partition(scores, kth)[kth]
    return bound


def top_k(scores: Logits, k: int) -> Ids:
    """Ids of the ``k`` largest scores (all if ``k`` is 0 or less), without banned ones (``-inf``)."""
    if k <= 0:
        return np.flatnonzero(scores > -np.inf)
    ids = largest(scores, k)
    return ids[scores[ids] > -np.inf]


def top_p(values: Values, p: float) -> Ids:
    """Positions of the fewest likeliest values whose probabilities sum to at least ``p``, likeliest first."""
    probabilities = softmax(values, 1.0)
    for k in (256, 4096, values.size):  # the nucleus is small as a rule: avoid sorting a whole vocabulary
        order = largest(values, k)
        n_below = np.searchsorted(np.cumsum(probabilities[order]), p, side="left")
        if n_below < order.size:
            return order[: n_below + 1]  # the one that crosses p stays
    return order


def min_p(values: Values, p: float) -> Ids:
    """Positions of the values whose probability is at least ``p`` times the largest one."""
    return np.flatnonzero(values >= values.max() + np.log(p))


def softmax(values: Values, temperature: float) -> Values:
    """Probabilities of ``values / temperature``."""
    with np.errstate(over="ignore"):  # a tiny temperature sends all but the maximum to -inf, which is its limit
        weights = np.exp((values - values.max()) / temperature)
    probabilities: Values = weights / weights.sum()
    return probabilities
