"""Which code points are letters, numbers, marks and so on, and text folded to these classes.

Folding writes one byte per character: ASCII stays as it is, any other character becomes a byte that stands for its
class. Pre-tokenizer patterns then run on bytes, with sets of a few ranges instead of hundreds.
"""

from __future__ import annotations

import functools
import unicodedata

import numpy as np
import numpy.typing as npt

from minillama.tokenizer import unicode_data, utf8

# Folded bytes. Chinese characters are apart because one pre-tokenizer looks for them; HAN_OTHER are the code points in
# their blocks that are no letters.
LETTER, NUMBER, PUNCTUATION, OTHER, MARK, SYMBOL, HAN_LETTER, HAN_OTHER = range(0x80, 0x88)
SPACE = 0x0B  # vertical tab: matched by \s, and no pattern names it

CONTROL = 0x88  # only in `category_table`
_CLASSES = {
    NUMBER: unicode_data.NUMBERS,
    LETTER: unicode_data.LETTERS,
    MARK: unicode_data.MARKS,
    PUNCTUATION: unicode_data.PUNCTUATION,
    SYMBOL: unicode_data.SYMBOLS,
    CONTROL: unicode_data.CONTROLS,
    SPACE: unicode_data.WHITESPACE,  # last: it takes precedence over a category
}
_HAN = "3400-4dbf 4e00-9fff f900-faff 20000-2a6df 2a700-2ebef 2f800-2fa1f"


def code_points_in(ranges: str) -> list[range]:
    """Code points of hexadecimal ranges ``first-last`` or ``only``."""
    bounds = (part.partition("-") for part in ranges.split())
    return [range(int(first, 16), int(last or first, 16) + 1) for first, _, last in bounds]


@functools.cache
def category_table() -> npt.NDArray[np.uint8]:
    """Class of every code point up to U+10FFFF, ASCII included: one of the constants above."""
    table = np.full(0x110000, OTHER, np.uint8)
    for value, ranges in _CLASSES.items():
        for codes in code_points_in(ranges):
            table[codes.start : codes.stop] = value
    table.flags.writeable = False
    return table


@functools.cache
def class_table() -> npt.NDArray[np.uint8]:
    """Folded byte of every code point up to U+10FFFF."""
    table = category_table().copy()
    table[table == CONTROL] = OTHER
    for codes in code_points_in(_HAN):
        block = table[codes.start : codes.stop]
        block[:] = np.where(block == LETTER, HAN_LETTER, HAN_OTHER)
    table[:0x80] = np.arange(0x80)
    table.flags.writeable = False
    return table


@functools.cache
def lowercase() -> dict[int, int]:
    """Lower-case letter of every letter that has one."""
    mapping = {}
    for part in unicode_data.LOWERCASE.split():
        codes, sign, difference = part.partition("+") if "+" in part else part.rpartition("-")
        span, _, step = codes.partition("/")
        for code in code_points_in(span)[0][:: int(step or 1)]:
            mapping[code] = code + int(sign + difference, 16)
    return mapping


def base_letter(code: int) -> int:
    """First code point of the canonical decomposition: é becomes e.

    Decompositions never change once a character exists; characters newer than the tables here have none.
    """
    if 0xD800 <= code < 0xE000 or category_table()[code] == OTHER:
        return code
    return ord(unicodedata.normalize("NFD", chr(code))[0])


def fold(data: bytes) -> tuple[bytes, npt.NDArray[np.int64]]:
    """Fold UTF-8 text to one byte per character.

    Parameters
    ----------
    data
        The text. A byte that is not part of a character counts as U+FFFD.

    Returns
    -------
    folded
        One byte per character.
    starts
        Where each character begins in ``data``, and at the end the length of ``data``.
    """
    if data.isascii():
        return data, np.arange(len(data) + 1)
    codes, starts = utf8.code_points(data)
    folded = class_table()[np.minimum(codes, 0x10FFFF)].tobytes()  # U+10FFFF is OTHER, as is all beyond it
    return folded, np.append(starts, len(data))
