"""The loop in which the threads of a team run a plan together: jitted, without the GIL, with no Python in between.

Every thread goes through the operations in order. It takes shares of the operation's items until none is left, then
waits until all items are *finished* (not until all threads have come: a thread that has no processor, or that wakes
late, holds nobody up), unless the next operation may run beside this one. While it waits it asks for what is read next,
weights or keys, as memory is the bottleneck of decoding. A run's number is in the upper half of each row's word
``NEXT``, the next item to take in the lower half; a thread that belongs to an earlier run finds another number there
and leaves.

After a run a worker stays for a moment, as the next token's run follows soon: it asks for what a run begins with, and
takes part in the next one without having slept. What it is to do is in the words of its job.
"""

from __future__ import annotations

import os
import time

from numba import types

from minillama.kernels.jit import jit
from minillama.runtime.atomics import add, call, exchange, give_way, load, pause, prefetch, replace, store
from minillama.runtime.plan import (
    ASKED,
    COARSE,
    ENTRY,
    FINE_GRAIN,
    FINISHED,
    FIRST,
    GRAIN,
    INDEX,
    LATER,
    MEMORY,
    MEMORY_BYTES,
    N_ITEMS,
    NEXT,
    PARAMETERS,
    ROW_BYTES,
    STEP,
    WAITED,
)

_ITEM_BITS = 32
_ITEM_MASK = (1 << _ITEM_BITS) - 1
# After so many looks a waiting thread lets others have the processor at every look: about 50 microseconds.
_LOOKS = 2000
_LINE, _ASKED_AT_ONCE = 64, 1024  # bytes
# So many looks for the next run before a worker sleeps: one or two milliseconds.
_LOOKS_FOR_MORE = 6000
# Bytes that are asked for before it comes; caches that hold less drop them again.
_MOST_ASKED_BEFORE = 4_000_000
# Words of a worker's job: the run, ASLEEP, END if the worker is to end, or CHANGING; how many it has been given; the
# run's plan and the worker's working memory; how many of those given it has left, whose plans it looks at no more.
RUN, GIVEN, ROWS, N_OPERATIONS, SCRATCH, SCRATCH_BYTES, LEFT = 0, 8, 16, 24, 32, 40, 48
JOB_BYTES = 64
ASLEEP, END, CHANGING = 0, -1, -2
# Where there is no such clock, times are zero.
_CLOCK: int | None = getattr(time, "CLOCK_MONOTONIC", None)
_clock_gettime = types.ExternalFunction("clock_gettime", types.int32(types.int32, types.int64))
HAS_CLOCK = _CLOCK is not None and os.name == "posix"


@jit(name="plan_start")
def start(rows: int, n_operations: int, run: int) -> None:
    """Make all items of a plan available to the threads of a run, which has a number from 1 to 2^31 - 1."""
    for i in range(n_operations):
        row = rows + i * ROW_BYTES
        first, index = load(row + MEMORY), load(row + INDEX)
        if index != 0:  # here and not by who asks: late threads may look when the plan's arrays are gone
            first += load(row + STEP) * load(index)
        store(row + FIRST, first)
        store(row + ASKED, 0)
        store(row + FINISHED, 0)
        store(row + NEXT, run << _ITEM_BITS)


@jit(name="plan_stop")
def stop(rows: int, n_operations: int) -> None:
    """Take what has not been begun away from all threads, and wait until what has been begun is finished."""
    for i in range(n_operations):
        row = rows + i * ROW_BYTES
        begun = min(exchange(row + NEXT, 0) & _ITEM_MASK, load(row + N_ITEMS))
        while load(row + FINISHED) < begun:
            give_way()


@jit(name="plan_take")
def _take(row: int, n_items: int, run: int) -> tuple[int, int]:
    """Take the next share: its first item and its end; ``n_items`` if there is none left, -1 if the run is over."""
    while True:
        word = load(row + NEXT)
        if word >> _ITEM_BITS != run:
            return -1, -1
        first = word & _ITEM_MASK
        if first >= n_items:
            return n_items, n_items
        grain = load(row + GRAIN) if first < load(row + COARSE) else load(row + FINE_GRAIN)
        end = min(first + grain, n_items)
        if replace(row + NEXT, word, word + end - first):
            return first, end


@jit(name="plan_ask_from")
def _ask_from(row: int, asked: int) -> bool:
    """Ask for some more of what an operation reads first; False if there is no more."""
    if asked >= load(row + MEMORY_BYTES):
        return False
    first = load(row + FIRST) + asked
    for line in range(first, first + _ASKED_AT_ONCE, _LINE):
        prefetch(line)
    return True


