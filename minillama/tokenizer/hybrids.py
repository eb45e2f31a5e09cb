"""Byte-pair encoding with something around it: white space dropped, or sequences of bases cut by count."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from minillama.tokenizer import utf8
from minillama.tokenizer.bpe import BytePairEncoding
from minillama.tokenizer.text_model import TextModel
from minillama.tokenizer.unicode_classes import SPACE, category_table, lowercase
from minillama.tokenizer.utf8 import Span


class WhitespaceBPE(TextModel):
    """Byte-pair encoding of what stands between white space (``tokenizer.ggml.model`` is ``whitespace``).

    Parameters
    ----------
    bpe
        Encodes the segments.
    lower
        Whether letters are made lower-case.
    """

    def __init__(self, bpe: BytePairEncoding, lower: bool) -> None:
        self._bpe = bpe
        self._lower = lower

    def _character(self, code: int) -> bytes:
        if category_table()[code] == SPACE:
            return b" "
        return utf8.encode(lowercase().get(code, code) if self._lower else code)

    def normalize(self, data: bytes, begins: bool) -> bytes:
        """Return the text with every white-space character as one space, and lower-case letters."""
        return b"".join(map(self._character, utf8.code_points(utf8.replace_invalid(data))[0].tolist()))

    def sources(self, data: bytes, begins: bool) -> Sequence[Span]:
        """See `TextModel.sources`."""
        return utf8.sources(data, self._character)

    def pieces(self, normalized: bytes) -> Iterator[tuple[int, int, int]]:
        """Pieces of the segments between spaces."""
        for match in re.finditer(rb"[^ ]+", normalized):
            for token, start, end in self._bpe.pieces(match[0]):
                yield token, match.start() + start, match.start() + end

    def render(self, text: bytes) -> bytes:
        """Bytes that an ordinary token stands for."""
        return self._bpe.render(text)


class HybridDNA(TextModel):
    """Byte-pair encoding, but what stands between ``<dna>`` and ``</dna>`` is cut into six bases each.

    Parameters
    ----------
    bpe
        Encodes ordinary text.
    ids
        Id of every token; those of bases end in U+E000, which tells them from ordinary tokens with the same letters.
    """

    _BASES = 6
    _MARKER = "\ue000".encode()
    replaces_invalid = True

    def __init__(self, bpe: BytePairEncoding, ids: Mapping[bytes, int]) -> None:
        self._bpe = bpe
        self._ids = ids

    def pieces(self, normalized: bytes) -> Iterator[tuple[int, int, int]]:
        """Pieces of ordinary text and of sequences, in turn."""
        opening, closing, unknown = (self._ids.get(name) for name in (b"<dna>", b"</dna>", b"<oov>"))
        if opening is None or closing is None or unknown is None:
            yield from self._bpe.pieces(normalized)
            return
        end = len(normalized)
        position = 0
        while position < end:
            start = normalized.find(b"<dna>", position)
            yield from self._ordinary(normalized, position, start if start >= 0 else end)
            if start < 0:
                return
            yield opening, start, start + 5
            stop = normalized.find(b"</dna>", start + 5)
            yield from self._bases(normalized, start + 5, stop if stop >= 0 else end, unknown)
            if stop < 0:
                return
            yield closing, stop, stop + 6
            position = stop + 6

    def _ordinary(self, text: bytes, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
        for token, start, stop in self._bpe.pieces(text[begin:end]):
            yield token, begin + start, begin + stop

    def _bases(self, text: bytes, begin: int, end: int, unknown: int) -> Iterator[tuple[int, int, int]]:
        for start in range(begin, end, self._BASES):
            stop = min(start + self._BASES, end)
            bases = text[start:stop].upper().ljust(self._BASES, b"A")  # bytes.upper changes ASCII only
            yield self._ids.get(bases + self._MARKER, unknown), start, stop

    def render(self, text: bytes) -> bytes:
        """Bytes that an ordinary token stands for."""
        return self._bpe.render(text)
