"""Unigram tokenizers: normalizing text, and its cut with the best sum of scores.

`minillama.tokenizer.unigram` states the same in plain Python.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from minillama.kernels.jit import jit
from minillama.kernels.trie import U64, Trie, child
from minillama.kernels.types import F32, F64, I32, I64, U8

U32: TypeAlias = npt.NDArray[np.uint32]
CharsMap: TypeAlias = tuple[U32, U8]  # nodes of the double array, and the replacements

ESCAPED_SPACE = (0xE2, 0x96, 0x81)
REPLACEMENT = b"\xef\xbf\xbd"  # what the replacements end in: U+FFFD
_LOWEST = -np.finfo(np.float64).max
_NONE, _BROKEN = np.int64(0), np.int64(-1)


def scratch_bytes(longest_text: int) -> int:
    """Bytes of scratch that `best_cuts` needs: a float64 and two int32 per byte of the longest text."""
    return 16 * (longest_text + 1)


@jit(name="longest_replaced")
def _longest_replaced(nodes: U32, data: U8, begin: int, end: int) -> Any:
    """Length of the longest string in the table that begins at ``begin``, 0 if none, and where its replacement is.

    A negative length says that the table leads beyond its end.
    """
    length, found = np.int64(0), np.int64(0)
    if len(nodes) == 0:
        return length, found
    unit = np.int64(nodes[0])
    base = unit >> 10 << ((unit & 0x200) >> 6)
    for i in range(begin, end):
        place = base ^ np.int64(data[i])
        if place >= len(nodes):
            return _BROKEN, _NONE
        unit = np.int64(nodes[place])
        if data[i] == 0 or unit & 0x800000FF != np.int64(data[i]):
            break
        base = place ^ (unit >> 10 << ((unit & 0x200) >> 6))
        if unit >> 8 & 1:
            if base >= len(nodes):
                return _BROKEN, _NONE
            length, found = np.int64(i + 1 - begin), np.int64(nodes[base]) & np.int64(0x7FFFFFFF)
    return length, found


@jit(name="length_of_character")
def _length_of_character(data: U8, begin: int, end: int) -> int:
    """Bytes of the complete character at ``begin``; 0 if there is none (`minillama.tokenizer.utf8`)."""
    first = data[begin]
    if first < 0x80:
        return 1
    if first < 0xC0 or first >= 0xF8:
        return 0
    length = 2 if first < 0xE0 else (3 if first < 0xF0 else 4)
    if begin + length > end:
        return 0
    for i in range(begin + 1, begin + length):
        if data[i] & 0xC0 != 0x80:
            return 0
    return length


@jit(name="write_escaped_space")
def _write_space(out: U8, n: int) -> int:
    for byte in ESCAPED_SPACE:
        if n < len(out):
            out[n] = byte
        n += 1
    return n


@jit(name="write_normalized")
def _write(part: U8, begin: int, end: int, merge_runs: bool, out: U8, state: I64) -> None:
    """Write a part of the text, with its spaces escaped. State: bytes written, within a word, a space is due."""
    n, in_word, prefix_due = state[0], state[1], state[2]
    for i in range(begin, end):
        if part[i] == 0x20:
            in_word = 0
            if not merge_runs:
                n = _write_space(out, n)
            continue
        if in_word == 0 and (prefix_due != 0 or merge_runs):
            prefix_due = 0
            n = _write_space(out, n)
        in_word = 1
        if n < len(out):
            out[n] = part[i]
        n += 1
    state[0], state[1], state[2] = n, in_word, prefix_due


@jit(name="write_replaced")
def _write_replaced(data: U8, begin: int, end: int, table: CharsMap, merge_runs: bool, out: U8, state: I64) -> Any:
    """Write what stands for the characters at ``begin``, and return how many bytes they are; negative on failure."""
    nodes, replacements = table
    last = len(replacements) - len(REPLACEMENT)
    length, first = _longest_replaced(nodes, data, begin, end)
    if length < 0:
        return _BROKEN
    if length > 0:
        stop = first
        while stop < last and replacements[stop] != 0:
            stop += 1
        if stop >= last:
            return _BROKEN
        _write(replacements, first, stop, merge_runs, out, state)
        return length
    length = np.int64(_length_of_character(data, begin, end))
    if length == 0:
        _write(replacements, last, np.int64(len(replacements)), merge_runs, out, state)
        return np.int64(1)
    _write(data, begin, begin + length, merge_runs, out, state)
    return length


@jit(name="normalize_unigram_texts")
def normalize_texts(
    data: U8, ends: I64, kept: U64, nodes: U32, replacements: U8, add_prefix: bool, merge_runs: bool, out: U8,
    state: I64, start: int, stop: int,
) -> int:  # fmt: skip
    """Normalize texts, write them one after the other, and return how many bytes they are.

    Parameters
    ----------
    data, ends
        The texts, one after the other, and where each ends.
    kept
        Edges of a trie: what is in it is not replaced.
    nodes, replacements
        The normalization table (`minillama.tokenizer.charsmap`), no nodes for none, and `REPLACEMENT` at the end.
    add_prefix, merge_runs
        Whether a space is put in front; whether spaces become one before each word.
    out
        Room for the result; what goes beyond is counted only.
    state
        Scratch, int64 [3].

    Returns
    -------
    int
        -1 if the table leads beyond its end.
    """
    table = (nodes, replacements)
    state[0] = 0
    for item in range(start, stop):
        i, end = (ends[item - 1] if item > 0 else _NONE), ends[item]
        state[1], state[2] = 0, 1 if add_prefix else 0
        while i < end:
            after = i
            node = child(kept, _NONE, np.int64(data[i]))
            while node > 0:
                after += 1
                node = child(kept, node, np.int64(data[after])) if after < end else _NONE
            if after > i:
                _write(data, i, after, merge_runs, out, state)
                i = after
            else:
                length = _write_replaced(data, i, end, table, merge_runs, out, state)
                if length < 0:
                    return -1
                i += length
    return state[0]


@jit(name="best_cut_of_text")
def _best_cut(
    text: U8, first: int, size: int, trie: Trie, scores: F32, lengths: U8, unknown: int, unknown_score: float,
    best: F64, begins: I32, tokens: I32,
) -> bool:  # fmt: skip
    """Find where the last piece begins in the best cut of the text up to each byte, and its id."""
    edges, node_values = trie
    for i in range(size + 1):
        best[i], begins[i], tokens[i] = _LOWEST, 0, -1
    best[0] = 0.0
    begin = np.int64(0)
    while begin < size:
        single: Any = min(int(size), int(begin + np.int64(lengths[text[first + begin]])))
        covered, end, node = False, begin, np.int64(0)
        while end < size:
            node = child(edges, node, np.int64(text[first + end]))
            if node == 0:
                break
            end += 1
            token = node_values[node]
            if token >= 0:
                covered = covered or end == single
                total = best[begin] + np.float64(scores[token])
                if total > best[end]:
                    best[end], begins[end], tokens[end] = total, begin, token
        if not covered and best[begin] + unknown_score > best[single]:
            if unknown < 0:
                return False
            best[single], begins[single], tokens[single] = best[begin] + unknown_score, begin, unknown
        begin = single
    return True


@jit(name="best_cuts")
def best_cuts(
    data: U8, ends: I64, edges: U64, node_values: I32, scores: F32, lengths: U8, unknown: int, unknown_score: float,
    ids: I32, scratch: U8, start: int, stop: int,
) -> int:  # fmt: skip
    """Cut each text so that the sum of its pieces' scores is greatest, as llama.cpp's Unigram session.

    Sums are made in double precision from the front of the text, and of equal ones the first stays.

    Parameters
    ----------
    data, ends
        The texts, one after the other, and where each ends.
    edges, node_values
        Trie of the tokens; the values are their ids.
    scores
        Score of every token.
    lengths
        Bytes of a character by its first byte, uint8 [256].
    unknown, unknown_score
        Id (-1 for none) and score of a character that no token covers; neighbours with this id become one.
    ids
        int32 [len(data)], -1 to begin with: a text's ids are written where its pieces begin.
    scratch
        `scratch_bytes` of the longest text.

    Returns
    -------
    int
        Texts done: fewer than asked for if one needs the id that there is none of.
    """
    for item in range(start, stop):
        first = ends[item - 1] if item > 0 else _NONE
        size = ends[item] - first
        room = size + 1
        best = scratch[: 8 * room].view(np.float64)
        begins = scratch[8 * room : 12 * room].view(np.int32)
        tokens = scratch[12 * room : 16 * room].view(np.int32)
        trie = (edges, node_values)
        if not _best_cut(
            data, first, size, trie, scores, lengths, unknown, unknown_score, best, begins, tokens
        ):  # fmt: skip
            return item - start
        end, written = size, _BROKEN
        while end > 0:
            begin, token = np.int64(begins[end]), tokens[end]
            if token == unknown and written >= 0 and ids[written] == unknown:
                ids[written] = -1
            written = first + begin
            ids[written] = token
            end = begin
    return stop - start
