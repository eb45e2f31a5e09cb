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

_OFFSET, _PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)  # FNV-1a
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_LOW = np.uint64(0xFFFFFFFF)

# What is taken whole, without merging, if it is a token.
NO_WORDS, ALL_WORDS, LINE_BREAKS = 0, 1, 2


def scratch_bytes(longest_word: int) -> int:
    """Bytes of scratch that `merge_words` needs: three int32 and three int64 per byte of the longest word."""
    return (3 * 4 + 3 * 8) * (longest_word + 1) + 16


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
        split = splits[entry]
        if split >= 0:
            begin, end, place = starts[entry], starts[entry + 1], places[entry]
            heads[place] = np.int32(end - begin) | np.int32(split << 16)
            heads[place + 1] = values[entry]
            records[4 * place + 8 : 4 * place + 8 + end - begin] = keys[begin:end]
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
def _push(heap: I64, size: int, item: int) -> int:
    i = size
    while i > 0 and heap[(i - 1) >> 1] > item:
        heap[i] = heap[(i - 1) >> 1]
        i = (i - 1) >> 1
    heap[i] = item
    return size + 1


@jit(name="pop_pair")
def _pop(heap: I64, size: int) -> Any:
    """Take the smallest item off; the heap then has one less."""
    smallest, item = heap[0], heap[size - 1]
    size -= 1
    i = 0
    while 2 * i + 1 < size:
        child = 2 * i + 1
        if child + 1 < size and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= item:
            break
        heap[i] = heap[child]
        i = child
    heap[i] = item
    return smallest


@jit(name="consider_pair")
def _consider(
    table: Table, ranks: I32, longest: int, word: U8, following: I32, pair_rank: I32, heap: I64, waiting: int, left: Any
) -> int:
    """Find the rank of the pair whose left symbol begins at ``left`` (-1: never merged), and let it wait its turn."""
    slots, records = table
    middle: Any = following[left]
    rank: Any = -1
    if middle < len(word):
        end: Any = following[middle]
        if end - left <= longest:
            by_token = len(ranks) > 0
            rank = _look_up(slots, records, word, left, end, 0 if by_token else middle - left)
            if by_token and rank >= 0:
                rank = np.int64(ranks[rank])
    pair_rank[left] = rank
    return waiting if rank < 0 else _push(heap, waiting, (rank << 32) | np.int64(left))


@jit(name="merge_one_word")
def _merge(table: Table, ranks: I32, lengths: U8, longest: int, word: U8, following: I32, scratch: U8) -> None:
    """Merge the symbols of one word, which are known by where they begin: ``following`` tells where each one ends."""
    size = len(word)
    room = size + 1
    previous, pair_rank = scratch[: 4 * room].view(np.int32), scratch[4 * room : 8 * room].view(np.int32)
    heap = scratch[8 * room : 32 * room].view(np.int64)
    i: Any = 0
    before: Any = -1
    while i < size:
        following[i] = min(i + np.int64(lengths[word[i]]), size)
        previous[i] = before
        before, i = i, np.int64(following[i])
    waiting, i = 0, 0
    while i < size:
        waiting = _consider(table, ranks, longest, word, following, pair_rank, heap, waiting, i)
        i = np.int64(following[i])
    while waiting > 0:
        item = _pop(heap, waiting)
        waiting -= 1
        left = item & 0xFFFFFFFF
        if pair_rank[left] != item >> 32:
            continue  # one of its parts has changed
        right: Any = following[left]
        pair_rank[right] = -1
        following[left] = following[right]
        if following[left] < size:
            previous[following[left]] = left
        if previous[left] >= 0:
            before = np.int64(previous[left])
            waiting = _consider(table, ranks, longest, word, following, pair_rank, heap, waiting, before)
        waiting = _consider(table, ranks, longest, word, following, pair_rank, heap, waiting, left)


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
        token = _look_up(slots, records, data, i, after, 0) if after - i <= longest else -1
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
    for word in range(start, stop):
        begin, end = (ends[word - 1] if word > 0 else 0), ends[word]
        place = np.int64(_hash(data, begin, end, 0) & np.uint64(len(seen) - 1))
        earlier = seen[place] - 1
        if earlier >= 0 and _is_same(data, ends, earlier, begin, end):
            first = ends[earlier - 1] if earlier > 0 else 0
            ids[begin:end] = ids[first : ends[earlier]]
            declined[word] = declined[earlier]
            continue
        seen[place] = word + 1
        if whole == ALL_WORDS or (whole == LINE_BREAKS and end > begin and data[begin] == 10):
            token = _look_up(slots, records, data, begin, end, 0)
            if token >= 0:
                ids[begin] = token
                continue
        room = 4 * (end - begin + 1)
        following = scratch[:room].view(np.int32)
        _merge(table, ranks, lengths, longest, data[begin:end], following, scratch[room + room % 8 :])
        declined[word] = _write_ids(table, byte_ids, longest, data, begin, end, following, ids)
