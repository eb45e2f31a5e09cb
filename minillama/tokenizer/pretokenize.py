r"""Pre-tokenizers of byte-level BPE: how text is cut into words before merging, by ``tokenizer.ggml.pre``.

A pre-tokenizer is a list of patterns. Each cuts the pieces left by the one before it into its matches and what lies
between them, and a piece's end is the end of the text for the next pattern: with ``smollm`` the spaces before a digit
are one word, because the digit has already been cut off. Patterns run on folded text (`unicode_classes`); ``\p{L}``,
``\p{N}`` and ``\p{P}`` are written inside brackets and stand for letters, numbers and punctuation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from minillama.errors import UnsupportedError
from minillama.tokenizer.unicode_classes import LETTER, NUMBER, PUNCTUATION, fold

_CLASSES = {
    rb"\p{L}": rb"A-Za-z" + bytes([LETTER]),
    rb"\p{N}": rb"0-9" + bytes([NUMBER]),
    rb"\p{P}": rb"!-#%-*,-/:;?@\[-\]_{}" + bytes([PUNCTUATION]),
}

_GPT2 = rb"'(?:[stmd]|re|ve|ll)| ?[\p{L}]+| ?[\p{N}]+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    rb"'(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])|[^\r\n\p{L}\p{N}]?[\p{L}]+|[\p{N}]{1,3}"
    rb"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(rb"{1,3}", b"")
_ONE_DIGIT = rb"[\p{N}]"
_DEFAULT = (rb"[\p{P}$+<=>^~|]+", _GPT2, rb"[\p{N}]+", rb"[0-9][0-9][0-9]")


@dataclass(frozen=True)
class PreTokenizer:
    """One way to cut text into words, with the defaults that llama.cpp ties to its name.

    Attributes
    ----------
    patterns
        Compiled for folded text, applied one after the other.
    ignore_merges
        A word that is a token as a whole is that token, whatever the merges say.
    add_bos
        Whether a beginning-of-text token is added when the file does not say.
    """

    patterns: tuple[re.Pattern[bytes], ...]
    ignore_merges: bool = False
    add_bos: bool = False

    def split(self, data: bytes) -> list[bytes]:
        """Cut text (UTF-8, see `fold` for other bytes) into words; joined they are ``data``."""
        folded, starts = fold(data)
        spans = [(0, len(folded))]
        for pattern in self.patterns:
            spans = [cut for begin, end in spans for cut in _cut(pattern, folded, begin, end)]
        return [data[starts[begin] : starts[end]] for begin, end in spans]


def _cut(pattern: re.Pattern[bytes], folded: bytes, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Spans of the matches in ``folded[begin:end]`` and of what lies between them."""
    for match in pattern.finditer(folded, begin, end):
        start, stop = match.span()
        if start > begin:
            yield begin, start
        yield start, stop
        begin = stop
    if begin < end:
        yield begin, end


def _compile(*patterns: bytes) -> tuple[re.Pattern[bytes], ...]:
    compiled = []
    for pattern in patterns:
        for name, members in _CLASSES.items():
            pattern = pattern.replace(name, members)  # noqa: PLW2901
        compiled.append(re.compile(pattern))
    return tuple(compiled)


_FAMILIES = {
    "gpt-2": PreTokenizer(_compile(_GPT2)),
    "llama-bpe": PreTokenizer(_compile(_LLAMA3), ignore_merges=True, add_bos=True),
    "qwen2": PreTokenizer(_compile(_QWEN2)),
    "smollm": PreTokenizer(_compile(_ONE_DIGIT, _GPT2)),
    "default": PreTokenizer(_compile(*_DEFAULT)),
}
# Other names llama.cpp treats in every respect like these.
_ALIASES = {
    "gpt-2": "phi-2 jina-es jina-de jina-v2-es jina-v2-de gigachat a.x-4.0 mellum modern-bert exaone4 mpt",
    "llama-bpe": "llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
    "qwen2": "deepseek-r1-qwen kormo f2llmv2 megrez",
    "smollm": "starcoder refact command-r",
}
_BY_NAME = _FAMILIES | {alias: _FAMILIES[name] for name, aliases in _ALIASES.items() for alias in aliases.split()}


def pre_tokenizer(name: str) -> PreTokenizer:
    """Return the pre-tokenizer of a ``tokenizer.ggml.pre`` value.

    Raises
    ------
    UnsupportedError
        For a name that is not known; the message lists those that are.
    """
    try:
        return _BY_NAME[name]
    except KeyError:
        raise UnsupportedError(
            f"pre-tokenizer {name!r} (tokenizer.ggml.pre) is not supported; supported: {', '.join(sorted(_BY_NAME))}"
        ) from None
