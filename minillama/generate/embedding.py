"""Texts as vectors: the vectors of their tokens, pooled and normalized as llama.cpp does it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from minillama.errors import ContextFullError, InvalidInputError, UnsupportedError
from minillama.kernels.types import F32

if TYPE_CHECKING:
    from minillama.generate.language_model import LanguageModel
    from minillama.model.adapters import AdapterLike

POOLINGS = ("none", "mean", "cls", "last")
Progress = Callable[[int, int], None]

# Tokens that go through one pass; short texts share it. It changes no bits.
_TOKENS = 512


def pooling_of(model: LanguageModel, pooling: str | None) -> str:
    """The pooling that was asked for, or the file's own.

    Raises
    ------
    InvalidInputError
        There is no such pooling, or none was asked for and the file states none.
    UnsupportedError
        The file's own is that of a reranker.
    """
    if pooling is None:
        pooling = model.config.pooling
        if not pooling:
            raise InvalidInputError(
                f"{model.config.name} does not state how it pools: choose pooling, one of {', '.join(POOLINGS)}"
            )
        if pooling == "rank":
            raise UnsupportedError(f"{model.config.name} is a reranker, whose scores are not supported")
    if pooling not in POOLINGS:
        raise InvalidInputError(f"pooling is {pooling!r}, there are {', '.join(POOLINGS)}")
    return pooling


def embed(
    model: LanguageModel,
    ids: Sequence[Sequence[int]],
    *,
    pooling: str | None = None,
    normalize: bool = True,
    adapters: Sequence[AdapterLike] | None = None,
    progress: Progress | None = None,
) -> list[F32]:
    """Vectors of texts: float32 [n_embd] each, or [n_tokens, n_embd] without pooling; see ``LanguageModel.embed``."""
    pooling, found = pooling_of(model, pooling), []
    for i, text in enumerate(ids):
        if len(text) > model.n_ctx:
            raise ContextFullError(f"text {i} has {len(text)} tokens, the context is {model.n_ctx} (n_ctx)")
    for part in _parts(ids):
        caches = [model.new_cache(adapters=adapters) for _ in part]
        found += [_normalized(pool(vectors, pooling), normalize) for vectors in model.hidden(part, caches)]
        if progress is not None:
            progress(len(found), len(ids))
    return found


def pool(vectors: F32, pooling: str) -> F32:
    """Of the vectors of a text's tokens, float32 [n_tokens, n_embd], all, their mean, the first or the last.

    The mean is llama.cpp's product with a row of 1 / n: float products, added up in double, in order.
    """
    if pooling == "mean":
        products = vectors * np.float32(np.float32(1) / np.float32(len(vectors)))
        return np.asarray(np.add.accumulate(products, axis=0, dtype=np.float64)[-1], np.float32)
    chosen: dict[str, F32] = {"none": vectors, "cls": vectors[0], "last": vectors[-1]}
    return chosen[pooling]


def normalized(vectors: F32) -> F32:
    """Vectors of length 1, as llama.cpp's ``common_embd_normalize``: a double sum, in order, of float squares.

    A vector of zeros stays as it is.
    """
    total = np.add.accumulate(vectors * vectors, axis=-1, dtype=np.float64)[..., -1:]
    with np.errstate(divide="ignore"):
        factor = np.where(total > 0, 1 / np.sqrt(total), 0).astype(np.float32)
    return np.asarray(vectors * factor, np.float32)


def _normalized(vectors: F32, normalize: bool) -> F32:
    return normalized(vectors) if normalize else vectors


def _parts(ids: Sequence[Sequence[int]]) -> Iterator[list[Sequence[int]]]:
    """Neighbouring texts that fit one pass, in order; a long one has a pass of its own."""
    part: list[Sequence[int]] = []
    for text in ids:
        if part and sum(map(len, part)) + len(text) > _TOKENS:
            yield part
            part = []
        part.append(text)
    if part:
        yield part
