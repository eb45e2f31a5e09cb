"""The byte alphabet of GPT-2: every byte is written as one printable character.

Vocabularies of byte-level BPE are JSON text, so their makers gave each of the 256 bytes a letter: printable Latin-1
characters stand for themselves, the other 68 bytes are U+0100, U+0101, ... in order; a space is ``Ġ``, a newline ``Ċ``.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from minillama.tokenizer import utf8


def _letters() -> list[str]:
    itself = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in itself else next(others)) for byte in range(256)]


LETTERS: tuple[bytes, ...] = tuple(letter.encode() for letter in _letters())
_BYTES = {letter: byte for byte, letter in enumerate(_letters())}


def byte_table() -> npt.NDArray[np.int16]:
    """Byte of every letter below U+0200: -1 for a space, -2 for what is no letter."""
    table = np.full(0x200, -2, np.int16)
    table[0x20] = -1
    for letter, byte in _BYTES.items():
        table[ord(letter)] = byte
    return table


def spell(data: bytes) -> list[bytes]:
    """Letters of the bytes, each as UTF-8."""
    return [LETTERS[byte] for byte in data]


def unspell(text: bytes) -> bytes:
    """Bytes that ``text`` (letters as UTF-8) stands for.

    A character outside the alphabet becomes ``[UNK_BYTE_0x..text]`` with its hexadecimal UTF-8, as in llama.cpp.
    """
    try:
        return bytes(_BYTES[letter] for letter in text.decode())
    except (KeyError, UnicodeDecodeError):
        letters = utf8.replace_invalid(text).decode("utf-8", "surrogatepass")
        return b"".join(_unspell_letter(letter, text) for letter in letters)


def _unspell_letter(letter: str, text: bytes) -> bytes:
    if letter in _BYTES:
        return bytes([_BYTES[letter]])
    return b"[UNK_BYTE_0x" + letter.encode("utf-8", "surrogatepass").hex().encode() + text + b"]"
