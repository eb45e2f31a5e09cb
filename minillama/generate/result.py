"""What generation returns: pieces while it runs, and the whole with its timings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from minillama.sampling import TokenLogprobs


@dataclass(frozen=True)
class Piece:
    """One step of a generation.

    Attributes
    ----------
    text
        Text that became certain with this token: often empty or more than one token's, since half characters and the
        beginnings of stop strings are held back.
    token
        Id of the token, or None for the last piece, which only brings text that was held back.
    logprobs
        Log-probabilities of the token and its alternatives, if they were asked for.
    finish_reason
        None until the last piece: ``"stop"``, ``"length"`` or ``"context"``.
    """

    text: str
    token: int | None
    logprobs: TokenLogprobs | None = None
    finish_reason: str | None = None


@dataclass(frozen=True)
class Timings:
    """Where the time went.

    Attributes
    ----------
    prompt_tokens, prompt_seconds
        Tokens of the prompt that were computed (not those found in a cache), and the time until their logits.
    generated_tokens, generated_seconds
        Tokens generated after the first, and the time they took.
    """

    prompt_tokens: int
    prompt_seconds: float
    generated_tokens: int
    generated_seconds: float

    @property
    def prompt_rate(self) -> float:
        """Prompt tokens a second."""
        return self.prompt_tokens / self.prompt_seconds if self.prompt_seconds else 0.0

    @property
    def generated_rate(self) -> float:
        """Generated tokens a second, the first one not counted: it comes with the prompt."""
        return self.generated_tokens / self.generated_seconds if self.generated_seconds else 0.0


@dataclass(frozen=True)
class Generation:
    """A finished generation.

    Attributes
    ----------
    text
        The generated text.
    tokens
        Ids of the generated tokens, without the end-of-generation token. With a stop string they include its tokens.
    prompt_tokens
        Ids of the prompt.
    logprobs
        One entry per token, if they were asked for.
    finish_reason
        ``"stop"``: the model ended its text, or a stop string came; ``"length"``: ``max_tokens`` were made;
        ``"context"``: the cache is full.
    seed
        Seed of the random numbers, to repeat the run with; it plays no part at temperature 0.
    timings
        Where the time went.
    """

    text: str
    tokens: Sequence[int]
    prompt_tokens: Sequence[int]
    logprobs: Sequence[TokenLogprobs] | None
    finish_reason: str
    seed: int
    timings: Timings

    def __str__(self) -> str:
        return self.text
