"""Operations, and plans: operations laid out in memory for the team's jitted loop."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from minillama.kernels.jit import Kernel
from minillama.kernels.types import I64, U8
from minillama.runtime.entry import entry_point, kind_of, words_of

ALIGNMENT = 64
ROW_BYTES = 128
# Words of a row; what changes while a plan runs has a cache line of its own. A share has GRAIN items up to the item
# COARSE, and FINE_GRAIN items from there on. LATER is the next row that begins with memory worth asking for, or 0: that
# is MEMORY_BYTES from MEMORY on, moved on by STEP times the number at INDEX unless that is 0: from FIRST on, as a run
# starts. ASKED bytes of it have been asked for. After a row, WAITED rows are waited for, it and those before it: 0 if
# the next one may run beside it.
ENTRY, PARAMETERS, N_ITEMS, GRAIN, COARSE, FINE_GRAIN, LATER, WAITED = 0, 8, 16, 24, 32, 40, 48, 56
NEXT, FINISHED, ASKED, MEMORY, MEMORY_BYTES, INDEX, STEP, FIRST = 64, 72, 80, 88, 96, 104, 112, 120

# A share of an operation should be worth a few microseconds, in multiply-adds, and each thread should find a few, the
# last of them smaller, so that threads finish together.
_WORTH_A_SHARE = 30_000
_SHARES_PER_THREAD = 4
_LAST_SHARES = 4  # out of one
# Of the memory that is read next; a second-level cache has four times as much or more.
_MOST_ASKED = 256 * 1024
# Between two stops of the leader in Python, where Ctrl-C is noticed, in multiply-adds.
_SEGMENT_WORK = 1_000_000_000


@dataclass(frozen=True)
class Ahead:
    """Memory that an operation begins with, and reads on from there.

    Attributes
    ----------
    array
        Weights, or keys and the like.
    index
        The first of these numbers is the item of the array that is read first; None: the first one.
    """

    array: npt.NDArray[Any]
    index: I64 | None = None

    def words(self) -> tuple[int, int, int, int]:
        """MEMORY, MEMORY_BYTES, INDEX and STEP of a row."""
        index = 0 if self.index is None else self.index.ctypes.data
        return self.array.ctypes.data, min(self.array.nbytes, _MOST_ASKED), index, self.array.strides[0]


@dataclass(frozen=True)
class Operation:
    """One kernel over a range of items.

    Attributes
    ----------
    name
        What it computes, for profiles.
    kernel
        Called as ``kernel(*arguments, [scratch,] start, stop)`` for ranges that cover every item once.
    arguments
        C-contiguous arrays, ints and float32.
    n_items
        Rows, tokens or heads, at least 1.
    scratch_bytes
        Working memory of each thread, if the kernel takes any.
    work_per_item
        About how many multiply-adds an item takes.
    granularity
        Ranges are cut at multiples of this where possible.
    n_bytes
        Bytes of weights that are read.
    ahead
        What to ask for while the operation is waited for.
    group
        So many items that follow each other take less time together: they are a share while there are enough for all
        threads.
    beside
        It may run while the operation before it does, and those beside which that one may run.
    """

    name: str
    kernel: Kernel
    arguments: tuple[Any, ...]
    n_items: int
    scratch_bytes: int | None = None
    work_per_item: int = _WORTH_A_SHARE
    granularity: int = 1
    n_bytes: int = 0
    ahead: Ahead | None = None
    group: int = 1
    beside: bool = False

    def call(self) -> Call:
        """The operation without its arrays, whose memory the caller keeps."""
        kinds = tuple(kind_of(argument) for argument in self.arguments)
        return Call(
            name=self.name,
            entry=entry_point(self.kernel, kinds, takes_scratch=self.scratch_bytes is not None),
            words=tuple(word for argument in self.arguments for word in words_of(argument)),
            n_items=self.n_items,
            scratch_bytes=self.scratch_bytes or 0,
            work_per_item=self.work_per_item,
            granularity=self.granularity,
            n_bytes=self.n_bytes,
            ahead=(0, 0, 0, 0) if self.ahead is None else self.ahead.words(),
            group=self.group,
            beside=self.beside,
        )


@dataclass(frozen=True)
class Call:
    """An operation as jitted code runs it: an address to call and the words it reads its arguments from."""

    name: str
    entry: int
    words: tuple[int, ...]
    n_items: int
    scratch_bytes: int
    work_per_item: int
    granularity: int
    n_bytes: int
    ahead: tuple[int, int, int, int]
    group: int
    beside: bool

    @property
    def work(self) -> int:
        """About how many multiply-adds it takes."""
        return self.n_items * self.work_per_item

    def shares(self, n_threads: int) -> tuple[int, int, int]:
        """Items that a thread takes at a time, up to which item, and how many at a time from there on."""
        fair = -(-self.n_items // (_SHARES_PER_THREAD * n_threads))
        worth = -(-_WORTH_A_SHARE // max(1, self.work_per_item))
        if self.group > 1:
            share = self._rounded(max(fair, worth), self.group)
            return share, self.n_items // (n_threads * share) * n_threads * share, worth
        share = self._rounded(max(fair, worth), self.granularity)
        last = self._rounded(max(share // _LAST_SHARES, worth), self.granularity)
        return share, max(0, self.n_items - n_threads * share), last

    @staticmethod
    def _rounded(items: int, unit: int) -> int:
        return -(-items // unit) * unit


class Plan:
    """Calls as rows of words that jitted code runs without Python.

    Parameters
    ----------
    calls
        In the order in which they run; each sees the results of those before it.
    n_threads
        Threads it is laid out for. Any number may run it, with the same result.

    Attributes
    ----------
    n_operations
        Number of rows.
    address
        Of the first row.
    """

    def __init__(self, calls: Sequence[Call], n_threads: int) -> None:
        self.calls, self.n_operations = tuple(calls), len(calls)
        self.scratch_bytes = max((call.scratch_bytes for call in calls), default=0)
        self.segments = _segments(calls)
        self._parameters = np.array([word for call in calls for word in call.words] or [0], np.int64)
        self._rows = aligned(ROW_BYTES * max(1, len(calls))).view(np.int64).reshape(-1, ROW_BYTES // 8)
        self.address: int = self._rows.ctypes.data
        parameters = self._parameters.ctypes.data
        for row, call in zip(self._rows, calls, strict=False):
            row[ENTRY // 8], row[PARAMETERS // 8] = call.entry, parameters
            row[N_ITEMS // 8] = call.n_items
            row[GRAIN // 8], row[COARSE // 8], row[FINE_GRAIN // 8] = call.shares(n_threads)
            row[MEMORY // 8], row[MEMORY_BYTES // 8], row[INDEX // 8], row[STEP // 8] = call.ahead
            parameters += 8 * len(call.words)
        waited = 0
        for i, ends in enumerate(_ends_of_groups(calls)):
            waited += 1
            self._rows[i, WAITED // 8] = waited if ends else 0
            waited = 0 if ends else waited
        later = 0
        for i in reversed(range(len(calls))):
            self._rows[i, LATER // 8] = later
            later = self.address + ROW_BYTES * i if calls[i].ahead[0] else later


def _ends_of_groups(calls: Sequence[Call]) -> list[bool]:
    """Whether each call is the last of those that run beside each other."""
    return [not call.beside for call in calls[1:]] + [True] * bool(calls)


def _segments(calls: Sequence[Call]) -> list[tuple[int, int]]:
    """Ranges of calls of about ``_SEGMENT_WORK`` each, whole groups."""
    bounds, work = [0], 0
    for i, (call, ends) in enumerate(zip(calls, _ends_of_groups(calls), strict=True), 1):
        work += call.work
        if ends and (work >= _SEGMENT_WORK or i == len(calls)):
            bounds.append(i)
            work = 0
    return list(itertools.pairwise(bounds))


def aligned(size: int) -> U8:
    """Bytes that start at a multiple of 64, in number a multiple of 64 too."""
    padded = -(-size // ALIGNMENT) * ALIGNMENT
    raw = np.zeros(padded + ALIGNMENT, np.uint8)
    first = -raw.ctypes.data % ALIGNMENT
    return raw[first : first + padded]
