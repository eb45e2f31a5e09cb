"""Cutting text at special tokens, before anything else is done to it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

_SPACES = b" \t\n\v\f\r"


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

    def cut(self, data: bytes) -> Iterator[bytes | int]:
        """Pieces of ``data`` around the occurrences of this token, which appear as its id."""
        pieces = data.split(self.text)
        for i, piece in enumerate(pieces):
            if i > 0:
                yield self.id
                if self.strip_right:
                    piece = piece.lstrip(_SPACES)  # noqa: PLW2901
            if self.strip_left and i + 1 < len(pieces):
                piece = piece.rstrip(_SPACES)  # noqa: PLW2901
            if piece:
                yield piece


class SpecialSplitter:
    """Cut text at special tokens as llama.cpp does: the longest token first wherever it occurs, then the next.

    One search of the text per token, and a pass over the pieces per token that occurs: linear in the text. Tokens of
    equal length go by id (llama.cpp leaves their order to ``std::sort``; it matters only where two of them overlap).
    """

    def __init__(self, tokens: Iterable[SpecialToken]) -> None:
        self._tokens = sorted(tokens, key=lambda token: (-len(token.text), token.id))

    def split(self, data: bytes) -> list[bytes | int]:
        """Return the pieces of text and, in between, the ids of the special tokens."""
        pieces: list[bytes | int] = [data] if data else []
        for token in self._tokens:
            if token.text in data:
                pieces = [
                    part for piece in pieces for part in (token.cut(piece) if isinstance(piece, bytes) else (piece,))
                ]
        return pieces
