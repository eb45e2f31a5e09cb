"""Sorting as ``ggml_argsort`` does it: by the C++ library's ``std::sort``, which decides the order of equal values.

libstdc++'s is an introsort: quicksort around the median of three down to pieces of 16, heap sort where that goes too
deep, and one insertion sort at the end. The same comparisons in the same order give the same permutation.
"""

from __future__ import annotations

import numpy as np

from minillama.kernels.jit import jit
from minillama.kernels.types import F32, I32

_SMALL = 16


@jit
def _before(x: F32, a: int, b: int, descending: bool) -> bool:
    return x[a] > x[b] if descending else x[a] < x[b]


@jit
def _median_to_first(x: F32, ids: I32, first: int, last: int, descending: bool) -> None:
    """Swap the median of the second, the middle and the last value to the front."""
    a, b, c = first + 1, first + (last - first) // 2, last - 1
    if _before(x, ids[a], ids[b], descending):
        at = c if _before(x, ids[a], ids[c], descending) else a
        at = b if _before(x, ids[b], ids[c], descending) else at
    elif _before(x, ids[a], ids[c], descending):
        at = a
    else:
        at = c if _before(x, ids[b], ids[c], descending) else b
    ids[first], ids[at] = ids[at], ids[first]


@jit
def _partition(x: F32, ids: I32, first: int, last: int, descending: bool) -> int:
    """Cut around the pivot at ``first``; equal values are swapped, on both sides."""
    pivot = ids[first]
    left, right = first + 1, last
    while True:
        while _before(x, ids[left], pivot, descending):
            left += 1
        right -= 1
        while _before(x, pivot, ids[right], descending):
            right -= 1
        if left >= right:
            return left
        ids[left], ids[right] = ids[right], ids[left]
        left += 1


@jit
def _sift(x: F32, heap: I32, hole: int, size: int, value: int, descending: bool) -> None:
    """Put ``value`` into a heap with a hole: the hole sinks to a leaf, then the value rises from there."""
    top, child = hole, hole
    while child < (size - 1) // 2:
        child = 2 * (child + 1)
        if _before(x, heap[child], heap[child - 1], descending):
            child -= 1
        heap[hole] = heap[child]
        hole = child
    if size % 2 == 0 and child == (size - 2) // 2:
        child = 2 * child + 1
        heap[hole] = heap[child]
        hole = child
    while hole > top and _before(x, heap[(hole - 1) // 2], value, descending):
        heap[hole] = heap[(hole - 1) // 2]
        hole = (hole - 1) // 2
    heap[hole] = value


@jit
def _heap_sort(x: F32, heap: I32, descending: bool) -> None:
    for parent in range((len(heap) - 2) // 2, -1, -1):
        _sift(x, heap, parent, len(heap), heap[parent], descending)
    for size in range(len(heap) - 1, 0, -1):
        value = heap[size]
        heap[size] = heap[0]
        _sift(x, heap, 0, size, value, descending)


@jit(allocates=True)
def _quick_sort(x: F32, ids: I32, descending: bool) -> None:
    """Down to pieces of 16; a piece that was cut 2 log2(n) times is sorted as a heap."""
    levels = 0
    while len(ids) >> (levels + 1):
        levels += 1
    pieces = np.empty((2 * levels + 1, 3), np.int64)  # first, last and cuts left of the pieces to the right
    pieces[0] = 0, len(ids), 2 * levels
    n_pieces = 1
    while n_pieces:
        n_pieces -= 1
        first, last, cuts = pieces[n_pieces]
        while last - first > _SMALL and cuts > 0:
            cuts -= 1
            _median_to_first(x, ids, first, last, descending)
            cut = _partition(x, ids, first, last, descending)
            pieces[n_pieces] = cut, last, cuts
            n_pieces += 1
            last = cut
        if last - first > _SMALL:
            _heap_sort(x, ids[first:last], descending)


@jit(allocates=True)
def argsort(x: F32, descending: bool, out: I32, start: int, stop: int) -> None:
    """``ggml_argsort`` of rows ``start`` to ``stop`` of float32 [n_rows, n], int32 out; x must hold no NaN.

    The first k of a descending row are ``ggml_argsort_top_k``.
    """
    n = x.shape[1]
    for row in range(start, stop):
        ids = out[row]
        for k in range(n):
            ids[k] = k
        _quick_sort(x[row], ids, descending)
        for k in range(1, n):
            value, at = ids[k], k
            # The C++ library moves a value before the first one without looking at those between.
            if k < _SMALL and _before(x[row], value, ids[0], descending):
                at = 0
                ids[1 : k + 1] = ids[:k].copy()
            else:
                while _before(x[row], value, ids[at - 1], descending):
                    ids[at] = ids[at - 1]
                    at -= 1
            ids[at] = value
