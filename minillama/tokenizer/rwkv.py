"""RWKV: the longest token from the left, byte by byte (``tokenizer.ggml.model`` rwkv)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from minillama.errors import TokenizerError
from minillama.tokenizer.text_model import TextModel

_ESCAPE = re.compile(rb"\\(?:x(..)|(.))", re.DOTALL)
_LETTERS = {b"t": b"\t", b"n": b"\n", b"r": b"\r"}


def unescape(text: bytes) -> bytes:
    r"""Bytes of a token's text, in which ``\n``, ``\xff`` and the like stand for what cannot be written."""
    return _ESCAPE.sub(_unescape, text) if b"\\" in text else text


def _unescape(match: re.Match[bytes]) -> bytes:
    if match[1] is not None:
        return bytes([int(match[1], 16)])
    return _LETTERS.get(match[2], match[2])


class LongestToken(TextModel):
    """Text to ids by taking the longest token again and again.

    Parameters
    ----------
    ids
        Id of every token that text may become, by its text.
    unknown
        Id for a byte that begins no token.
    """

    renders_all = True

    def __init__(self, ids: Mapping[bytes, int], unknown: int | None) -> None:
        self._ids = {unescape(text): token for text, token in ids.items()}
        self._unknown = unknown
        self._lengths: dict[bytes, list[int]] = {}  # of tokens, longest first, by their first two bytes
        for text in self._ids:
            self._lengths.setdefault(text[:2], []).append(len(text))
        for first, lengths in self._lengths.items():
            self._lengths[first] = sorted(set(lengths), reverse=True)

    def pieces(self, normalized: bytes) -> Iterator[tuple[int, int, int]]:
        """Longest tokens from the left."""
        start, ids = 0, self._ids
        while start < len(normalized):
            for length in self._lengths.get(normalized[start : start + 2], ()):
                text = normalized[start : start + length]
                token = ids.get(text)
                if token is not None:
                    break
            else:
                text = normalized[start : start + 1]
                token = ids.get(text, self._unknown)
                if token is None:
                    raise TokenizerError(f"no token for byte 0x{text[0]:02X} in this vocabulary")
            yield token, start, start + len(text)
            start += len(text)

    def render(self, text: bytes) -> bytes:
        """Bytes that a token stands for."""
        return unescape(text)
