"""UTF-8 as llama.cpp reads it: lenient about what a character is, and never failing on a stray byte.

It accepts overlong forms, surrogates and code points beyond U+10FFFF, and takes any byte that does not begin a complete
character as one invalid character by itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from minillama.errors import TokenizerError

_CHARACTER = re.compile(
    rb"[\x00-\x7f]|[\xc0-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf7][\x80-\xbf]{3}|[\x80-\xff]"
)
_REPLACEMENT = 0xFFFD
_LEAD_BITS = {2: 0x1F, 3: 0x0F, 4: 0x07}  # bits of the code point in the first byte, by length of the character


def _code_point(character: bytes) -> int:
    if len(character) == 1:
        return character[0] if character[0] < 0x80 else _REPLACEMENT
    code = character[0] & _LEAD_BITS[len(character)]
    for byte in character[1:]:
        code = code << 6 | byte & 0x3F
    return code


def code_points(data: bytes) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]:
    """Code points of the characters, and where each begins; U+FFFD for a byte that is no character."""
    try:
        codes = np.frombuffer(data.decode().encode("utf-32-le"), "<u4").astype(np.uint32, copy=False)
        starts = np.flatnonzero((np.frombuffer(data, np.uint8) & 0xC0) != 0x80)
    except UnicodeDecodeError:
        characters = [(_code_point(match[0]), match.start()) for match in _CHARACTER.finditer(data)]
        codes = np.array([code for code, _ in characters], np.uint32)
        starts = np.array([start for _, start in characters], np.int64)
    return codes, starts


def replace_invalid(data: bytes) -> bytes:
    """Write text anew as llama.cpp does: U+FFFD for every invalid byte, overlong forms in their shortest form.

    Raises
    ------
    TokenizerError
        For a code point beyond U+10FFFF, on which llama.cpp ends the process.
    """
    try:
        data.decode()
    except UnicodeDecodeError:
        return _CHARACTER.sub(_rewrite, data)
    return data


def _rewrite(match: re.Match[bytes]) -> bytes:
    code = _code_point(match[0])
    if code > 0x10FFFF:
        raise TokenizerError(f"bytes {match[0].hex(' ')} at {match.start()} stand for U+{code:X}, beyond U+10FFFF")
    return chr(code).encode("utf-8", "surrogatepass")


# Length of a character by its first byte alone.
LENGTHS = bytes([1] * 0xC0 + [2] * 0x20 + [3] * 0x10 + [4] * 0x10)
_LENIENT_CHARACTER = re.compile(rb"[\x00-\xbf]|[\xc0-\xdf].?|[\xe0-\xef].{0,2}|[\xf0-\xff].{0,3}", re.DOTALL)


def characters(data: bytes) -> list[bytes]:
    """Cut text into characters by their first bytes alone, whatever follows; joined they are the text."""
    return _LENIENT_CHARACTER.findall(data)


def encode(code: int) -> bytes:
    """Return a code point as UTF-8, surrogates included."""
    return chr(code).encode("utf-8", "surrogatepass")


Span: TypeAlias = tuple[int, int]


def byte_spans(data: bytes) -> list[Span]:
    """Where each byte is."""
    return [(i, i + 1) for i in range(len(data))]


def sources(data: bytes, rewrite: Callable[[int], bytes]) -> list[Span]:
    """Which bytes of ``data`` each byte stands for when every code point is rewritten."""
    codes, starts = code_points(data)
    ends = [*starts[1:].tolist(), len(data)]
    spans = zip(codes.tolist(), starts.tolist(), ends, strict=True)
    return [(start, end) for code, start, end in spans for _ in rewrite(code)]


def character_at(data: bytes, start: int) -> bytes | None:
    """Return the complete character that begins at ``start``; None if there is none."""
    match = _CHARACTER.match(data, start)
    if match is None or (len(match[0]) == 1 and match[0][0] >= 0x80):
        return None
    return match[0]