@jit(name="plan_ask")
def _ask(row: int) -> bool:
    """Ask for some more of what an operation is going to read; False if all has been asked for."""
    return _ask_from(row, add(row + ASKED, _ASKED_AT_ONCE))


@jit(name="plan_look_again")
def _look_again(looks: int) -> int:
    """One more than the looks so far, a moment later."""
    if looks < _LOOKS:
        pause()
    else:
        give_way()
    return looks + 1


@jit(name="plan_wait")
def _wait(row: int, n_rows: int, run: int) -> bool:
    """Wait until all items of an operation, and of those before it, are finished; False if the run is over."""
    looks, later = 0, load(row + LATER)
    for waited in range(row - (n_rows - 1) * ROW_BYTES, row + ROW_BYTES, ROW_BYTES):
        n_items = load(waited + N_ITEMS)
        while load(waited + FINISHED) < n_items:
            if load(waited + NEXT) >> _ITEM_BITS != run:
                return False
            if later != 0:
                if not _ask(later):
                    later = 0
                continue
            looks = _look_again(looks)
    return True


@jit(name="plan_execute")
def execute(rows: int, first: int, last: int, run: int, scratch: int, scratch_bytes: int, times: int) -> None:
    """Run operations ``first`` to ``last`` of a plan together with whoever else does.

    Parameters
    ----------
    rows
        Address of the plan's rows.
    run
        Number of the run, as given to :func:`start`.
    scratch, scratch_bytes
        This thread's working memory.
    times
        0, or address of two words per operation for the clock (seconds, nanoseconds) when it was finished.
    """
    for i in range(first, last):
        row = rows + i * ROW_BYTES
        entry, parameters = load(row + ENTRY), load(row + PARAMETERS)
        n_items = load(row + N_ITEMS)
        item, end = _take(row, n_items, run)
        while 0 <= item < n_items:
            call(entry, parameters, scratch, scratch_bytes, item, end)
            add(row + FINISHED, end - item)
            item, end = _take(row, n_items, run)
        if item < 0 or not _wait(row, load(row + WAITED), run):
            return
        if HAS_CLOCK and times != 0:
            _clock_gettime(_CLOCK, times + 16 * i)


@jit(name="plan_post")
def post(job: int, run: int, given: int, rows: int, n_operations: int, scratch: int, scratch_bytes: int) -> None:
    """Give a worker a run to take part in, or END."""
    exchange(job + RUN, CHANGING)  # and not a store, which those that follow could come before
    store(job + GIVEN, given)
    store(job + ROWS, rows)
    store(job + N_OPERATIONS, n_operations)
    store(job + SCRATCH, scratch)
    store(job + SCRATCH_BYTES, scratch_bytes)
    store(job + RUN, run)


@jit(name="plan_stay")
def _stay(job: int, rows: int, run: int) -> None:
    """Ask for what the plan begins with, as if it were run again, until there is another run or none for a while."""
    row, asked, asked_of_row, looks = load(rows + LATER), 0, 0, 0
    while load(job + RUN) == run and looks < _LOOKS_FOR_MORE:
        if row != 0 and asked < _MOST_ASKED_BEFORE:
            if _ask_from(row, asked_of_row):
                asked += _ASKED_AT_ONCE
                asked_of_row += _ASKED_AT_ONCE
            else:
                row, asked_of_row = load(row + LATER), 0
            continue
        looks = _look_again(looks)


@jit(name="plan_take_part")
def take_part(job: int, stays: bool) -> bool:
    """A worker's part in the run that it is given, and in others that follow soon; whether it is to sleep, not to end.

    By then the run may be over, and its working memory be another's: it finds nothing to do and does not touch it.
    """
    while True:
        run, given = load(job + RUN), load(job + GIVEN)
        rows, n_operations = load(job + ROWS), load(job + N_OPERATIONS)
        scratch, scratch_bytes = load(job + SCRATCH), load(job + SCRATCH_BYTES)
        if run == CHANGING or load(job + RUN) != run:  # these words may be of two runs
            pause()
            continue
        if run <= ASLEEP:
            return run == ASLEEP
        execute(rows, 0, n_operations, run, scratch, scratch_bytes, 0)
        if stays:
            _stay(job, rows, run)
        store(job + LEFT, given)
        if replace(job + RUN, run, ASLEEP):
            return True
