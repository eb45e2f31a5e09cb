"""How likely a model finds given texts: perplexity, and scores of continuations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from minillama.errors import InvalidInputError
from minillama.kernels.logprobs import token_logprobs
from minillama.kernels.types import F32

if TYPE_CHECKING:
    from minillama.generate.language_model import LanguageModel

F64 = npt.NDArray[np.float64]
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Score:
    """How likely a continuation is.

    Attributes
    ----------
    tokens
        Its ids.
    logprobs
        Natural log probability of each, given everything before it.
    is_greedy
        Whether each of them is the likeliest at its place.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    is_greedy: bool

    @property
    def logprob(self) -> float:
        """Log probability of the whole continuation."""
        return math.fsum(self.logprobs)


@dataclass(frozen=True)
class Perplexity:
    """Perplexity of a text, as llama.cpp's ``llama-perplexity`` computes it.

    Attributes
    ----------
    value, error
        The figure, and its standard error.
    n_scored, n_chunks
        Tokens that count, and chunks that the text was cut into.
    tokens
        Ids of the tokens that count, int64 [n_scored].
    logprobs
        Their natural log probabilities.
    """

    value: float
    error: float
    n_scored: int
    n_chunks: int
    tokens: npt.NDArray[np.int64]
    logprobs: F64


def logprobs_of(logits: F32, tokens: Sequence[int]) -> F64:
    """Log probability of a token at each position, in llama.cpp's arithmetic."""
    result: F64 = np.empty(len(logits))
    token_logprobs(logits, np.asarray(tokens, np.int64), result)
    return result


def score(
    model: LanguageModel, prompt: str | Sequence[int], continuations: Sequence[str | Sequence[int]]
) -> list[Score]:
    """See :meth:`LanguageModel.score`."""
    context = model.tokenizer.encode(prompt) if isinstance(prompt, str) else [int(token) for token in prompt]
    if not context:
        raise InvalidInputError("the prompt is empty, at least one token is wanted")
    cache = model.new_cache()
    if len(context) > 1:
        model.forward(context[:-1], cache, logits=None)
    scores = []
    for continuation in continuations:
        whole = _whole(model, prompt, context, continuation)
        shared = min(len(context), len(whole) - 1)
        # Text can join differently where the prompt ends: what comes before is still shared.
        common = next((i for i in range(shared) if whole[i] != context[i]), shared)
        twin = cache.fork()
        first = max(0, min(common - 1, len(cache)))
        twin.truncate(first)
        logits = model.forward(whole[first:-1], twin, logits="all")
        assert logits is not None  # "all" always returns some
        wanted = whole[common:]
        logits = logits[len(logits) - len(wanted) :]
        found = logprobs_of(logits, wanted)
        greedy = bool((logits.argmax(axis=1) == wanted).all())
        scores.append(Score(tuple(wanted), tuple(float(p) for p in found), greedy))
    return scores


def _whole(
    model: LanguageModel, prompt: str | Sequence[int], context: list[int], continuation: str | Sequence[int]
) -> list[int]:
    """Prompt and continuation as ids, at least one more than the prompt's."""
    if isinstance(continuation, str) and isinstance(prompt, str):
        whole = model.tokenizer.encode(prompt + continuation)
    elif isinstance(continuation, str):
        whole = [*context, *model.tokenizer.encode(continuation, add_special=False)]
    else:
        whole = [*context, *(int(token) for token in continuation)]
    if len(whole) < 2 or whole == context:
        raise InvalidInputError(f"the continuation {continuation!r} is empty")
    return whole


def perplexity(
    model: LanguageModel, text: str | Sequence[int], *, n_ctx: int = 512, progress: Progress | None = None
) -> Perplexity:
    """Perplexity of a text by llama.cpp's method.

    The text is cut into chunks of ``n_ctx`` tokens, each computed for itself, with a beginning-of-sequence token in
    place of the first if the model's texts begin with one. Only the second half of each counts.

    Parameters
    ----------
    model
        The model.
    text
        Text, or token ids; at least two chunks.
    n_ctx
        Tokens of a chunk.
    progress
        Called as ``progress(done, total)`` before each chunk.

    Raises
    ------
    InvalidInputError
        The text is too short.
    """
    ids = model.tokenizer.encode(text) if isinstance(text, str) else [int(token) for token in text]
    if not 4 <= n_ctx <= model.n_ctx:
        raise InvalidInputError(f"chunks of {n_ctx} tokens: wanted 4 to the model's context of {model.n_ctx}")
    n_chunks = len(ids) // n_ctx
    if n_chunks < 2:
        raise InvalidInputError(f"the text has {len(ids)} tokens, at least {2 * n_ctx} (two chunks) are wanted")
    bos = model.tokenizer.bos_id if model.tokenizer.add_bos else None
    half, scored, found = n_ctx // 2, [], []
    for chunk in range(n_chunks):
        if progress is not None:
            progress(chunk, n_chunks)
        part = ids[chunk * n_ctx : (chunk + 1) * n_ctx]
        logits = model.logits(part if bos is None else [bos, *part[1:]])
        scored.append(part[half + 1 :])
        found.append(logprobs_of(logits[half:-1], part[half + 1 :]))
    logprobs = np.concatenate(found)
    loss, n = -logprobs.mean(), len(logprobs)
    error = math.sqrt(max(0.0, float((logprobs**2).mean() - loss**2)) / (n - 1))
    value = math.exp(loss)
    return Perplexity(value, error * value, n, n_chunks, np.concatenate(scored).astype(np.int64), logprobs)
