"""PLaMo-2: the cut with the best sum of scores, found from the end (``tokenizer.ggml.model`` plamo2)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from minillama.errors import TokenizerError
from minillama.tokenizer import utf8
from minillama.tokenizer.text_model import TextModel, byte_token
from minillama.tokenizer.utf8 import Span

_SCALE = 1e4  # scores are integers of this fraction, so that sums are exact
_UNKNOWN_COST, _LARGEST_COST = 10_000_000, 20_000_000
_BYTE_ORDER_MARK = "\ufeff".encode()


class BestCut(TextModel):
    """Text to ids by the sum of the tokens' scores; characters that no token covers become bytes.

    Parameters
    ----------
    ids
        Id of every token that text may become, by its text, without those of bytes.
    byte_ids
        Id of every byte.
    scores
        Score of every token.
    """

    renders_all = True

    def __init__(
        self, ids: Mapping[bytes, int], byte_ids: Mapping[bytes, int], scores: npt.NDArray[np.float32]
    ) -> None:
        missing = [value for value in range(256) if not byte_ids.get(byte_token(value))]
        if missing:
            raise TokenizerError(f"no token for byte 0x{missing[0]:02X} in this vocabulary")
        self._byte_ids = [byte_ids[byte_token(value)] for value in range(256)]
        self._tokens: dict[str, tuple[int, int]] = {}  # id and cost
        self._longest: dict[str, int] = {}  # token, in characters, by its first one
        for text, token in ids.items():
            score = float(scores[token])
            cost = -_rounded(score * _SCALE) if np.isfinite(score) else _LARGEST_COST
            if cost < _LARGEST_COST:
                word = utf8.replace_invalid(text).decode("utf-8", "surrogatepass")
                self._tokens[word] = token, cost
                self._longest[word[0]] = max(self._longest.get(word[0], 0), len(word))

    def normalize(self, data: bytes, begins: bool) -> bytes:
        """Return the text with U+FFFD for bytes that are not UTF-8, and without a byte order mark in front."""
        return utf8.replace_invalid(data).removeprefix(_BYTE_ORDER_MARK)

    def sources(self, data: bytes, begins: bool) -> Sequence[Span]:
        """See `TextModel.sources`."""
        found = utf8.sources(data, utf8.encode)
        return found[len(_BYTE_ORDER_MARK) :] if data.startswith(_BYTE_ORDER_MARK) else found

    def pieces(self, normalized: bytes) -> Iterator[tuple[int, int, int]]:
        """Pieces of the best cut."""
        text = normalized.decode("utf-8", "surrogatepass")
        lengths = self._best_lengths(text)
        start = position = 0
        while position < len(text):
            length = lengths[position] or 1
            word = text[position : position + length].encode("utf-8", "surrogatepass")
            if lengths[position]:
                yield self._tokens[text[position : position + length]][0], start, start + len(word)
            else:
                for i, value in enumerate(word):
                    yield self._byte_ids[value], start + i, start + i + 1
            start += len(word)
            position += length

    def _best_lengths(self, text: str) -> list[int]:
        """Length of the piece that begins at each character in the best cut from there on; 0 for an unknown one."""
        tokens, longest = self._tokens, self._longest
        costs = [0] * (len(text) + 1)
        lengths = [0] * len(text)
        for i in range(len(text) - 1, -1, -1):
            best, best_length = 1 << 60, 0
            for length in range(min(longest.get(text[i], 0), len(text) - i), 0, -1):
                found = tokens.get(text[i : i + length])
                if found is not None and costs[i + length] + found[1] < best:
                    best, best_length = costs[i + length] + found[1], length
            if costs[i + 1] + _UNKNOWN_COST < best:
                best, best_length = costs[i + 1] + _UNKNOWN_COST, 0
            costs[i], lengths[i] = best, best_length
        return lengths

    def render(self, text: bytes) -> bytes:
        """Bytes that a token stands for."""
        return text


def _rounded(value: float) -> int:
    """Nearest integer, halves away from zero, as C's ``round``."""
    return int(value + 0.5) if value >= 0 else -int(0.5 - value)
