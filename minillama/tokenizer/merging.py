"""Merging neighbours pair by pair: the loop that byte-pair encoding and SentencePiece share."""

from __future__ import annotations

import heapq
from collections.abc import Callable

# How early a pair of symbols is merged, lowest first; None if never.
Priority = Callable[[bytes, bytes], float | None]


def merge(symbols: list[bytes], priority: Priority) -> list[bytes]:
    """Merge neighbours until no pair has a priority: lowest first, then leftmost.

    The symbols form a linked list; a merged symbol takes the place of its left part and its right part becomes empty.
    Pairs wait in a heap and are dropped when they come up after one of their parts has changed, which their common
    length tells: it only grows. A word of n symbols takes O(n log n) steps.
    """
    end = len(symbols)
    following = list(range(1, end + 1))
    previous = list(range(-1, end - 1))
    heap: list[tuple[float, int, int]] = []

    def consider(left: int, right: int) -> None:
        if left >= 0 and right < end:
            found = priority(symbols[left], symbols[right])
            if found is not None:
                heapq.heappush(heap, (found, left, len(symbols[left]) + len(symbols[right])))

    for left in range(end - 1):
        consider(left, left + 1)
    while heap:
        _, left, size = heapq.heappop(heap)
        right = following[left]
        if right == end or not symbols[left] or len(symbols[left]) + len(symbols[right]) != size:
            continue
        symbols[left] += symbols[right]
        symbols[right] = b""
        following[left] = following[right]
        if following[left] < end:
            previous[following[left]] = left
        consider(previous[left], left)
        consider(left, following[left])
    return [symbol for symbol in symbols if symbol]
