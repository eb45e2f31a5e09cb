"""Unigram: the cut with the best sum of scores, found from the front (``tokenizer.ggml.model`` t5)."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from minillama.errors import TokenizerError
from minillama.tokenizer import utf8
from minillama.tokenizer.charsmap import CharsMap
from minillama.tokenizer.text_model import ESCAPED_SPACE, LONG_TEXT, TextModel, unescape_spaces
from minillama.tokenizer.utf8 import Span

if TYPE_CHECKING:
    from minillama.tokenizer.unigram_table import UnigramTable

_UNKNOWN_PENALTY = np.float32(10)
_REPLACEMENT = "\ufffd".encode()
_LOWEST = -float(np.finfo(np.float64).max)


@dataclass(frozen=True)
class SpaceRules:
    """What becomes of spaces: ``tokenizer.ggml.add_space_prefix`` and ``remove_extra_whitespaces``."""

    add_prefix: bool
    merge_runs: bool


class Unigram(TextModel):
    """Text to ids by the sum of the tokens' scores.

    Sums are made from the front in double precision and the first of equal sums stays, as in llama.cpp: the cut of a
    word can depend on what precedes it, so words are not encoded by themselves, nor remembered; once there has been
    enough text to be worth its loading, compiled code does it all.

    Parameters
    ----------
    ids
        Id of every token that text may become, by its text.
    scores
        Score of every token; 0 for user-defined ones.
    lowest_score
        The lowest score of an ordinary token; an unknown character costs 10 more.
    user_defined
        Texts of user-defined tokens: what begins like one of them is not normalized.
    unknown
        Id of what no token covers.
    charsmap
        How characters are normalized.
    spaces
        What becomes of spaces.
    """

    def __init__(
        self,
        ids: Mapping[bytes, int],
        scores: npt.NDArray[np.float32],
        lowest_score: np.float32,
        user_defined: Sequence[bytes],
        unknown: int | None,
        charsmap: CharsMap | None,
        spaces: SpaceRules,
    ) -> None:
        self._ids = ids
        self._scores = scores
        self._tokens = {text: (token, float(scores[token])) for text, token in ids.items()}
        self._longest = _longest_by_first_byte(ids)
        self._unknown = unknown
        self._unknown_score = float(lowest_score - _UNKNOWN_PENALTY)
        self._user_defined = user_defined
        self._kept = {text[:length] for text in user_defined for length in range(1, len(text) + 1)}
        self._kept_first = {text[0] for text in user_defined if text}
        self._charsmap = charsmap
        self._spaces = spaces
        self._bytes_seen = 0

    @functools.cached_property
    def _table(self) -> UnigramTable:
        from minillama.tokenizer.unigram_table import UnigramTable

        charsmap = self._charsmap
        return UnigramTable(
            self._ids,
            self._scores,
            self._unknown,
            self._unknown_score,
            self._user_defined,
            (charsmap.nodes, charsmap.replacements) if charsmap else (np.empty(0, np.uint32), b""),
            self._spaces.add_prefix,
            self._spaces.merge_runs,
        )

    def encode(self, data: bytes, begins: bool) -> list[int]:
        """See `TextModel.encode`."""
        found = self._encode_compiled(data)
        return super().encode(data, begins) if found is None else found.tolist()

    def count(self, data: bytes, begins: bool) -> int:
        """See `TextModel.count`."""
        found = self._encode_compiled(data)
        return super().count(data, begins) if found is None else len(found)

    def _encode_compiled(self, data: bytes) -> npt.NDArray[np.int32] | None:
        """Ids of text, once there has been much of it; None if it cannot be cut, which the plain code then explains."""
        self._bytes_seen += len(data)
        return self._table.encode(data) if self._bytes_seen >= LONG_TEXT else None

    def normalize(self, data: bytes, begins: bool) -> bytes:
        """Return the text with characters replaced, spaces escaped and, where it asks for it, one in front."""
        return b"".join(part for part, _ in self._normalized(data))

    def sources(self, data: bytes, begins: bool) -> Sequence[Span]:
        """See `TextModel.sources`."""
        return [source for part, source in self._normalized(data) for _ in part]

    def _normalized(self, data: bytes) -> Iterator[tuple[bytes, Span]]:
        """Parts of the normalized text and where each comes from."""
        prefix_due = self._spaces.add_prefix
        in_word = False
        for replaced, source in self._replaced(data):
            for i, part in enumerate(replaced.split(b" ")):
                if i > 0:
                    in_word = False
                    if not self._spaces.merge_runs:
                        yield ESCAPED_SPACE, source
                if not part:
                    continue
                if not in_word and (prefix_due or self._spaces.merge_runs):
                    prefix_due = False
                    yield ESCAPED_SPACE, (source[0], source[0])
                in_word = True
                yield part, source

    def _replaced(self, data: bytes) -> Iterator[tuple[bytes, Span]]:
        start = 0
        while start < len(data):
            part, length = self._replace(data, start)
            yield part, (start, start + length)
            start += length

    def _replace(self, data: bytes, start: int) -> tuple[bytes, int]:
        """Return what stands for the characters at ``start``, and how many bytes they are."""
        if data[start] in self._kept_first:
            stop = start + 1
            while stop < len(data) and data[start : stop + 1] in self._kept:
                stop += 1
            return data[start:stop], stop - start
        found = self._charsmap.longest(data, start) if self._charsmap else None
        if found is not None:
            return found
        character = utf8.character_at(data, start)
        return (_REPLACEMENT, 1) if character is None else (character, len(character))

    def pieces(self, normalized: bytes) -> Iterator[tuple[int, int, int]]:
        """Pieces of the best cut; neighbouring unknown characters are one."""
        begins, tokens = self._best_cut(normalized)
        found: list[tuple[int, int, int]] = []
        end = len(normalized)
        while end > 0:
            start, token = begins[end], tokens[end]
            if found and token == found[-1][0] == self._unknown:
                found[-1] = token, start, found[-1][2]
            else:
                found.append((token, start, end))
            end = start
        return reversed(found)

    def _best_cut(self, text: bytes) -> tuple[list[int], list[int]]:
        """Where the last piece begins in the best cut of the text up to each byte, and its id."""
        size, lookup, longest = len(text), self._tokens, self._longest
        best = [_LOWEST] * (size + 1)
        begins, tokens = [0] * (size + 1), [-1] * (size + 1)
        best[0] = 0.0
        start = 0
        while start < size:
            single = min(size, start + utf8.LENGTHS[text[start]])
            covered = False
            so_far = best[start]
            for stop in range(start + 1, min(size, start + longest[text[start]]) + 1):
                found = lookup.get(text[start:stop])
                if found is None:
                    continue
                covered = covered or stop == single
                if so_far + found[1] > best[stop]:
                    best[stop], begins[stop], tokens[stop] = so_far + found[1], start, found[0]
            if not covered and so_far + self._unknown_score > best[single]:
                best[single], begins[single] = so_far + self._unknown_score, start
                tokens[single] = self._checked_unknown
            start = single
        return begins, tokens

    @functools.cached_property
    def _checked_unknown(self) -> int:
        if self._unknown is None:
            raise TokenizerError("a character is no token, and the vocabulary has no unknown token")
        return self._unknown

    def render(self, text: bytes) -> bytes:
        """Bytes that an ordinary token stands for."""
        return unescape_spaces(text)


def _longest_by_first_byte(texts: Mapping[bytes, int]) -> list[int]:
    longest = [0] * 256
    for text in filter(None, texts):
        longest[text[0]] = max(longest[text[0]], len(text))
    return longest
