"""Byte strings as a tree of their prefixes, in a hash table of its edges.

Nodes are numbered from the root, 0. An edge is ``(parent << 8 | byte) << 32 | child``, in a table a power of two long
that is zero where empty; the string that ends in a node has a value there.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from minillama.kernels.jit import jit
from minillama.kernels.types import I32, I64, U8

U64: TypeAlias = npt.NDArray[np.uint64]
Trie: TypeAlias = tuple[U64, I32]  # edges, and the value of every node: -1 for none

MAX_NODES = 1 << 24  # a parent and a byte are half an edge
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_HALF, _BYTE, _LOW, _ONE = np.uint64(32), np.uint64(8), np.uint64(0xFFFFFFFF), np.uint64(1)


@jit(name="find_edge")
def _find(edges: U64, parent: int, byte: int) -> Any:
    """Place of an edge, or the empty place where it belongs."""
    key = np.uint64(parent) << _BYTE | np.uint64(byte)
    mask = np.uint64(len(edges) - 1)
    place = (key * _SPREAD >> _HALF) & mask
    while edges[np.int64(place)] != np.uint64(0) and edges[np.int64(place)] >> _HALF != key:
        place = (place + _ONE) & mask
    return np.int64(place)


@jit(name="child_of_node")
def child(edges: U64, parent: int, byte: int) -> Any:
    """Node behind an edge; 0 if there is none."""
    return np.int64(edges[_find(edges, parent, byte)] & _LOW)


@jit(name="fill_trie")
def fill_trie(keys: U8, starts: I64, values: I32, edges: U64, node_values: I32, start: int, stop: int) -> int:
    """Put strings [start, stop) into a trie that has only a root, and return how many nodes it needs.

    Parameters
    ----------
    keys, starts
        Bytes of all strings, and where each begins (and the last one ends).
    values
        Value of each string.
    edges
        The table, empty.
    node_values
        int32, -1 to begin with. If more nodes are needed than there is room for here, the trie is of no use.
    """
    n = 1
    for entry in range(start, stop):
        node = np.int64(0)
        for i in range(starts[entry], starts[entry + 1]):
            place = _find(edges, node, np.int64(keys[i]))
            if edges[place] == np.uint64(0):
                if n == len(node_values):
                    return n + 1
                edges[place] = (np.uint64(node) << _BYTE | np.uint64(keys[i])) << _HALF | np.uint64(n)
                n += 1
            node = np.int64(edges[place] & _LOW)
        node_values[node] = values[entry]
    return n
