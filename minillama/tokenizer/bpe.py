"""Byte-level byte-pair encoding: words are spelled in the byte alphabet, then merged pair by pair, best rank first."""

from __future__ import annotations

import functools
import heapq
import logging
from collections.abc import Sequence

from minillama.tokenizer import bytes_alphabet
from minillama.tokenizer.pretokenize import PreTokenizer

_log = logging.getLogger(__name__)
_CACHED_WORDS = 1 << 16
_CACHED_LENGTH = 64  # longer words are rare, and would make the cache's size unpredictable


class ByteLevelBPE:
    """Text to ids with a vocabulary and merges spelled in the byte alphabet.

    Parameters
    ----------
    ids
        Id of every token, by its text.
    merges
        Lines ``left right`` in order of rank.
    pre_tokenizer
        How text is cut into words.
    """

    def __init__(self, ids: dict[bytes, int], merges: Sequence[bytes], pre_tokenizer: PreTokenizer) -> None:
        self._ids = ids
        self._pre_tokenizer = pre_tokenizer
        # A symbol contains no space, so the merge line itself is a key for the pair. The first of equal lines counts.
        self._ranks = dict(zip(reversed(merges), range(len(merges) - 1, -1, -1), strict=True))
        self._encode_short = functools.lru_cache(_CACHED_WORDS)(self._encode_word)

    def encode(self, data: bytes) -> list[int]:
        """Ids of text in which special tokens have already been dealt with."""
        output: list[int] = []
        for word in self._pre_tokenizer.split(data):
            output += self._encode_short(word) if len(word) <= _CACHED_LENGTH else self._encode_word(word)
        return output

    def _encode_word(self, word: bytes) -> Sequence[int]:
        symbols = bytes_alphabet.spell(word)
        if self._pre_tokenizer.ignore_merges:
            whole = self._ids.get(b"".join(symbols))
            if whole is not None:
                return (whole,)
        return tuple(token for symbol in self._merge(symbols) for token in self._symbol_ids(symbol))

    def _symbol_ids(self, symbol: bytes) -> Sequence[int]:
        token = self._ids.get(symbol)
        if token is not None:
            return (token,)
        # As llama.cpp: the single bytes of the spelled symbol that are tokens; the others are dropped.
        found = [self._ids[byte] for byte in (bytes([value]) for value in symbol) if byte in self._ids]
        if len(found) < len(symbol):
            _log.warning("no token for %r in this vocabulary: dropped, as in llama.cpp", bytes_alphabet.unspell(symbol))
        return found

    def _merge(self, symbols: list[bytes]) -> list[bytes]:
        """Merge neighbours until no pair has a rank: lowest rank first, then leftmost.

        The symbols form a linked list; a merged symbol takes the place of its left part and its right part becomes
        empty. Pairs wait in a heap and are dropped when they come up after one of their parts has changed, so a word
        of n bytes takes O(n log n) steps.
        """
        ranks, end = self._ranks, len(symbols)
        following = list(range(1, end + 1))
        previous = list(range(-1, end - 1))
        heap: list[tuple[int, int, bytes]] = []

        def consider(left: int, right: int) -> None:
            if left >= 0 and right < end:
                pair = symbols[left] + b" " + symbols[right]
                rank = ranks.get(pair)
                if rank is not None:
                    heapq.heappush(heap, (rank, left, pair))

        for left in range(end - 1):
            consider(left, left + 1)
        while heap:
            _, left, pair = heapq.heappop(heap)
            right = following[left]
            if right == end or symbols[left] + b" " + symbols[right] != pair:
                continue
            symbols[left] += symbols[right]
            symbols[right] = b""
            following[left] = following[right]
            if following[left] < end:
                previous[following[left]] = left
            consider(previous[left], left)
            consider(left, following[left])
        return [symbol for symbol in symbols if symbol]
