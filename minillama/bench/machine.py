"""What the machine can do at most: bytes read and multiply-adds done a second, by so many threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np

from minillama.kernels.jit import jit
from minillama.kernels.simd.dots import dot_bytes, zeros_i32x16
from minillama.kernels.simd.lanes import load_i8x64, load_u8x64
from minillama.kernels.simd.vectors import add, lane_sum, load_i32x16
from minillama.kernels.types import U8

# Read by each thread, more than caches hold; a multiple of the pairs of lines that one step reads.
READ_BYTES = 1 << 28
_DOTS = 1_000_000
_SECONDS = 0.5


@jit(keep=False)
def read(data: U8, start: int, stop: int) -> int:
    """Sum pairs of 64-byte lines."""
    a, b = zeros_i32x16(), zeros_i32x16()
    for pair in range(start, stop):
        a = add(a, load_i32x16(data, 128 * pair))
        b = add(b, load_i32x16(data, 128 * pair + 64))
    return lane_sum(add(a, b))


@jit(keep=False)
def multiply_adds(data: U8, start: int, stop: int) -> int:
    """Eight dots of 64 bytes an item, whose sums do not wait for each other."""
    x, z = load_u8x64(data, 0), zeros_i32x16()
    s0, s1, s2, s3, s4, s5, s6, s7 = z, z, z, z, z, z, z, z
    for i in range(start, stop):
        y = load_i8x64(data, 64 * (i % 8))
        s0, s1, s2, s3 = dot_bytes(s0, x, y), dot_bytes(s1, x, y), dot_bytes(s2, x, y), dot_bytes(s3, x, y)
        s4, s5, s6, s7 = dot_bytes(s4, x, y), dot_bytes(s5, x, y), dot_bytes(s6, x, y), dot_bytes(s7, x, y)
    return lane_sum(add(add(add(s0, s1), add(s2, s3)), add(add(s4, s5), add(s6, s7))))


def best_rate(call: Callable[[int, int], object], n_items: int, work: float, n_threads: int) -> float:
    """The best rate, in units of work a second, of calls over all items shared out over threads.

    Parameters
    ----------
    call
        ``call(start, stop)`` works on a range of items.
    n_items, work
        Items of all threads together, and the work in them.
    n_threads
        Threads to share them out over.
    """
    bounds = [n_items * i // n_threads for i in range(n_threads + 1)]
    call(0, 1)
    best, deadline = 0.0, time.perf_counter() + _SECONDS
    while time.perf_counter() < deadline:
        threads = [threading.Thread(target=call, args=bounds[i : i + 2]) for i in range(1, n_threads)]
        start = time.perf_counter()
        for thread in threads:
            thread.start()
        call(*bounds[:2])
        for thread in threads:
            thread.join()
        best = max(best, work / (time.perf_counter() - start))
    return best


def read_bandwidth(n_threads: int, n_bytes: int = READ_BYTES) -> float:
    """Bytes a second that threads read together, ``n_bytes`` each."""
    data = np.ones(n_bytes * n_threads, np.uint8)
    return best_rate(lambda start, stop: read(data, start, stop), len(data) // 128, len(data), n_threads)


def multiply_add_rate(n_threads: int) -> float:
    """Multiply-adds of bytes a second that threads do together, operands in the first-level cache."""
    data, n_items = np.ones(512, np.uint8), _DOTS * n_threads
    return best_rate(lambda start, stop: multiply_adds(data, start, stop), n_items, 8 * 64 * n_items, n_threads)
