r"""Cutting text into words before merging.

A pre-tokenizer is a list of cutters. Each cuts the pieces left by the one before it into its matches and what lies
between them, and a piece's end is the end of the text for the next cutter: with ``smollm`` the spaces before a digit
are one word, because the digit has already been cut off.

Patterns are written as ``\p{...}`` notation inside brackets (`_CLASSES`) and run on folded text (`unicode_classes`).
Those that name characters outside ASCII run on the code points themselves, with all white space written as ``\v``;
llama.cpp draws the same line.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from minillama.tokenizer import utf8
from minillama.tokenizer.unicode_classes import (
    HAN_LETTER,
    HAN_OTHER,
    LETTER,
    MARK,
    NUMBER,
    PUNCTUATION,
    SPACE,
    SYMBOL,
    class_table,
    fold,
)

LONG_TEXT = 1 << 15  # characters from which on compiled code is worth its loading
_OTHER_LETTERS = bytes([LETTER, HAN_LETTER])
_CLASSES = {
    rb"\p{L}": rb"A-Za-z" + _OTHER_LETTERS,
    rb"\p{NotLower}": rb"A-Z" + _OTHER_LETTERS,  # letters except a-z
    rb"\p{NotUpper}": rb"a-z" + _OTHER_LETTERS,  # letters except A-Z
    rb"\p{LNotHan}": rb"A-Za-z" + bytes([LETTER]),
    rb"\p{Han}": bytes([HAN_LETTER, HAN_OTHER]),
    rb"\p{M}": bytes([MARK]),
    rb"\p{N}": rb"0-9" + bytes([NUMBER]),
    rb"\p{P}": rb"!-#%-*,-/:;?@\[-\]_{}" + bytes([PUNCTUATION]),
    rb"\p{S}": rb"$+<=>\^`|~" + bytes([SYMBOL]),
}


class FoldedText:
    """Text as patterns see it.

    Attributes
    ----------
    folded
        One byte per character.
    starts
        Where each character begins in the bytes of the text, and at the end their number.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.folded, self.starts = fold(data)

    @functools.cached_property
    def characters(self) -> str:
        """One code point per character; white space outside ASCII is a vertical tab."""
        codes, _ = utf8.code_points(self._data)
        codes = np.minimum(codes, 0x10FFFF)
        codes[(class_table()[codes] == SPACE) & (codes >= 0x80)] = SPACE
        return codes.astype("<u4").tobytes().decode("utf-32-le", "surrogatepass")


Ends = Sequence[int] | npt.NDArray[np.int64]
# Cut pieces that follow each other without a gap, given by where they end, into smaller ones.
Cutter = Callable[[FoldedText, Ends], Ends]


def each_piece(cut: Callable[[FoldedText, int, int], Sequence[int]]) -> Cutter:
    """Cutter that takes one piece after the other: ``cut`` gives the ends of the parts of characters [begin, end)."""

    def cut_all(text: FoldedText, ends: Ends) -> Ends:
        refined: list[int] = []
        begin = 0
        for end in map(int, ends):  # which may be numpy's
            refined += cut(text, begin, end)
            begin = end
        return refined

    return cut_all


def pattern(source: str) -> Cutter:
    r"""Cutter that isolates the matches of a pattern."""
    if source.isascii():
        compiled = re.compile(_with_classes(source.encode()))
        return each_piece(lambda text, begin, end: _cut(compiled, text.folded, begin, end))
    over_characters = re.compile(source, re.ASCII)
    return each_piece(lambda text, begin, end: _cut(over_characters, text.characters, begin, end))


def _with_classes(source: bytes) -> bytes:
    for name, members in _CLASSES.items():
        source = source.replace(name, members)
    return source


def _cut(compiled: re.Pattern[str] | re.Pattern[bytes], text: str | bytes, begin: int, end: int) -> list[int]:
    ends = []
    for match in compiled.finditer(text, begin, end):  # type: ignore[arg-type]
        start, stop = match.span()
        if start > begin:
            ends.append(start)
        ends.append(stop)
        begin = stop
    if begin < end:
        ends.append(end)
    return ends


@dataclass(frozen=True)
class WordStyle:
    """What sets the words of GPT-2, Llama 3 and their kin apart; see `minillama.kernels.words.word_ends`."""

    contractions: int
    lead: bool
    max_digits: int = 0
    letters: bytes = rb"[\p{L}]"


