"""Byte-pair encoding: words are merged pair by pair, best rank first.

Most vocabularies spell bytes in the byte alphabet; some (Gemma 4) are spelled in UTF-8 and have ``▁`` for spaces.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from minillama.tokenizer import bytes_alphabet, utf8
from minillama.tokenizer.merging import merge
from minillama.tokenizer.patterns import PreTokenization
from minillama.tokenizer.space_words import SpaceCutter
from minillama.tokenizer.text_model import (
    WordModel,
    byte_token,
    escape_spaces,
    escaped_sources,
    unescape_spaces,
)
from minillama.tokenizer.utf8 import Span

if TYPE_CHECKING:
    from minillama.tokenizer.merge_table import MergeTable

_log = logging.getLogger(__name__)


class BytePairEncoding(WordModel):
    """Text to ids with a vocabulary and merges.

    Parameters
    ----------
    ids
        Id of every token, by its text.
    merges
        Lines ``left right`` in order of rank.
    pre
        How text is cut into words, and how the vocabulary is spelled.
    """

    replaces_invalid = True

    def __init__(self, ids: dict[bytes, int], merges: Sequence[bytes], pre: PreTokenization) -> None:
        super().__init__()
        self._ids = ids
        self._merges = merges
        self._pre = pre
        self._spell: Callable[[bytes], list[bytes]] = bytes_alphabet.spell if pre.byte_letters else utf8.characters

    @functools.cached_property
    def _ranks(self) -> dict[bytes, int]:
        # A symbol contains no space, so the merge line itself is a key for the pair. The first of equal lines counts.
        return dict(zip(reversed(self._merges), range(len(self._merges) - 1, -1, -1), strict=True))

    @functools.cached_property
    def _cut_at_spaces(self) -> SpaceCutter:
        return SpaceCutter(self._merges, joint=b" ")

    def normalize(self, data: bytes, begins: bool) -> bytes:
        """Return the text with spaces escaped, if the vocabulary wants them so."""
        return escape_spaces(data) if self._pre.escape_spaces else data

    def sources(self, data: bytes, begins: bool) -> Sequence[Span]:
        """See `TextModel.sources`."""
        return escaped_sources(data) if self._pre.escape_spaces else super().sources(data, begins)

    def word_ends(self, normalized: bytes) -> npt.NDArray[np.int64]:
        """Cut text into words."""
        ends = self._pre.pre_tokenizer.ends(normalized)
        return np.union1d(ends, self._cut_at_spaces(normalized)) if self._pre.escape_spaces else ends

    def word_pieces(self, word: bytes) -> Sequence[tuple[int, int]]:
        """Id of every piece of a word, and its length."""
        symbols = self._spell(word)
        whole = self._ids.get(b"".join(symbols))
        if whole is not None and (self._pre.ignore_merges or (self._pre.newline_runs and not word.strip(b"\n"))):
            return [(whole, len(word))]
        merged = merge(symbols, lambda left, right: self._ranks.get(left + b" " + right))
        return [piece for symbol in merged for piece in self._symbol_pieces(symbol)]

    def make_table(self) -> MergeTable:
        """See `WordModel.make_table`."""
        from minillama.kernels import merging
        from minillama.tokenizer.merge_table import MergeTable, merge_strings, token_strings

        letters = self._pre.byte_letters
        alphabet = bytes_alphabet.byte_table() if letters else None
        byte_ids = [-1 if letters else self._ids.get(byte_token(value), -1) for value in range(256)]
        whole = merging.LINE_BREAKS if self._pre.newline_runs else merging.NO_WORDS
        return MergeTable(
            token_strings(list(self._ids), alphabet),
            merge_strings(self._merges, alphabet),
            np.empty(0, np.int32),
            np.array(byte_ids, np.int32),
            whole=merging.ALL_WORDS if self._pre.ignore_merges else whole,
            begins_with_bytes=letters,
        )

    def _symbol_pieces(self, symbol: bytes) -> list[tuple[int, int]]:
        token = self._ids.get(symbol)
        if token is not None:
            return [(token, len(self._bytes(symbol)))]
        # As llama.cpp: the single bytes that are tokens; the others are dropped. With letters they are the bytes of
        # the spelled symbol, so that only ASCII is found; the piece that follows a dropped one covers it.
        names = [bytes([value]) if self._pre.byte_letters else byte_token(value) for value in symbol]
        found = [self._ids[name] for name in names if name in self._ids]
        length = len(self._bytes(symbol))
        if len(found) < len(names):
            _log.warning("no token for %r in this vocabulary: dropped, as in llama.cpp", self._bytes(symbol))
        if not found:
            return []
        first = max(length - len(found) + 1, 0)
        return [(found[0], first), *((token, 1) for token in found[1:])]

    def _bytes(self, symbol: bytes) -> bytes:
        return bytes_alphabet.unspell(symbol) if self._pre.byte_letters else symbol

    def render(self, text: bytes) -> bytes:
        """Bytes that an ordinary token stands for."""
        return unescape_spaces(text) if self._pre.escape_spaces else bytes_alphabet.unspell(text)
