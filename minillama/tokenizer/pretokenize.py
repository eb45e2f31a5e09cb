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
from collections.abc import Callable, Iterator, Sequence

import numpy as np

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


# Where the pieces of characters [begin, end) end, given that they follow each other without a gap.
Cutter = Callable[[FoldedText, int, int], Sequence[int]]


def pattern(source: str) -> Cutter:
    r"""Cutter that isolates the matches of a pattern."""
    if source.isascii():
        compiled = re.compile(_with_classes(source.encode()))
        return lambda text, begin, end: _cut(compiled, text.folded, begin, end)
    over_characters = re.compile(source, re.ASCII)
    return lambda text, begin, end: _cut(over_characters, text.characters, begin, end)


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

    return cut


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
        text = FoldedText(data)
        starts = text.starts
        return [data[starts[begin] : starts[end]] for begin, end in self._spans(text)]

    def _spans(self, text: FoldedText) -> Iterator[tuple[int, int]]:
        ends: Sequence[int] = [len(text.folded)]
        for cutter in self._cutters:
            begin = 0
            refined: list[int] = []
            for end in ends:
                refined += cutter(text, begin, end)
                begin = end
            ends = refined
        begin = 0
        for end in ends:
            yield begin, end
            begin = end
