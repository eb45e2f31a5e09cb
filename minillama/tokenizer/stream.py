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
    drop_space
        Whether the text's first byte is dropped if it is a space (the one that encoding has added).
    """

    def __init__(self, piece: Callable[[int], bytes], drop_space: bool = False) -> None:
        self._piece = piece
        self._drop_space = self._space_due = drop_space
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """Return the text that this token completes; the bytes of an unfinished character are kept for the next."""
        data = self._piece(token)
        if self._space_due and data:
            data = data.removeprefix(b" ")
            self._space_due = False
        return self._decoder.decode(data)

    def flush(self) -> str:
        """Return what is left: U+FFFD for an unfinished character, else nothing. The decoder is then as new."""
        self._space_due = self._drop_space
        return self._decoder.decode(b"", final=True)
