"""WordPiece: words are cut into the longest tokens from the left (``tokenizer.ggml.model`` bert)."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence

from minillama.errors import TokenizerError
from minillama.tokenizer import utf8
from minillama.tokenizer.text_model import ESCAPED_SPACE, TextModel, unescape_spaces
from minillama.tokenizer.unicode_classes import (
    CONTROL,
    MARK,
    PUNCTUATION,
    SPACE,
    SYMBOL,
    base_letter,
    category_table,
    code_points_in,
    lowercase,
)
from minillama.tokenizer.utf8 import Span

# Every character here is a word. The sixth block begins late, as in the library BERT's vocabularies come from.
_CHINESE = code_points_in("3400-4dbf 4e00-9fff 20000-2a6df 2a700-2b73f 2b740-2b81f 2b920-2ceaf f900-faff 2f800-2fa1f")
_CACHED_WORDS = 1 << 16


class WordPiece(TextModel):
    """Text to ids, word by word; words that cannot be cut into tokens are unknown.

    Parameters
    ----------
    ids
        Id of every token, by its text; the first token of a word begins with ``▁``.
    unknown
        Id for words that cannot be cut.
    lower, strip_accents
        Whether letters are made lower-case, and accents dropped.
    """

    def __init__(self, ids: Mapping[bytes, int], unknown: int | None, *, lower: bool, strip_accents: bool) -> None:
        self._ids = ids
        self._unknown = unknown
        self._longest = max(map(len, ids))
        self._characters = _Characters(lower, strip_accents)
        self._cached_pieces = functools.lru_cache(_CACHED_WORDS)(self._word_pieces)

    def normalize(self, data: bytes, begins: bool) -> bytes:
        """Return the words, with spaces between them."""
        text = utf8.replace_invalid(data).decode("utf-8", "surrogatepass")
        return text.translate(self._characters).encode("utf-8", "surrogatepass")

    def sources(self, data: bytes, begins: bool) -> Sequence[Span]:
        """See `TextModel.sources`."""
        return utf8.sources(data, lambda code: self._characters[code].encode("utf-8", "surrogatepass"))

    def pieces(self, normalized: bytes) -> Iterator[tuple[int, int, int]]:
        """Pieces of the words."""
        position = 0
        for word in normalized.split(b" "):
            for token, start, end in self._cached_pieces(word) if word else ():
                yield token, position + start, position + end
            position += len(word) + 1

    def encode(self, data: bytes, begins: bool) -> list[int]:
        """See `TextModel.encode`."""
        cached = self._cached_pieces
        return [token for word in self.normalize(data, begins).split() for token, _, _ in cached(word)]

    def _word_pieces(self, word: bytes) -> Iterable[tuple[int, int, int]]:
        """Longest tokens from the left; lengths count bytes, and tokens may end within a character."""
        marked, added = ESCAPED_SPACE + word, len(ESCAPED_SPACE)
        pieces, start, end = [], 0, len(marked)
        while start < end:
            for stop in range(min(end, start + self._longest + 1), start, -1):
                token = self._ids.get(marked[start:stop])
                if token is not None:
                    break
            else:
                return [(self._checked_unknown(), 0, len(word))]
            pieces.append((token, max(start - added, 0), max(stop - added, 0)))
            start = stop
        return pieces

    def _checked_unknown(self) -> int:
        if self._unknown is None:
            raise TokenizerError("a word cannot be cut into tokens, and the vocabulary has no unknown token")
        return self._unknown

    def render(self, text: bytes) -> bytes:
        """Bytes that an ordinary token stands for."""
        return unescape_spaces(text)


class _Characters(dict[int, str]):
    """What each code point becomes, found out when it is first met: a space, nothing, a word, or part of one."""

    def __init__(self, lower: bool, strip_accents: bool) -> None:
        super().__init__()
        self._lower = lower
        self._strip_accents = strip_accents

    def __missing__(self, code: int) -> str:
        self[code] = found = self._find(base_letter(code) if self._strip_accents else code)
        return found

    def _find(self, code: int) -> str:
        category = category_table()[code]
        if category == SPACE:
            return " "
        if code in (0, 0xFFFD) or category == CONTROL or (category == MARK and self._strip_accents):
            return ""
        letter = chr(lowercase().get(code, code) if self._lower else code)
        alone = category == PUNCTUATION or (category == SYMBOL and code < 0x7F)
        return f" {letter} " if alone or any(code in block for block in _CHINESE) else letter