def words(source: str, style: WordStyle) -> Cutter:
    """Cutter that isolates the matches of a pattern; of long texts in compiled code, by the pattern's style."""
    plain = pattern(source)
    classes = np.zeros(256, np.uint8)
    for value, members in ((1, style.letters), (2, rb"[\p{N}]"), (3, rb"[\s]")):
        compiled = re.compile(_with_classes(members))
        classes[[byte for byte in range(256) if compiled.match(bytes([byte]))]] = value

    def cut_all(text: FoldedText, ends: Ends) -> Ends:
        if len(text.folded) < LONG_TEXT:
            return plain(text, ends)
        from minillama.kernels.words import word_ends

        found = np.empty(len(text.folded), np.int64)
        pieces = np.asarray(ends, np.int64)
        folded = np.frombuffer(text.folded, np.uint8)
        n = word_ends(folded, pieces, classes, style.contractions, style.lead, style.max_digits, found, 0, len(pieces))
        return found[:n]

    return cut_all


def runs(members: str, count: int = 0) -> Cutter:
    r"""Cutter that isolates runs of characters, or of as many as ``count``; of long texts without a step for each.

    Parameters
    ----------
    members
        Pattern of one character.
    count
        Number of characters of a match; 0 for as many as there are.
    """
    plain = pattern(f"{members}{{{count}}}" if count else f"{members}+")
    member = re.compile(_with_classes(members.encode()))
    is_member = np.array([member.match(bytes([byte])) is not None for byte in range(256)])

    def cut_all(text: FoldedText, ends: Ends) -> Ends:
        if len(text.folded) < LONG_TEXT:
            return plain(text, ends)
        inside = is_member[np.frombuffer(text.folded, np.uint8)]
        is_cut = np.zeros(len(inside) + 1, np.bool_)
        is_cut[np.asarray(ends, np.int64)] = True
        change = is_cut.copy()
        change[1:-1] |= inside[1:] != inside[:-1]
        change[0] = True
        bounds = np.flatnonzero(change)
        starts, lengths = bounds[:-1], np.diff(bounds)
        starts, lengths = starts[inside[starts]], lengths[inside[starts]]
        n_matches = lengths // count if count else np.ones_like(lengths)
        starts, n_matches, size = starts[n_matches > 0], n_matches[n_matches > 0], count or lengths
        first = np.repeat(np.cumsum(n_matches) - n_matches, n_matches)
        is_cut[starts] = True
        is_cut[np.repeat(starts, n_matches) + (np.arange(len(first)) - first + 1) * size] = True
        return np.flatnonzero(is_cut[1:]) + 1

    return cut_all


@each_piece
def trailing_blanks(text: FoldedText, begin: int, end: int) -> list[int]:
    r"""Cutter that isolates white space at the end: the pattern ``\s+$``, which would take quadratic time."""
    blank = begin + len(text.folded[begin:end].rstrip(b" \t\n\v\f\r"))
    return [blank, end] if begin < blank < end else [end]


def digit_groups(digits: str, *, from_the_front: bool) -> Cutter:
    """Cutter of runs of digits into groups of three, counted from the run's end.

    Parameters
    ----------
    digits
        Pattern of one digit.
    from_the_front
        Whether what precedes a run stays with its first group, and the run's end is a cut; else a group begins where
        three, six, ... digits are left.
    """
    run = re.compile(_with_classes(b"(?:" + digits.encode() + b")+"))

    def cut(text: FoldedText, begin: int, end: int) -> list[int]:
        ends: list[int] = []
        for match in run.finditer(text.folded, begin, end):
            start, stop = match.span()
            first = start + (stop - start) % 3
            if from_the_front and first == start:
                first += 3
            ends += range(first, stop + from_the_front, 3)
        return [cut for cut in ends if cut > begin] + [end] * (not ends or ends[-1] < end)

    return each_piece(cut)


class PreTokenizer:
    """One way to cut text into words.

    Parameters
    ----------
    cutters
        Applied one after the other.
    """

    def __init__(self, *cutters: Cutter) -> None:
        self._cutters = cutters

    def split(self, data: bytes) -> list[bytes]:
        """Cut text (UTF-8, see `fold` for other bytes) into words; joined they are ``data``."""
        begin, found = 0, []
        for end in self.ends(data).tolist():
            found.append(data[begin:end])
            begin = end
        return found

    def ends(self, data: bytes) -> npt.NDArray[np.int64]:
        """Where each word ends, in bytes."""
        text = FoldedText(data)
        ends: Ends = [len(text.folded)]
        for cutter in self._cutters:
            ends = cutter(text, ends)
        return text.starts[np.asarray(ends, np.int64)]
