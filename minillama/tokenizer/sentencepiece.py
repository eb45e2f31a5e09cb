"""SentencePiece: characters are merged pair by pair, best score first (``tokenizer.ggml.model`` llama)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from minillama.errors import TokenizerError
from minillama.tokenizer import utf8
from minillama.tokenizer.merging import merge
from minillama.tokenizer.space_words import SpaceCutter
from minillama.tokenizer.text_model import (
    ESCAPED_SPACE,
    WordModel,
    byte_token,
    escape_spaces,
    escaped_sources,
    unescape_spaces,
)
from minillama.tokenizer.utf8 import Span

if TYPE_CHECKING:
    from minillama.tokenizer.merge_table import MergeTable


class SentencePiece(WordModel):
    """Text to ids by the scores of tokens.

    A character that is no token becomes one token per byte. Bytes that are not UTF-8 are encoded as they are, as in
    llama.cpp.

    Parameters
    ----------
    ids
        Id of every token, by its text.
    scores
        Score of every token.
    add_space
        Whether text begins with an added space, also after a special token.
    """

    def __init__(self, ids: Mapping[bytes, int], scores: npt.NDArray[np.float32], add_space: bool) -> None:
        super().__init__()
        self._ids = ids
        self._costs = (-scores).tolist()
        self._add_space = add_space
        self._cut_at_spaces = SpaceCutter(ids)

    def normalize(self, data: bytes, begins: bool) -> bytes:
        """Return the text with spaces escaped and, where it begins, one in front."""
        return escape_spaces(b" " + data if begins and self._add_space else data)

    def sources(self, data: bytes, begins: bool) -> Sequence[Span]:
        """See `TextModel.sources`."""
        added = [(0, 0)] * len(ESCAPED_SPACE) if begins and self._add_space else []
        return [*added, *escaped_sources(data)]

    def word_ends(self, normalized: bytes) -> npt.NDArray[np.int64]:
        """Cut text at spaces that no token contains behind another character."""
        return self._cut_at_spaces(normalized)

    def word_pieces(self, word: bytes) -> Sequence[tuple[int, int]]:
        """Id of every piece of a word, and its length."""
        pieces: list[tuple[int, int]] = []
        for symbol in merge(utf8.characters(word), self._priority):
            token = self._ids.get(symbol)
            if token is not None:
                pieces.append((token, len(symbol)))
            else:
                pieces += [(self._byte(value), 1) for value in symbol]
        return pieces

    def make_table(self) -> MergeTable:
        """See `WordModel.make_table`."""
        from minillama.tokenizer.merge_table import MergeTable, token_strings

        _, ranks = np.unique(self._costs, return_inverse=True)
        byte_ids = [self._ids.get(byte_token(value), self._ids.get(bytes([value]), -1)) for value in range(256)]
        return MergeTable(
            token_strings(list(self._ids), None), None, ranks.astype(np.int32), np.array(byte_ids, np.int32)
        )

    def _priority(self, left: bytes, right: bytes) -> float | None:
        token = self._ids.get(left + right)
        return None if token is None else self._costs[token]

    def _byte(self, value: int) -> int:
        token = self._ids.get(byte_token(value), self._ids.get(bytes([value])))
        if token is None:
            raise TokenizerError(f"no token for byte 0x{value:02X} in this vocabulary")
        return token

    def render(self, text: bytes) -> bytes:
        """Bytes that an ordinary token stands for."""
        return unescape_spaces(text)
