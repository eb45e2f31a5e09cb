"""Normalization tables of Unigram vocabularies, small enough to be made in a test."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt


def charsmap_of(replacements: Mapping[bytes, bytes], n_nodes: int | None = None) -> npt.NDArray[np.uint8]:
    """Table that replaces strings; ``n_nodes`` cuts the double array short.

    A node's children are in a block of 256 of their own, each at its byte; at 0 is the value of a string that ends.
    """
    tree: dict[Any, Any] = {}
    texts = b""
    for string, replacement in replacements.items():
        node = tree
        for byte in string:
            node = node.setdefault(byte, {})
        node[0] = len(texts)
        texts += replacement + b"\0"
    nodes: list[int] = [0]

    def place(node: dict[Any, Any], index: int) -> None:
        base = len(nodes) + 255 & ~255
        nodes.extend([0] * (base + 256 - len(nodes)))
        nodes[index] |= (base ^ index) << 10 | (0 in node) << 8
        for byte, child in node.items():
            if byte == 0:
                nodes[base] = 1 << 31 | child
            else:
                nodes[base ^ byte] = byte
                place(child, base ^ byte)

    place(tree, 0)
    kept = nodes[:n_nodes]
    return np.frombuffer(struct.pack(f"<I{len(kept)}I", 4 * len(kept), *kept) + texts, np.uint8)
