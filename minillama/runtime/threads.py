"""A team of threads that runs plans together."""

from __future__ import annotations

import itertools
import os
import threading
import weakref
from typing import Any

import numba
import numpy as np

from minillama.errors import InvalidInputError
from minillama.kernels.jit import Kernel
from minillama.kernels.types import I64
from minillama.runtime import execute
from minillama.runtime.plan import Operation, Plan, aligned
from minillama.runtime.processors import usable_processors

# Waking a sleeping thread takes about 50 microseconds; below so many multiply-adds the leader works alone.
WORTH_WAKING = 500_000
# Their numbers come again after so many runs.
_N_RUNS = (1 << 31) - 1


class _Scratch:
    """Working memory of a thread."""

    def __init__(self, size: int) -> None:
        self.array = aligned(size)
        self.address, self.size = self.array.ctypes.data, len(self.array)


class _Worker:
    """A thread that is woken for a run, takes part in it and in those that follow soon, and sleeps again.

    Parameters
    ----------
    stays
        Whether it looks for another run before it sleeps: not if there are fewer processors than threads.
    """

    def __init__(self, *, stays: bool) -> None:
        self._asleep = threading.Lock()
        self._asleep.acquire()
        self._stays = stays
        self._words = aligned(execute.JOB_BYTES).view(np.int64)
        self._job: int = self._words.ctypes.data
        self._given = 0
        # What it may look at: the plans of runs that it was given, by their count, and has not left.
        self._plans: dict[int, tuple[Plan, _Scratch]] = {}
        threading.Thread(target=self._live, name="minillama", daemon=True).start()

    def give(self, plan: Plan, run: int, scratch: _Scratch) -> None:
        """Have it take part in a run of a plan, with some working memory."""
        self._forget()
        self._given += 1
        self._plans[self._given] = plan, scratch
        self._post(run, self._given, plan.address, plan.n_operations, scratch.address, scratch.size)

    def end(self) -> None:
        """Have the thread end."""
        self._post(execute.END, 0, 0, 0, 0, 0)

    def _post(self, *job: int) -> None:
        execute.post(self._job, *job)
        if self._asleep.locked():  # else it has not yet heard the last call; if it is awake it sleeps lightly once
            self._asleep.release()

    def _live(self) -> None:
        self._asleep.acquire()
        while execute.take_part(self._job, self._stays):
            # Nothing of the model may be kept alive by a sleeping thread.
            self._forget()
            self._asleep.acquire()

    def _forget(self) -> None:
        """Let go of the plans it has left. Both threads do; a run that is given meanwhile is a later one."""
        left = self._words[execute.LEFT // 8]
        for given in [given for given in list(self._plans) if given <= left]:
            self._plans.pop(given, None)


def _end(workers: list[_Worker]) -> None:
    for worker in workers:
        worker.end()


class ThreadTeam:
    """Runs plans, and kernels over ranges of items, with several threads.

    An item's result never depends on which thread computes it or on where a range begins, so the number of threads
    changes no bits. The calling thread leads and works too; the others sleep between runs, unless the next one follows
    within a millisecond. One run happens at a time: a second Python thread that uses the same team waits. A forked
    child gets threads of its own.

    Parameters
    ----------
    n_threads
        Threads to use, at least 1; the default is :func:`usable_processors`. More than there are processors are
        allowed and gain nothing.
    """

    def __init__(self, n_threads: int | None = None) -> None:
        if n_threads is None:
            n_threads = usable_processors()
        if isinstance(n_threads, bool) or not isinstance(n_threads, int) or n_threads < 1:
            raise InvalidInputError(f"threads is {n_threads!r}, a whole number of at least 1 is wanted")
        self.n_threads = n_threads
        self._scratch = [_Scratch(0) for _ in range(n_threads)]
        self._runs = itertools.count()
        self._new_process()

    def _new_process(self) -> None:
        """Neither threads nor the state of locks survive a fork."""
        self._process = os.getpid()
        self._lock = threading.RLock()
        self._workers: list[_Worker] = []
        weakref.finalize(self, _end, self._workers).atexit = False

    @property
    def lock(self) -> threading.RLock:
        """Held during a run; hold it longer to keep what a plan reads and writes to yourself."""
        if self._process != os.getpid():
            self._new_process()
        return self._lock

    def run(
        self,
        kernel: Kernel,
        n_items: int,
        *arguments: Any,
        scratch_bytes: int | None = None,
        work_per_item: int = WORTH_WAKING,
    ) -> None:
        """Run one kernel over ``n_items`` items; parameters are those of :class:`Operation`."""
        if n_items:
            self.run_operation(Operation(kernel.__name__, kernel, arguments, n_items, scratch_bytes, work_per_item))

    def run_operation(self, operation: Operation) -> None:
        """Run one operation now."""
        if not isinstance(operation.kernel, numba.core.dispatcher.Dispatcher):  # plain Python, to be stepped through
            with self.lock:
                self._reserve(operation.scratch_bytes or 0)
                scratch = () if operation.scratch_bytes is None else (self._scratch[0].array,)
                operation.kernel(*operation.arguments, *scratch, 0, operation.n_items)
            return
        call = operation.call()
        alone = call.work < WORTH_WAKING
        self.run_plan(Plan([call], 1 if alone else self.n_threads), alone=alone)

    def run_plan(self, plan: Plan, *, alone: bool = False, times: I64 | None = None) -> None:
        """Run a plan to its end.

        Parameters
        ----------
        plan
            What to run.
        alone
            Wake no other threads.
        times
            int64 [n_operations, 2] for the monotonic clock (seconds, nanoseconds) after each operation. Of those beside
            each other only the last is waited for: the time of another is when there was no more of it to take.

        Raises
        ------
        KeyboardInterrupt
            Ctrl-C came. No thread works on the plan any more; what its arrays hold is undefined.
        """
        with self.lock:
            self._reserve(plan.scratch_bytes)
            run = 1 + next(self._runs) % _N_RUNS
            execute.start(plan.address, plan.n_operations, run)
            try:
                if not alone:
                    self._wake(plan, run)
                scratch, clock = self._scratch[0], 0 if times is None else times.ctypes.data
                for start, stop in plan.segments:
                    execute.execute(plan.address, start, stop, run, scratch.address, scratch.size, clock)
            except BaseException:
                execute.stop(plan.address, plan.n_operations)
                raise

    def _wake(self, plan: Plan, run: int) -> None:
        while len(self._workers) < self.n_threads - 1:
            self._workers.append(_Worker(stays=self.n_threads <= usable_processors()))
        for worker, scratch in zip(self._workers, self._scratch[1:], strict=True):
            worker.give(plan, run, scratch)

    def _reserve(self, size: int) -> None:
        if self._scratch[0].size < size:
            self._scratch = [_Scratch(size) for _ in range(self.n_threads)]
