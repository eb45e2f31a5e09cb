"""Cutting text at special tokens, before anything else is done to it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

_SPACES = b" \t\n\v\f\r"
_PREFIX = 3  # bytes by which tokens are looked for together


@dataclass(frozen=True)
class SpecialToken:
    """A token that is found in text as it stands.

    Attributes
    ----------
    id, text
        The token.
    strip_left, strip_right
        White space on this side belongs to the token and is dropped.
    """

    id: int
    text: bytes
    strip_left: bool = False
    strip_right: bool = False


class Fragment(NamedTuple):
    """Part of a text: bytes [start, end), and the special token they are, or ``None`` for ordinary text."""

    start: int
    end: int
    token: int | None


class SpecialSplitter:
    """Cut text at special tokens as llama.cpp does: the longest token first wherever it occurs, then the next.

    One search of the text per prefix, and a pass over the pieces per token that occurs: linear in the text. Tokens of
    equal length go by id (llama.cpp leaves their order to ``std::sort``; it matters only where two of them overlap).
    """

    def __init__(self, tokens: Iterable[SpecialToken]) -> None:
        self._tokens = sorted(tokens, key=lambda token: (-len(token.text), token.id))
        self._places = {token.text: place for place, token in enumerate(self._tokens)}
        self._lengths: dict[bytes, set[int]] = {}  # of the tokens that begin with a prefix
        for token in self._tokens:
            self._lengths.setdefault(token.text[:_PREFIX], set()).add(len(token.text))

    def split(self, data: bytes) -> list[Fragment]:
        """Return the fragments; between them, only white space that special tokens drop is missing."""
        fragments = [Fragment(0, len(data), None)] if data else []
        for token in self._occurring(data):
            fragments = [
                part
                for fragment in fragments
                for part in (_cut(token, data, fragment) if fragment.token is None else (fragment,))
            ]
        return fragments

    def _occurring(self, data: bytes) -> list[SpecialToken]:
        """Tokens that occur, in order; one search of the text per prefix."""
        found: set[int] = set()
        for prefix, lengths in self._lengths.items():
            start = data.find(prefix)
            while start >= 0:
                texts = (data[start : start + length] for length in lengths)
                found.update(self._places[text] for text in texts if text in self._places)
                start = data.find(prefix, start + 1)
        return [self._tokens[place] for place in sorted(found)]


def _cut(token: SpecialToken, data: bytes, fragment: Fragment) -> Iterator[Fragment]:
    begin, end, _ = fragment
    while (found := data.find(token.text, begin, end)) >= 0:
        stop = found
        if token.strip_left:
            stop = begin + len(data[begin:found].rstrip(_SPACES))
        if stop > begin:
            yield Fragment(begin, stop, None)
        begin = found + len(token.text)
        yield Fragment(found, begin, token.id)
        if token.strip_right:
            begin = end - len(data[begin:end].lstrip(_SPACES))
    if begin < end:
        yield Fragment(begin, end, None)
