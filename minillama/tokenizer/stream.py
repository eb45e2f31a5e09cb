"""Ids to text, one at a time, without ever showing half a character."""

from __future__ import annotations

import codecs
from collections.abc import Callable


class StreamDecoder:
    """Decode ids as they come; the pushes and the final flush together equal decoding all ids at once.

    Parameters
    ----------
    piece
        Bytes of a token.
    """

    def __init__(self, piece: Callable[[int], bytes]) -> None:
        self._piece = piece
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """Return the text that this token completes; the bytes of an unfinished character are kept for the next."""
        return self._decoder.decode(self._piece(token))

    def flush(self) -> str:
        """Return what is left: U+FFFD for an unfinished character, else nothing. The decoder is then as new."""
        return self._decoder.decode(b"", final=True)
