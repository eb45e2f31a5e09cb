"""A Unigram vocabulary as arrays, for cutting long texts in compiled code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt

from minillama.errors import TokenizerError
from minillama.kernels import trie, unigram
from minillama.tokenizer import utf8


def make_trie(values: Mapping[bytes, int]) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int32]]:
    """Edges and node values of a trie; see `minillama.kernels.trie`."""
    keys = np.frombuffer(b"".join(values), np.uint8)
    starts = np.concatenate([[0], np.cumsum(np.fromiter(map(len, values), np.int64, len(values)))])
    array = np.fromiter(values.values(), np.int32, len(values))
    size = 1 << (4 * len(values)).bit_length()
    while True:
        edges, node_values = np.zeros(size, np.uint64), np.full(size // 2, -1, np.int32)
        if trie.fill_trie(keys, starts, array, edges, node_values, 0, len(values)) <= len(node_values):
            return edges, node_values
        size *= 2
        if size > 2 * trie.MAX_NODES:
            raise TokenizerError("the vocabulary's tokens are too long")


class UnigramTable:
    """What `Unigram` knows.

    Parameters
    ----------
    ids
        Id of every token that text may become, by its text.
    scores
        Score of every token.
    unknown, unknown_score
        Id and score of what no token covers.
    user_defined
        Texts of user-defined tokens.
    charsmap
        Nodes and replacements of the normalization table.
    add_prefix, merge_runs
        What becomes of spaces.
    """

    def __init__(
        self,
        ids: Mapping[bytes, int],
        scores: npt.NDArray[np.float32],
        unknown: int | None,
        unknown_score: float,
        user_defined: Iterable[bytes],
        charsmap: tuple[npt.NDArray[np.uint32], bytes],
        add_prefix: bool,
        merge_runs: bool,
    ) -> None:
        self._edges, self._node_values = make_trie(ids)
        self._kept, _ = make_trie(dict.fromkeys(user_defined, 0))
        self._nodes = charsmap[0]
        self._replacements = np.frombuffer(charsmap[1] + unigram.REPLACEMENT, np.uint8)
        self._scores = scores
        self._unknown = -1 if unknown is None else unknown
        self._unknown_score = unknown_score
        self._space_rules = add_prefix, merge_runs

    def normalize(self, data: bytes) -> npt.NDArray[np.uint8] | None:
        """Normalize text; None if the table leads beyond its end."""
        out = np.empty(0, np.uint8)
        for _ in range(2):  # first to find out how long it is
            n = unigram.normalize_texts(
                np.frombuffer(data, np.uint8), np.array([len(data)]), self._kept, self._nodes, self._replacements,
                *self._space_rules, out, np.empty(3, np.int64), 0, 1,
            )  # fmt: skip
            if n < 0:
                return None
            if n > len(out):
                out = np.empty(n, np.uint8)
        out.flags.writeable = False
        return out

    def encode(self, data: bytes) -> npt.NDArray[np.int32] | None:
        """Ids of text; None if it needs something that the vocabulary does not have."""
        text = self.normalize(data)
        if text is None:
            return None
        ids = np.full(len(text), -1, np.int32)
        done = unigram.best_cuts(
            text, np.array([len(text)]), self._edges, self._node_values, self._scores,
            np.frombuffer(utf8.LENGTHS, np.uint8), self._unknown, self._unknown_score, ids,
            np.empty(unigram.scratch_bytes(len(text)), np.uint8), 0, 1,
        )  # fmt: skip
        return ids[ids >= 0] if done else None
