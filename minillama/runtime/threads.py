"""A team of threads that shares the items of one kernel call, and how many threads this process may use."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from minillama.errors import InvalidInputError
from minillama.kernels.jit import Kernel
from minillama.kernels.types import U8

_CGROUP = Path("/sys/fs/cgroup")
_ALIGNMENT = 64
# Handing a part to another thread costs about 100 microseconds; below so many multiply-adds a part is not worth it.
WORTH_A_THREAD = 500_000


def usable_processors(cgroup: Path = _CGROUP) -> int:
    """Processors this process may really use: the affinity mask, cut to the container's CPU quota if there is one.

    Parameters
    ----------
    cgroup
        Root of the control-group file system (version 2's ``cpu.max``, or version 1's two files).
    """
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _cpu_quota(cgroup)
    return affinity if quota is None else max(1, min(affinity, int(quota)))


def _cpu_quota(cgroup: Path) -> float | None:
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota = (cgroup / "cpu" / "cpu.cfs_quota_us").read_text().strip()
            period = (cgroup / "cpu" / "cpu.cfs_period_us").read_text().strip()
        except OSError:
            return None
    try:
        parts, whole = float(quota), float(period)
    except ValueError:  # "max": no quota
        return None
    return parts / whole if parts > 0 and whole > 0 else None


class ThreadTeam:
    """Runs kernels over ranges of items, each thread on its own contiguous part.

    An item's result never depends on which thread computes it or on where a part begins, so the number of threads
    changes no bits. One call runs at a time: a second Python thread that uses the same team waits for it.

    Parameters
    ----------
    n_threads
        Threads to use, at least 1; the default is :func:`usable_processors`.
    """

    def __init__(self, n_threads: int | None = None) -> None:
        if n_threads is None:
            n_threads = usable_processors()
        if isinstance(n_threads, bool) or not isinstance(n_threads, int) or n_threads < 1:
            raise InvalidInputError(f"threads is {n_threads!r}, a whole number of at least 1 is wanted")
        self.n_threads = n_threads
        self._lock = threading.Lock()
        self._scratch: list[U8] = [aligned(0) for _ in range(n_threads)]
        self._pool: ThreadPoolExecutor | None = None
        self._process = os.getpid()

    def run(
        self,
        kernel: Kernel,
        n_items: int,
        *arguments: Any,
        scratch_bytes: int | None = None,
        work_per_item: int = WORTH_A_THREAD,
    ) -> None:
        """Call ``kernel(*arguments, [scratch,] start, stop)`` so that every item from 0 to ``n_items`` is covered once.

        Parameters
        ----------
        kernel
            A compiled kernel that releases the GIL.
        n_items
            Items to share out: rows, tokens or heads.
        arguments
            What every part gets.
        scratch_bytes
            Size of the working memory each thread hands to the kernel, if it takes any.
        work_per_item
            About how many multiply-adds an item takes: little work is not shared out.
        """
        n_parts = min(self.n_threads, n_items, max(1, n_items * work_per_item // WORTH_A_THREAD))
        bounds = [n_items * i // n_parts for i in range(n_parts + 1)] if n_parts else [0]
        with self._lock:
            if scratch_bytes is not None:
                self._reserve(scratch_bytes)

            def part(index: int) -> None:
                scratch = () if scratch_bytes is None else (self._scratch[index],)
                kernel(*arguments, *scratch, bounds[index], bounds[index + 1])

            # Without a first call by one thread, all would compile the kernel at once.
            if n_parts == 1 or (n_parts and not getattr(kernel, "signatures", True)):
                for index in range(n_parts):
                    part(index)
            elif n_parts:
                waiting = [self._threads().submit(part, index) for index in range(1, n_parts)]
                try:
                    part(0)
                finally:
                    for future in waiting:
                        future.result()

    def _threads(self) -> ThreadPoolExecutor:
        if self._pool is None or self._process != os.getpid():  # threads do not survive a fork
            self._pool = ThreadPoolExecutor(self.n_threads - 1, thread_name_prefix="minillama")
            self._process = os.getpid()
        return self._pool

    def _reserve(self, size: int) -> None:
        if len(self._scratch[0]) < size:
            self._scratch = [aligned(size) for _ in range(self.n_threads)]


def aligned(size: int) -> U8:
    """Bytes that start at a multiple of 64, in number a multiple of 64 too."""
    padded = -(-size // _ALIGNMENT) * _ALIGNMENT
    raw = np.zeros(padded + _ALIGNMENT, np.uint8)
    first = -raw.ctypes.data % _ALIGNMENT
    return raw[first : first + padded]
