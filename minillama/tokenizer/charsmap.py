"""Normalization tables of SentencePiece's Unigram models (``tokenizer.ggml.precompiled_charsmap``).

The table is a trie from byte strings to their replacements, stored as a double array in which a child's place is its
parent's base XOR the byte (S. Kanda, "Space- and time-efficient string dictionaries", 2018), then the replacements,
each ending in a zero byte.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from minillama.errors import TokenizerError

_NAME = "tokenizer.ggml.precompiled_charsmap"


class CharsMap:
    """Longest-match replacement of byte strings.

    Parameters
    ----------
    table
        Bytes of the table: length of the double array, the array, the replacements.

    Attributes
    ----------
    nodes
        The double array.
    replacements
        The replacements, one after the other.
    """

    def __init__(self, table: npt.NDArray[np.uint8]) -> None:
        data = table.tobytes()
        length = int.from_bytes(data[:4], "little")
        if length < 4 or 4 + length >= len(data):
            raise TokenizerError(f"{_NAME} is cut short: {len(data)} bytes, a trie of {length}")
        self.nodes = np.frombuffer(data, "<u4", length // 4, 4).astype(np.uint32)
        self.replacements = data[4 + length :]
        self._nodes: list[int] = self.nodes.tolist()

    def longest(self, data: bytes, start: int) -> tuple[bytes, int] | None:
        """Replacement of the longest string in the table that begins at ``start``, and the string's length."""
        place, length, found = 0, 0, 0
        base = self._base(0)
        for position in range(start, len(data)):
            byte = data[position]
            place = base ^ byte
            node = self._node(place)
            if byte == 0 or node & 0x800000FF != byte:
                break
            base = place ^ self._base(place)
            if node >> 8 & 1:
                length, found = position + 1 - start, self._node(base) & 0x7FFFFFFF
        return (self._replacement(found), length) if length else None

    def _node(self, index: int) -> int:
        if index >= len(self._nodes):
            raise TokenizerError(f"{_NAME}: node {index} is beyond the trie's {len(self._nodes)}")
        return self._nodes[index]

    def _base(self, index: int) -> int:
        node = self._node(index)
        return node >> 10 << ((node & 1 << 9) >> 6)

    def _replacement(self, offset: int) -> bytes:
        end = self.replacements.find(b"\0", offset)
        if offset >= len(self.replacements) or end < 0:
            raise TokenizerError(f"{_NAME}: no replacement at {offset}")
        return self.replacements[offset:end]
