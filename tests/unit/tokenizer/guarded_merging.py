"""Run the tokenizer's kernels on arrays that end, or begin, at memory that may not be touched."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "kernels")]

from guarded_run import guarded  # noqa: E402
from toy_charsmap import charsmap_of  # noqa: E402
from toy_vocabulary import LETTER_TEXTS, MERGES  # noqa: E402

from minillama.kernels import merging, trie, unigram, words  # noqa: E402
from minillama.tokenizer import utf8  # noqa: E402
from minillama.tokenizer.bytes_alphabet import byte_table  # noqa: E402
from minillama.tokenizer.merge_table import merge_strings, token_strings  # noqa: E402

TEXT = "hello wor  12 \n\n aa'll é".encode()
Guard = Callable[..., np.ndarray]


def guard(at_end: bool) -> Guard:
    def g(array: np.ndarray, *, writeable: bool = True) -> np.ndarray:
        copy = guarded(np.ascontiguousarray(array), at_end=at_end)
        copy.flags.writeable = writeable
        return copy

    return g


def run_merging(g: Guard) -> None:
    data = g(np.frombuffer(TEXT, np.uint8), writeable=False)
    classes = g(np.arange(256, dtype=np.uint8) % 4)
    ends = g(np.zeros(len(TEXT), np.int64))
    for lead in (False, True):
        n = words.word_ends(data, g(np.array([len(TEXT)])), classes, 2, lead, 3, ends, 0, 1)
    texts = [*LETTER_TEXTS, *(merge.replace(" ", "") for merge in MERGES)]
    tokens = token_strings([text.encode() for text in texts], byte_table())
    merges = merge_strings([merge.encode() for merge in MERGES], byte_table())
    lengths = np.concatenate([tokens.lengths, merges.lengths])
    starts = g(np.concatenate([[0], np.cumsum(lengths)]))
    places = g(np.concatenate([[1], 1 + np.cumsum(2 + -(-lengths // 4))]))
    records, slots = g(np.zeros(4 * int(places[-1]), np.uint8)), g(np.zeros(1024, np.uint64))
    parts = zip((tokens.keys, tokens.splits, tokens.values), (merges.keys, merges.splits, merges.values), strict=True)
    keys, splits, values = (g(np.concatenate(pair)) for pair in parts)
    keys.flags.writeable = False
    merging.fill_table(keys, starts, splits, values, places, records, slots, 0, len(lengths))
    ids, declined = g(np.full(len(TEXT), -1, np.int32)), g(np.zeros(n, np.uint8))
    scratch = g(np.empty(merging.scratch_bytes(len(TEXT)), np.uint8))
    merging.merge_words(
        data, g(ends[:n]), slots, records, g(np.empty(0, np.int32)), g(np.ones(256, np.uint8), writeable=False),
        g(np.full(256, -1, np.int32)), int(lengths.max()), 0, ids, declined, g(np.zeros(8, np.int32)), scratch, 0, n,
    )  # fmt: skip
    assert not declined.any()


def run_unigram(g: Guard) -> None:
    def make_trie(texts: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
        keys = g(np.frombuffer(b"".join(texts), np.uint8), writeable=False)
        starts, values = g(np.cumsum([0, *map(len, texts)])), g(np.arange(len(texts), dtype=np.int32))
        edges, node_values = g(np.zeros(64, np.uint64)), g(np.full(32, -1, np.int32))
        assert trie.fill_trie(keys, starts, values, edges, node_values, 0, len(texts)) <= 32
        return edges, node_values

    table = charsmap_of({b"h": b"H", b"wor": b"", "é".encode(): b"e "})
    n_nodes = int.from_bytes(table[:4].tobytes(), "little")
    nodes = g(table[4 : 4 + n_nodes].view(np.uint32))
    for data in (TEXT, b"", b"\xf0\x9f", b"user define", b"w", b"us"):
        kept, _ = make_trie([b"user defined"])
        for replacements in (table[4 + n_nodes :], table[4 + n_nodes : -1]):
            for n in (0, 3, 60):
                length = unigram.normalize_texts(
                    g(np.frombuffer(data, np.uint8), writeable=False), g(np.array([len(data)])), kept, nodes,
                    g(np.append(replacements, np.frombuffer(unigram.REPLACEMENT, np.uint8)), writeable=False),
                    True, False, g(np.zeros(n, np.uint8)), g(np.zeros(3, np.int64)), 0, 1,
                )  # fmt: skip
                assert length < 60
        edges, node_values = make_trie([b"hello", b"he", b"l", b" ", b"12"])
        done = unigram.best_cuts(
            g(np.frombuffer(data, np.uint8), writeable=False), g(np.array([len(data)])), edges, node_values,
            g(np.zeros(5, np.float32)), g(np.frombuffer(utf8.LENGTHS, np.uint8), writeable=False), 4, -10.0,
            g(np.full(len(data), -1, np.int32)), g(np.zeros(unigram.scratch_bytes(len(data)), np.uint8)), 0, 1,
        )  # fmt: skip
        assert done == 1


for side in (guard(at_end=True), guard(at_end=False)):
    run_merging(side)
    run_unigram(side)
