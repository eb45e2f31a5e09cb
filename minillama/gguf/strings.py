"""Arrays of strings, found in the file without a Python step per string and decoded when asked for."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import TypeAlias, overload

import numpy as np
import numpy.typing as npt

from minillama.gguf.cursor import Cursor

Bytes: TypeAlias = npt.NDArray[np.uint8]
Positions: TypeAlias = npt.NDArray[np.int64]

_LENGTHS = {order: struct.Struct(f"{order}Q") for order in ("<", ">")}
_LENGTH_BYTES = 8
_MIN_WINDOW, _MAX_WINDOW = 1 << 12, 1 << 18  # bytes looked at in one go
_MIN_CHAIN = 64  # strings; a window's look takes as long as so many steps
_STEPS = 256  # strings taken one by one where the chain is broken
_NONE: Positions = np.zeros(0, np.int64)


class StringArray(Sequence[str]):
    """A read-only array of strings, each decoded when it is asked for.

    Strings are UTF-8; bytes that are not become surrogate escapes, so ``s.encode("utf-8", "surrogateescape")`` is
    always ``raw(i)``. A slice is a `StringArray` too, over the same bytes.

    Parameters
    ----------
    data
        Bytes of the file.
    starts
        Where each string's length field begins.
    ends
        Where each string ends.
    """

    __slots__ = ("_data", "_ends", "_starts")

    def __init__(self, data: memoryview, starts: Positions, ends: Positions) -> None:
        self._data = data
        self._starts = starts
        self._ends = ends

    def __len__(self) -> int:
        return len(self._starts)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> StringArray: ...
    def __getitem__(self, index: int | slice) -> str | StringArray:
        if isinstance(index, slice):
            return StringArray(self._data, self._starts[index], self._ends[index])
        return self.raw(index).decode("utf-8", "surrogateescape")

    def __iter__(self) -> Iterator[str]:
        return (raw.decode("utf-8", "surrogateescape") for raw in self.raw_list())

    def raw(self, index: int) -> bytes:
        """Return the bytes of one string, as the file has them."""
        return bytes(self._data[int(self._starts[index]) + _LENGTH_BYTES : int(self._ends[index])])

    def raw_list(self) -> list[bytes]:
        """Return the bytes of all strings."""
        if not len(self):
            return []
        # One copy of the span, then slices of it: half the time of slicing the mapped file.
        first = int(self._starts.min())
        span = bytes(self._data[first : int(self._ends.max())])
        begins = (self._starts + (_LENGTH_BYTES - first)).tolist()
        ends = (self._ends - first).tolist()
        return [span[begin:end] for begin, end in zip(begins, ends, strict=True)]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, StringArray):
            return self.raw_list() == other.raw_list()
        if isinstance(other, list | tuple):
            return len(self) == len(other) and all(mine == theirs for mine, theirs in zip(self, other, strict=True))
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shown = ", ".join(repr(text) for text in self[:3])
        return f"<StringArray of {len(self)}: {shown}{', ...' if len(self) > 3 else ''}>"


def read_string_array(cursor: Cursor) -> StringArray:
    """Read an array of strings whose count comes next.

    Lengths below 256 are a byte followed by seven zero bytes. All places of a window that look so are found at once;
    as long as each one's string ends where the next one begins, they are the strings. A long string, an empty one or
    zero bytes inside text break the chain: then some strings are taken one by one. Windows grow only while the chain
    holds, so the work stays proportional to the bytes whatever they are. In a big-endian file all are taken one by one.
    """
    left = cursor.count(_LENGTH_BYTES, "strings")
    data = np.frombuffer(cursor.data, np.uint8)
    window = _MIN_WINDOW
    pieces: list[Positions] = []
    while left:
        seen = data[cursor.pos : cursor.pos + min(window, _LENGTH_BYTES + 32 * left)]
        starts, end = _chain(seen, left) if cursor.order == "<" else (_NONE, 0)
        if len(starts) >= _MIN_CHAIN:
            pieces.append(starts + cursor.pos)
            cursor.take(end, "the strings of the array")
            broken = end + _LENGTH_BYTES <= len(seen)  # what follows was in sight and did not link
            window = _MIN_WINDOW if broken else min(2 * window, _MAX_WINDOW)
        else:
            starts = _step(cursor, min(left, _STEPS))
            pieces.append(starts)
            window = _MIN_WINDOW
        left -= len(starts)
    bounds = np.concatenate([*pieces, np.array([cursor.pos], np.int64)])
    return StringArray(cursor.data, bounds[:-1], bounds[1:])


def _chain(seen: Bytes, limit: int) -> tuple[Positions, int]:
    """Return the starts of the strings that follow each other from byte 0 on, at most ``limit``, and where they end."""
    zero = seen[1:] == 0
    pairs = zero[:-1] & zero[1:]
    fours = pairs[:-2] & pairs[2:]
    candidates = np.flatnonzero(fours[:-3] & fours[3:])  # seven zeros follow: bytes 0..3 and 3..6 of them
    if not len(candidates) or candidates[0] != 0:
        return candidates[:0], 0
    ends = candidates + seen[candidates] + _LENGTH_BYTES
    linked = ends[:-1] == candidates[1:]
    n = min(limit, len(candidates) if linked.all() else int(linked.argmin()) + 1)
    return candidates[:n], int(ends[n - 1])


def _step(cursor: Cursor, n: int) -> Positions:
    """Take strings one by one and return their starts."""
    starts: list[int] = []
    data, pos, last = cursor.data, cursor.pos, len(cursor.data) - _LENGTH_BYTES
    length = _LENGTHS[cursor.order]
    for _ in range(n):
        if pos > last:
            break
        starts.append(pos)
        pos += _LENGTH_BYTES + length.unpack_from(data, pos)[0]
    if len(starts) < n or pos > len(data):
        # One string too many, or the last one too long. These two lines raise.
        cursor.pos = pos if pos <= len(data) else starts[-1]
        cursor.take(cursor.u64("length of a string"), "a string of the array")
    cursor.pos = pos
    return np.array(starts, np.int64)
