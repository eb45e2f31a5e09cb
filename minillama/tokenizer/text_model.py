"""What a tokenizer's family does: turn text without special tokens into ids."""

from __future__ import annotations

import abc
import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from minillama.errors import TokenizerError
from minillama.tokenizer import utf8
from minillama.tokenizer.utf8 import Span

if TYPE_CHECKING:
    from minillama.tokenizer.merge_table import MergeTable

ESCAPED_SPACE = "▁".encode()
LONG_TEXT = 1 << 15  # bytes from which on compiled code is worth its loading
_CACHED_WORDS = 1 << 16
_CACHED_LENGTH = 64  # longer words are rare, and would make the cache's size unpredictable


class TextModel(abc.ABC):
    """Text to ids, for one family of tokenizers.

    Text is normalized first (spaces escaped, letters made lower-case, ...) and then cut into pieces, so that a piece's
    place in the text is known by where its bytes come from.
    """

    replaces_invalid = False  # whether llama.cpp's ids of bytes that are not UTF-8 are those of U+FFFD
    renders_all = False  # whether special tokens are rendered like ordinary ones

    def normalize(self, data: bytes, begins: bool) -> bytes:
        """Return the text that is cut into pieces.

        Parameters
        ----------
        data
            Text between special tokens.
        begins
            Whether it is the first text, or follows a special token.
        """
        return data

    def sources(self, data: bytes, begins: bool) -> Sequence[Span]:
        """Which bytes of ``data`` each byte of the normalized text stands for: none for an added one."""
        return utf8.byte_spans(data)

    @abc.abstractmethod
    def pieces(self, normalized: bytes) -> Iterable[tuple[int, int, int]]:
        """Id of every piece of normalized text, where it begins and where it ends."""

    def encode(self, data: bytes, begins: bool) -> list[int]:
        """Ids of text."""
        return [token for token, _, _ in self.pieces(self.normalize(data, begins))]

    def count(self, data: bytes, begins: bool) -> int:
        """Count the ids of text."""
        return sum(1 for _ in self.pieces(self.normalize(data, begins)))

    @abc.abstractmethod
    def render(self, text: bytes) -> bytes:
        """Bytes that an ordinary token stands for."""


class WordModel(TextModel):
    """Text models that cut text into words and merge each word by itself.

    The words of short texts are merged by `word_pieces`, and remembered; those of long texts in compiled code.
    """

    def __init__(self) -> None:
        self._encode_short = functools.lru_cache(_CACHED_WORDS)(self._encode_word)

    @abc.abstractmethod
    def make_table(self) -> MergeTable:
        """Vocabulary as compiled code wants it."""

    @functools.cached_property
    def _table(self) -> MergeTable:
        return self.make_table()

    @abc.abstractmethod
    def word_ends(self, normalized: bytes) -> npt.NDArray[np.int64]:
        """Where each word of normalized text ends."""

    def words(self, normalized: bytes) -> list[bytes]:
        """Cut normalized text into words; joined they are the text."""
        begin, found = 0, []
        for end in self.word_ends(normalized).tolist():
            found.append(normalized[begin:end])
            begin = end
        return found

    @abc.abstractmethod
    def word_pieces(self, word: bytes) -> Sequence[tuple[int, int]]:
        """Id of every piece of a word, and how many of its bytes it covers."""

    def pieces(self, normalized: bytes) -> Iterator[tuple[int, int, int]]:
        """See `TextModel.pieces`."""
        start = 0
        for word in self.words(normalized):
            position = start
            for token, length in self.word_pieces(word):
                yield token, position, position + length
                position += length
            start += len(word)

    def encode(self, data: bytes, begins: bool) -> list[int]:
        """See `TextModel.encode`."""
        if len(data) >= LONG_TEXT:
            ids: list[int] = self._encode_long(data, begins).tolist()
            return ids
        return list(itertools.chain.from_iterable(self._encoded_words(data, begins)))

    def count(self, data: bytes, begins: bool) -> int:
        """See `TextModel.count`."""
        if len(data) >= LONG_TEXT:
            return len(self._encode_long(data, begins))
        return sum(map(len, self._encoded_words(data, begins)))

    def _encode_long(self, data: bytes, begins: bool) -> npt.NDArray[np.int32]:
        normalized = self.normalize(data, begins)
        return self._table.encode(normalized, self.word_ends(normalized), self._encode_word)

    def _encoded_words(self, data: bytes, begins: bool) -> Iterator[tuple[int, ...]]:
        short, long = self._encode_short, self._encode_word
        for word in self.words(self.normalize(data, begins)):
            yield short(word) if len(word) <= _CACHED_LENGTH else long(word)

    def _encode_word(self, word: bytes) -> tuple[int, ...]:
        return tuple(token for token, _ in self.word_pieces(word))


def escape_spaces(data: bytes) -> bytes:
    """Write spaces as ``▁``."""
    return data.replace(b" ", ESCAPED_SPACE)


def unescape_spaces(text: bytes) -> bytes:
    """Write ``▁`` as spaces."""
    return text.replace(ESCAPED_SPACE, b" ")


def escaped_sources(data: bytes) -> list[Span]:
    """Which bytes of ``data`` each byte of ``escape_spaces(data)`` stands for."""
    return [(i, i + 1) for i, byte in enumerate(data) for _ in range(len(ESCAPED_SPACE) if byte == 0x20 else 1)]


def byte_token(value: int) -> bytes:
    """Text of the token for a byte: ``<0x0A>``."""
    return b"<0x%02X>" % value


def byte_of(text: bytes) -> bytes:
    """Byte that a token such as ``<0x0A>`` stands for.

    Raises
    ------
    TokenizerError
        If the text has another form.
    """
    try:
        return bytes([int(text[3:5], 16)])
    except ValueError:
        raise TokenizerError(f"token {text!r} is said to be a byte but does not name one") from None
