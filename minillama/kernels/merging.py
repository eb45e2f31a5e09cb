"""Merging of byte strings, pair by pair: many words in one call.

What `minillama.tokenizer.merging` states in plain Python, for long texts. Strings are found in a hash table of byte
strings, each with a split: 0 for a token, else the length of the left part of a merge.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from minillama.kernels.jit import jit
from minillama.kernels.types import I32, I64, U8

U64: TypeAlias = npt.NDArray[np.uint64]
Table: TypeAlias = tuple[U64, U8]  # slots and records of `fill_table`
# Pairs that wait to be merged: their keys, the next of each run, the heap of runs, the last of each run by rank, and
# how many pairs and runs there are.
Waiting: TypeAlias = tuple[I64, I32, I32, I32, I32]

_OFFSET, _PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)  # FNV-1a
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_LOW = np.uint64(0xFFFFFFFF)
_TOKEN = np.int64(0)  # split of a token; a plain 0 is a type of its own, for which numba would compile anew

# What is taken whole, without merging, if it is a token.
NO_WORDS, ALL_WORDS, LINE_BREAKS = 0, 1, 2


_TAILS = 1024  # ranks whose runs are known by their last pair; a power of two


def scratch_bytes(longest_word: int) -> int:
    """Bytes of scratch that `merge_words` needs.

    Of every byte of the longest word there are at most three pairs, a key and two links each, and three links more.
    """
    return (3 * 16 + 3 * 4) * (longest_word + 1) + 4 * _TAILS + 24


@jit(name="hash_of_bytes")
def _hash(data: U8, begin: int, end: int, split: int) -> np.uint64:
    value = _OFFSET
    for i in range(begin, end):
        value = (value ^ np.uint64(data[i])) * _PRIME
    value = (value ^ np.uint64(split)) * _SPREAD
    return value ^ (value >> np.uint64(32))


@jit(name="find_bytes")
def _find(slots: U64, records: U8, hashed: np.uint64, data: U8, begin: int, end: int, split: int) -> Any:
    """Slot that holds a string, or the empty slot where it belongs."""
    mask = np.uint64(len(slots) - 1)
    place = hashed & mask
    head = np.int32(end - begin) | np.int32(split << 16)
    heads = records.view(np.int32)
    while True:
        slot = slots[np.int64(place)]
        if slot == np.uint64(0):
            return np.int64(place)
        if slot >> np.uint64(32) == hashed >> np.uint64(32):
            record = np.int64(slot & _LOW)
            if heads[record] == head:
                i, first = 0, 4 * record + 8 - begin
                while i < end - begin and records[first + begin + i] == data[begin + i]:
                    i += 1
                if i == end - begin:
                    return np.int64(place)
        place = (place + np.uint64(1)) & mask


@jit(name="fill_table_of_bytes")
def fill_table(
    keys: U8, starts: I64, splits: I32, values: I32, places: I64, records: U8, slots: U64, start: int, stop: int
) -> None:
    """Put strings [start, stop) into the table; of equal ones the first stays.

    Parameters
    ----------
    keys, starts
        Bytes of all strings, and where each begins (and the last one ends).
    splits, values
        Split and value of each string; a negative split for one to leave out.
    places
        Where each string's record begins, in units of four bytes; none at 0.
    records
        Of each string: its length and split (16 bits each), its value, its bytes.
    slots
        The table, zero where empty: upper half of the hash, and the record's place. A power of two long.
    """
    heads = records.view(np.int32)
    for entry in range(start, stop):
        split = np.int64(splits[entry])
        if split >= 0:
            begin, end, place = starts[entry], starts[entry + 1], places[entry]
            heads[place] = np.int32(end - begin) | np.int32(split << 16)
            heads[place + 1] = values[entry]
            for i in range(end - begin):
                records[4 * place + 8 + i] = keys[begin + i]
            hashed = _hash(keys, begin, end, split)
            slot = _find(slots, records, hashed, keys, begin, end, split)
            if slots[slot] == np.uint64(0):
                slots[slot] = (hashed >> np.uint64(32) << np.uint64(32)) | np.uint64(place)


@jit(name="look_up_bytes")
def _look_up(slots: U64, records: U8, data: U8, begin: int, end: int, split: int) -> Any:
    """Value of a string, or -1."""
    slot = slots[_find(slots, records, _hash(data, begin, end, split), data, begin, end, split)]
    return -1 if slot == np.uint64(0) else np.int64(records.view(np.int32)[np.int64(slot & _LOW) + 1])


@jit(name="push_pair")
def _push(waiting: Waiting, rank: int, left: int) -> Any:
    """Let a pair wait, at the end of the run of its rank if it stands behind it, else in a run of its own."""
    keys, after, heap, tails, counts = waiting
    node = np.int64(counts[0])
    key = (rank << 32) | left
    keys[node], after[node] = key, -1
    counts[0] = node + 1
    slot = rank & (_TAILS - 1)
    tail = np.int64(tails[slot])
    tails[slot] = node
    # A tail of an earlier word lies beyond the nodes of this one, or its node's rank belongs to another slot.
    if tail < node and keys[tail] >> 32 == rank and keys[tail] < key:
        after[tail] = node
        return node
    i = np.int64(counts[1])
    counts[1] = i + 1
    while i > 0 and keys[heap[(i - 1) >> 1]] > key:
        heap[i] = heap[(i - 1) >> 1]
        i = (i - 1) >> 1
    heap[i] = node
    return node


@jit(name="pop_pair")
def _pop(waiting: Waiting) -> Any:
    """Take the pair whose turn it is off: the first of its run, whose next pair takes its place."""
    keys, after, heap, _tails, counts = waiting
    first = np.int64(heap[0])
    node, size = np.int64(after[first]), np.int64(counts[1])
    keys[first] = -1
    if node < 0:
        size -= 1
        counts[1] = size
        node = np.int64(heap[size])
    key = keys[node]
    i = 0
    while 2 * i + 1 < size:
        child = 2 * i + 1
        if child + 1 < size and keys[heap[child + 1]] < keys[heap[child]]:
            child += 1
        if keys[heap[child]] >= key:
            break
        heap[i] = heap[child]
        i = child
    heap[i] = node
    return first


@jit(name="consider_pair")
def _consider(
    table: Table, ranks: I32, longest: int, data: U8, begin: int, size: int, following: I32, waits_as: I32,
    waiting: Waiting, left: int,
) -> None:  # fmt: skip
    """Find the rank of the pair whose left symbol begins at ``left``, and let it wait its turn if it has one."""
    slots, records = table
    waits_as[left] = -1
    middle = np.int64(following[left])
    if middle < size:
        end = np.int64(following[middle])
        if end - left <= longest:
            by_token = len(ranks) > 0
            split = _TOKEN if by_token else middle - left
            rank = _look_up(slots, records, data, begin + left, begin + end, split)
            if by_token and rank >= 0:
                rank = np.int64(ranks[rank])
            if rank >= 0:
                waits_as[left] = _push(waiting, rank, left)


@jit(name="merge_one_word")
def _merge(
    table: Table, ranks: I32, lengths: U8, longest: int, data: U8, begin: int, size: int, following: I32, scratch: U8
) -> None:
    """Merge the symbols of one word, which are known by where they begin: ``following`` tells where each one ends.

    Pairs wait in runs of one rank, from left to right, and the runs in a heap: there are few in what repeats itself,
    so that a long word takes little more than linear time.
    """
    room = size + 1
    keys = scratch[: 24 * room].view(np.int64)
    after, heap = scratch[24 * room : 36 * room].view(np.int32), scratch[36 * room : 48 * room].view(np.int32)
    previous, waits_as = scratch[48 * room : 52 * room].view(np.int32), scratch[52 * room : 56 * room].view(np.int32)
    tails, counts = scratch[-4 * _TAILS - 8 : -8].view(np.int32), scratch[-8:].view(np.int32)
    waiting = (keys, after, heap, tails, counts)
    counts[:] = 0
    i, before = np.int64(0), np.int64(-1)
    while i < size:
        following[i] = min(int(i + np.int64(lengths[data[begin + i]])), size)
        previous[i] = before
        before, i = i, np.int64(following[i])
    i = np.int64(0)
    while i < size:
        _consider(table, ranks, longest, data, begin, size, following, waits_as, waiting, i)
        i = np.int64(following[i])
    while counts[1] > 0:
        left = keys[heap[0]] & 0xFFFFFFFF
        if _pop(waiting) != waits_as[left]:
            continue  # one of its parts has changed
        right = np.int64(following[left])
        waits_as[right] = -1
        following[left] = following[right]
        if following[left] < size:
            previous[following[left]] = left
        before = np.int64(previous[left])
        if before >= 0:
            _consider(table, ranks, longest, data, begin, size, following, waits_as, waiting, before)
        _consider(table, ranks, longest, data, begin, size, following, waits_as, waiting, left)


@jit(name="is_same_word")
def _is_same(data: U8, ends: I64, word: int, begin: int, end: int) -> bool:
    first = ends[word - 1] if word > 0 else 0
    if ends[word] - first != end - begin:
        return False
    i = 0
    while i < end - begin and data[first + i] == data[begin + i]:
        i += 1
    return i == end - begin


@jit(name="write_ids_of_word")
def _write_ids(
    table: Table, byte_ids: I32, longest: int, data: U8, begin: int, end: int, following: I32, ids: I32
) -> bool:
    """Write the ids of merged symbols; if there is one without, write none and return True."""
    slots, records = table
    i: Any = begin
    while i < end:
        after = begin + np.int64(following[i - begin])
        token = _look_up(slots, records, data, i, after, _TOKEN) if after - i <= longest else -1
        if token >= 0:
            ids[i] = token
        else:
            for j in range(i, after):
                ids[j] = byte_ids[data[j]]
                if ids[j] < 0:
                    ids[begin:end] = -1
                    return True
        i = after
    return False


@jit(name="merge_words")
def merge_words(
    data: U8, ends: I64, slots: U64, records: U8, ranks: I32, lengths: U8, byte_ids: I32, longest: int, whole: int,
    ids: I32, declined: U8, seen: I32, scratch: U8, start: int, stop: int,
) -> None:  # fmt: skip
    """Merge each word: lowest rank first, then leftmost, as llama.cpp's BPE and SPM sessions.

    Parameters
    ----------
    data, ends
        The words, one after the other, and where each ends.
    slots, records
        The table (`fill_table`). A token's value is its id, a merge's its rank.
    ranks
        Rank of every token, if a pair is merged by the token it makes; empty if it is merged by a merge.
    lengths
        Bytes of a character by its first byte, uint8 [256]; all 1 to begin with bytes.
    byte_ids
        Token of every byte for what is no token, int32 [256]; -1 for none.
    longest
        Length of the longest string in the table.
    whole
        Which words are taken whole if they are tokens.
    ids
        int32 [len(data)], -1 to begin with: a word's ids are written where its pieces begin.
    declined
        uint8 [words]: set to 1 for a word with something that is no token and has no bytes; its ids stay -1.
    seen
        int32, a power of two long: words of this call by hash, plus one; 0 to begin with.
    scratch
        `scratch_bytes` of the longest word.
    """
    table = (slots, records)
    scratch[len(scratch) - 4 * _TAILS - 8 : len(scratch) - 8] = 0
    for word in range(start, stop):
        begin, end = (ends[word - 1] if word > 0 else 0), ends[word]
        place = np.int64(_hash(data, begin, end, _TOKEN) & np.uint64(len(seen) - 1))
        earlier = seen[place] - 1
        if earlier >= 0 and _is_same(data, ends, earlier, begin, end):
            first = ends[earlier - 1] if earlier > 0 else 0
            for i in range(end - begin):
                ids[begin + i] = ids[first + i]
            declined[word] = declined[earlier]
            continue
        seen[place] = word + 1
        if whole == ALL_WORDS or (whole == LINE_BREAKS and end > begin and data[begin] == 10):
            token = _look_up(slots, records, data, begin, end, _TOKEN)
            if token >= 0:
                ids[begin] = token
                continue
        size = end - begin
        room = 4 * (size + 1)
        following = scratch[:room].view(np.int32)
        _merge(table, ranks, lengths, longest, data, begin, size, following, scratch[room + room % 8 :])
        declined[word] = _write_ids(table, byte_ids, longest, data, begin, end, following, ids)
