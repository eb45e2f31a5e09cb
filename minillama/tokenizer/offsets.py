"""Where in a text its tokens are."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import NamedTuple

from minillama.tokenizer import utf8
from minillama.tokenizer.utf8 import Span


class Encoding(NamedTuple):
    """Ids of a text and where in it each one is.

    Attributes
    ----------
    ids
        Token ids.
    offsets
        Where each token begins and ends: ``text[start:end]``.
    """

    ids: list[int]
    offsets: list[tuple[int, int]]


def source_of(sources: Sequence[Span], start: int, end: int) -> Span:
    """Which bytes the bytes [start, end) stand for, given which ones each byte stands for."""
    if start < end:
        return sources[start][0], sources[end - 1][1]
    place = sources[start][0] if start < len(sources) else (sources[-1][1] if sources else 0)
    return place, place


class OffsetCounter:
    """Collect offsets given in bytes, and count them in characters on request.

    Parameters
    ----------
    data
        The text.
    in_characters
        Whether to count characters; a span then covers every character it has a byte of.
    """

    def __init__(self, data: bytes, *, in_characters: bool) -> None:
        counts = in_characters and not data.isascii()
        self._starts: list[int] | None = utf8.code_points(data)[1].tolist() if counts else None
        self.offsets: list[tuple[int, int]] = []

    def add(self, start: int, end: int) -> None:
        """Add bytes [start, end)."""
        if self._starts is not None:
            first = bisect.bisect_right(self._starts, start) - 1
            start, end = first, bisect.bisect_left(self._starts, end) if end > start else first
        self.offsets.append((start, end))
