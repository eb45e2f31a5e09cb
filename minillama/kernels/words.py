"""Cutting folded text into the words of GPT-2, Llama 3 and their kin, a character at a time.

`minillama.tokenizer.patterns` states the same as regular expressions; a test holds the two together.
"""

from __future__ import annotations

import numpy as np

from minillama.kernels.jit import jit
from minillama.kernels.types import I64, U8

# Typed: a plain constant is a type of its own, for which numba would compile anew.
OTHER, LETTER_CLASS, NUMBER_CLASS, BLANK_CLASS = np.uint8(0), np.uint8(1), np.uint8(2), np.uint8(3)
_LINES, _ANY_BLANKS = np.bool_(True), np.bool_(False)
_APOSTROPHE, _SPACE, _NEWLINE, _RETURN = 0x27, 0x20, 0x0A, 0x0D

# Contractions such as 's: not cut off, in lower case only, in any case.
NO_CONTRACTIONS, LOWER_CASE, ANY_CASE = 0, 1, 2


@jit(name="contraction_end")
def _contraction_end(text: U8, i: int, end: int, kind: int) -> int:
    """End of the contraction that begins with the apostrophe at ``i``; ``i`` if there is none."""
    fold_case = 0x20 if kind == ANY_CASE else 0
    if i + 1 < end:
        first = text[i + 1] | fold_case
        if first in (0x73, 0x74, 0x6D, 0x64):  # s t m d
            return i + 2
        if i + 2 < end:
            second = text[i + 2] | fold_case
            if (first in (0x72, 0x76) and second == 0x65) or (first == 0x6C and second == 0x6C):  # re ve ll
                return i + 3
    return i


@jit(name="run_end")
def _run_end(text: U8, classes: U8, i: int, end: int, kind: int) -> int:
    while i < end and classes[text[i]] == kind:
        i += 1
    return i


@jit(name="blanks_end")
def _blanks_end(text: U8, classes: U8, i: int, end: int, lines: bool) -> int:
    """End of the piece of white space at ``i``: up to the last line break, or all but the blank before a word."""
    stop = _run_end(text, classes, i, end, BLANK_CLASS)
    if lines:
        for j in range(stop - 1, i - 1, -1):
            if text[j] in (_NEWLINE, _RETURN):
                return j + 1
    return stop - 1 if stop < end and stop - i > 1 else stop


@jit(name="word_end_of_gpt2")
def _gpt2_end(text: U8, classes: U8, i: int, end: int) -> int:
    """End of a word that a space may precede: letters, digits or symbols."""
    kind = classes[text[i]]
    after = classes[text[i + 1]] if i + 1 < end else BLANK_CLASS
    if text[i] == _SPACE and after != BLANK_CLASS:
        return _run_end(text, classes, i + 1, end, after)
    if kind != BLANK_CLASS:
        return _run_end(text, classes, i, end, kind)
    return _blanks_end(text, classes, i, end, _ANY_BLANKS)


@jit(name="word_end_of_llama3")
def _llama3_end(text: U8, classes: U8, i: int, end: int, max_digits: int) -> int:
    """End of a word: letters behind any character but a digit or a line break, digits, symbols with line breaks."""
    kind = classes[text[i]]
    after = classes[text[i + 1]] if i + 1 < end else BLANK_CLASS
    breaks = text[i] in (_NEWLINE, _RETURN)
    if kind == LETTER_CLASS or (after == LETTER_CLASS and kind != NUMBER_CLASS and not breaks):
        return _run_end(text, classes, i + 1, end, LETTER_CLASS)
    if kind == NUMBER_CLASS:
        limit = min(end, i + max_digits) if max_digits else end
        return _run_end(text, classes, i, limit, NUMBER_CLASS)
    if kind == OTHER or (text[i] == _SPACE and after == OTHER):
        stop = _run_end(text, classes, i + 1, end, OTHER)
        while stop < end and text[stop] in (_NEWLINE, _RETURN):
            stop += 1
        return stop
    return _blanks_end(text, classes, i, end, _LINES)


@jit(name="word_ends")
def word_ends(
    text: U8, pieces: I64, classes: U8, contractions: int, lead: bool, max_digits: int, ends: I64, start: int, stop: int
) -> int:
    """Cut pieces [start, stop) into words, and return how many there are.

    Parameters
    ----------
    text
        Folded text: one byte per character.
    pieces
        Where each piece ends; what lies behind its end is no part of the text for it.
    classes
        Class of every folded byte, uint8 [256].
    contractions
        Which contractions are words.
    lead
        Whether any character may precede letters, and line breaks end a word (Llama 3); else only a space (GPT-2).
    max_digits
        Longest run of digits; 0 for any. With ``lead`` only.
    ends
        Where each word ends, int64: room for as many as there are characters.
    """
    n = 0
    for piece in range(start, stop):
        i, end = (pieces[piece - 1] if piece > 0 else 0), pieces[piece]
        while i < end:
            behind = i
            if contractions and text[i] == _APOSTROPHE:
                behind = _contraction_end(text, i, end, contractions)
            if behind > i:
                i = behind
            elif lead:
                i = _llama3_end(text, classes, i, end, max_digits)
            else:
                i = _gpt2_end(text, classes, i, end)
            ends[n] = i
            n += 1
    return n
