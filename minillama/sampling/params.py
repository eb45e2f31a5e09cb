"""The settings of a generation's sampler, checked when they are made."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from minillama.errors import InvalidInputError
from minillama.sampling.checks import is_integer

# Wide enough for any use, narrow enough that penalties stay finite in float32 (inf - inf would be NaN).
_PENALTY_LIMIT = 1e6
_FLOAT32_MAX = float(np.finfo(np.float32).max)


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How the next token is chosen. The defaults are llama.cpp's.

    Attributes
    ----------
    temperature
        Logits are divided by it before the draw. 0 takes the largest logit (the lowest id on ties).
    top_k
        Keep the k largest logits; 0 or less keeps all.
    top_p
        Keep the smallest set of most likely tokens whose probabilities (before temperature) sum to at least this;
        the token that crosses the sum is kept. 1 keeps all, 0 keeps one.
    min_p
        Keep tokens at least this fraction as likely as the most likely one (before temperature). 0 keeps all.
    repeat_penalty
        Positive logits of tokens in the window are divided by it, others multiplied, once however often they occur.
    frequency_penalty
        Subtracted from a logit once for every occurrence in the window.
    presence_penalty
        Subtracted once from the logit of every token in the window.
    penalty_last_n
        The window of the three penalties: the last n tokens of the history; -1 is all of it, 0 switches them off.
    logit_bias
        Token id to a number added to its logit; ``-inf`` bans the token.
    seed
        Seed of the generation's random numbers; every integer from 0 is a real seed. None draws a fresh one, which
        `Sampler.seed` tells.

    Raises
    ------
    InvalidInputError
        A value is out of range or of the wrong type; the message names the field.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    penalty_last_n: int = 64
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    seed: int | None = None

    def __post_init__(self) -> None:
        self._set_number("temperature", 0.0, math.inf, "a finite number from 0 up")
        self._set_number("top_p", 0.0, 1.0)
        self._set_number("min_p", 0.0, 1.0)
        self._set_number("repeat_penalty", 1 / _PENALTY_LIMIT, _PENALTY_LIMIT)
        self._set_number("frequency_penalty", -_PENALTY_LIMIT, _PENALTY_LIMIT)
        self._set_number("presence_penalty", -_PENALTY_LIMIT, _PENALTY_LIMIT)
        self._set_integer("top_k", None, "an integer (0 or less: off)")
        self._set_integer("penalty_last_n", -1, "an integer from 0 up, or -1 for the whole history")
        if self.seed is not None:
            self._set_integer("seed", 0, "an integer from 0 up, or None for a fresh seed")
        object.__setattr__(self, "logit_bias", _checked_bias(self.logit_bias))

    @property
    def has_penalties(self) -> bool:
        """Whether any penalty can change a logit."""
        neutral = self.repeat_penalty == 1.0 and self.frequency_penalty == 0.0 and self.presence_penalty == 0.0
        return self.penalty_last_n != 0 and not neutral

    def _set_number(self, name: str, low: float, high: float, wanted: str | None = None) -> None:
        value = _real(getattr(self, name))
        if value is None or not math.isfinite(value) or not low <= value <= high:
            wanted = wanted or f"a number from {low:g} to {high:g}"
            raise InvalidInputError(f"{name}: found {getattr(self, name)!r}, wanted {wanted}")
        object.__setattr__(self, name, value)

    def _set_integer(self, name: str, low: int | None, wanted: str) -> None:
        value = getattr(self, name)
        if not is_integer(value) or (low is not None and value < low):
            raise InvalidInputError(f"{name}: found {value!r}, wanted {wanted}")
        object.__setattr__(self, name, int(value))


def _real(value: object) -> float | None:
    """``value`` as a float, None if it is no real number or too large to be one."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def _checked_bias(bias: object) -> dict[int, float]:
    """Copy ``bias``, so that a later change by the caller cannot bypass the checks."""
    if not isinstance(bias, Mapping):
        raise InvalidInputError(f"logit_bias: found {type(bias).__name__}, wanted a mapping of token id to number")
    checked = {}
    for token, amount in bias.items():
        if not is_integer(token) or token < 0:
            raise InvalidInputError(f"logit_bias: found token id {token!r}, wanted an integer from 0 up")
        value = _real(amount)
        if value is None or not (value == -math.inf or abs(value) <= _FLOAT32_MAX):
            raise InvalidInputError(
                f"logit_bias[{token}]: found {amount!r}, wanted a finite float32 number or -inf to ban the token"
            )
        checked[int(token)] = value
    return checked
