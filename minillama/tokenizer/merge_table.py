"""Tokens and merges as arrays, for merging the words of long texts in compiled code.

`WordModel.word_pieces` says in plain Python what comes out; words that the compiled code declines go there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from minillama.errors import TokenizerError
from minillama.kernels import merging
from minillama.tokenizer import utf8

_BYTES = bytes([1] * 256)
_SEEN_WORDS = 1 << 15
Letters = npt.NDArray[np.int16]  # byte of every letter; _SPACE or _FOREIGN for others
_SPACE, _FOREIGN = -1, -2


@dataclass(frozen=True)
class Strings:
    """Byte strings with a value each; ``splits`` is 0 for a token, the left part's length for a merge, -1 for none."""

    keys: npt.NDArray[np.uint8]
    lengths: npt.NDArray[np.int64]
    splits: npt.NDArray[np.int32]
    values: npt.NDArray[np.int32]


def token_strings(texts: Sequence[bytes], alphabet: npt.NDArray[np.int16] | None) -> Strings:
    """Tokens by text; their values are their ids.

    Parameters
    ----------
    texts
        Text of every token.
    alphabet
        Byte of every letter below U+0200, `_FOREIGN` for those that have none; or None if texts are spelled in UTF-8.
    """
    letters, starts = _letters(texts, alphabet)
    lengths = np.diff(starts)
    usable = _count(letters < 0, starts) == 0 if alphabet is not None else np.ones(len(texts), bool)
    splits = np.where(usable, 0, -1).astype(np.int32)
    return Strings(letters.astype(np.uint8), lengths, splits, np.arange(len(texts), dtype=np.int32))


def merge_strings(lines: Sequence[bytes], alphabet: npt.NDArray[np.int16] | None) -> Strings:
    """Merges by what they make and where the right part begins; their values are their ranks."""
    letters, starts = _letters(lines, alphabet)
    spaces = letters == _SPACE
    n_spaces = _count(spaces, starts)
    places = np.flatnonzero(spaces)
    lines_of = np.searchsorted(starts, places, "right") - 1
    splits = np.zeros(len(lines), np.int32)
    splits[lines_of] = places - starts[lines_of]
    foreign = _count(letters == _FOREIGN, starts)
    lengths = np.diff(starts) - n_spaces
    usable = (n_spaces == 1) & (foreign == 0) & (splits > 0) & (splits < lengths)
    splits[~usable] = -1
    return Strings(letters[~spaces].astype(np.uint8), lengths, splits, np.arange(len(lines), dtype=np.int32))


def _letters(
    texts: Sequence[bytes], alphabet: npt.NDArray[np.int16] | None
) -> tuple[npt.NDArray[np.int16], npt.NDArray[np.int64]]:
    """Letters of all texts, one after the other, and where each text begins (and the last one ends)."""
    joined = b"".join(texts)
    starts = np.concatenate([[0], np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)))])
    if alphabet is None:
        letters = np.frombuffer(joined, np.uint8).astype(np.int16)
        letters[letters == 0x20] = _SPACE
        return letters, starts
    codes, begins = utf8.code_points(joined)
    letters = alphabet[np.minimum(codes, len(alphabet) - 1)]
    return letters, np.searchsorted(begins, starts)


def _count(marks: npt.NDArray[np.bool_], starts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    sums = np.concatenate([[0], np.cumsum(marks)])
    counts: npt.NDArray[np.int64] = sums[starts[1:]] - sums[starts[:-1]]
    return counts


def _arrays(strings: Strings) -> tuple[npt.NDArray[np.generic], ...]:
    return strings.keys, strings.lengths, strings.splits, strings.values


class MergeTable:
    """Hash table of tokens and merges.

    Parameters
    ----------
    tokens
        See `token_strings`.
    merges
        See `merge_strings`; None if a pair is merged by the token it makes.
    ranks
        Rank of every token, in that case.
    byte_ids
        Token of every byte for what is no token; -1 for none.
    whole
        Which words are taken whole if they are tokens: `merging.NO_WORDS`, `ALL_WORDS`, `LINE_BREAKS`.
    begins_with_bytes
        Whether merging begins with bytes; else with characters.
    """

    def __init__(
        self,
        tokens: Strings,
        merges: Strings | None,
        ranks: npt.NDArray[np.int32],
        byte_ids: npt.NDArray[np.int32],
        *,
        whole: int = merging.NO_WORDS,
        begins_with_bytes: bool = False,
    ) -> None:
        parts = [tokens] if merges is None else [tokens, merges]
        keys, lengths, splits, values = (np.concatenate(arrays) for arrays in zip(*map(_arrays, parts), strict=True))
        starts = np.concatenate([[0], np.cumsum(lengths)])
        places = np.concatenate([[1], 1 + np.cumsum(2 + -(-lengths // 4))])
        self._longest = int(lengths.max())
        if self._longest >= 1 << 15:
            raise TokenizerError(f"a token of {self._longest} bytes is too long")
        self._records = np.zeros(4 * int(places[-1]), np.uint8)
        self._slots = np.zeros(1 << (2 * len(lengths)).bit_length(), np.uint64)
        keys = np.frombuffer(keys.tobytes(), np.uint8)  # read-only, as text is: kernels are compiled for one of the two
        merging.fill_table(keys, starts, splits, values, places, self._records, self._slots, 0, len(lengths))
        self._ranks = ranks
        self._byte_ids = byte_ids
        self._whole = whole
        self._character_lengths = np.frombuffer(_BYTES if begins_with_bytes else utf8.LENGTHS, np.uint8)

    def encode(
        self, data: bytes, ends: npt.NDArray[np.int64], plain: Callable[[bytes], Sequence[int]]
    ) -> npt.NDArray[np.int32]:
        """Ids of words.

        Parameters
        ----------
        data, ends
            The words, one after the other, and where each ends.
        plain
            Ids of a word that is declined here.
        """
        ids = np.full(len(data), -1, np.int32)
        declined = np.zeros(len(ends), np.uint8)
        longest_word = int(np.diff(ends, prepend=0).max(initial=0))
        merging.merge_words(
            np.frombuffer(data, np.uint8), ends, self._slots, self._records, self._ranks, self._character_lengths,
            self._byte_ids, self._longest, self._whole, ids, declined, np.zeros(_SEEN_WORDS, np.int32),
            np.empty(merging.scratch_bytes(longest_word), np.uint8), 0, len(ends),
        )  # fmt: skip
        for word in np.flatnonzero(declined).tolist():
            start = int(ends[word - 1]) if word else 0
            found = plain(data[start : int(ends[word])])
            ids[start : start + len(found)] = found
        return ids[ids >= 0]
