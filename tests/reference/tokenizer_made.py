"""Vocabularies of kinds that no file at hand has, made from substrings of texts."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import numpy as np

from minillama import gguf
from minillama.tokenizer.bytes_alphabet import LETTERS
from minillama.tokenizer.patterns import BY_NAME, PreTokenization
from tests.reference import tokenizer_texts

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
_BYTES = [f"<0x{value:02X}>" for value in range(256)]


def _substrings(rng: random.Random, n: int, longest: int) -> list[str]:
    texts = [text for text in tokenizer_texts.valid_texts([]) if 1 < len(text) < 1000]
    found: dict[str, None] = {}
    while len(found) < n:
        text = rng.choice(texts)
        start = rng.randrange(len(text))
        found[text[start : start + rng.randint(1, longest)]] = None
    return [text for text in found if text and "\0" not in text]


def _rwkv() -> dict[str, Any]:
    """Bytes and longer strings of them, escaped; ``<s>`` is a control token."""
    rng = random.Random(1)
    cut = {text.encode()[rng.randrange(2) :] for text in _substrings(rng, 6000, 6)} - {b""}
    strings = [bytes([value]) for value in range(256)] + sorted(text for text in cut if len(text) > 1)
    tokens = ["<s>", *("".join(_rwkv_escaped(byte) for byte in text) for text in strings), "[PAD1]"]
    types = [CONTROL] + [NORMAL] * len(strings) + [UNUSED]
    return {"model": "rwkv", "tokens": tokens, "token_type": types}


def _rwkv_escaped(byte: int) -> str:
    named = {0x09: "\\t", 0x0A: "\\n", 0x0D: "\\r", 0x5C: "\\\\"}
    return named.get(byte) or (chr(byte) if 0x20 <= byte < 0x7F else f"\\x{byte:02x}")


def _plamo2() -> dict[str, Any]:
    rng = random.Random(2)
    special = ["<|plamo:unk|>", "<|plamo:bos|>", "<|plamo:eos|>", "<|plamo:pad|>", "</s>"]
    words = [text for text in _substrings(rng, 8000, 7) if text not in special]
    types = [UNKNOWN, CONTROL, CONTROL, CONTROL, NORMAL] + [BYTE] * 256 + [NORMAL] * len(words)
    scores = [0.0] * (len(special) + 256) + [round(rng.uniform(-20, -1), 3) for _ in words]
    return {"model": "plamo2", "tokens": [*special, *_BYTES, *words], "token_type": types, "scores": scores}


def _unigram() -> dict[str, Any]:
    """Scores with few digits, so that many cuts have equal sums, and user-defined tokens."""
    rng = random.Random(3)
    special = ["<pad>", "</s>", "<unk>", "<extra_id_0>", "<extra_id_12>", "usér"]
    words = list(dict.fromkeys(text.replace(" ", "▁") for text in _substrings(rng, 8000, 6)))
    types = [CONTROL, CONTROL, UNKNOWN, USER_DEFINED, USER_DEFINED, USER_DEFINED] + [NORMAL] * len(words)
    scores = [0.0] * len(special) + [-float(rng.randint(1, 60)) / 10 for _ in words]
    return {
        "model": "t5", "tokens": special + words, "token_type": types, "scores": scores, "add_space_prefix": True,
    }  # fmt: skip


def _raw_bpe(model: str, pre: str) -> dict[str, Any]:
    """Merges over UTF-8, without the byte alphabet."""
    rng = random.Random(4)
    escape = BY_NAME[pre].escape_spaces
    words = [text.replace(" ", "▁") if escape else text.replace(" ", "") for text in _substrings(rng, 6000, 6)]
    merges: dict[str, None] = {}
    tokens: dict[str, None] = dict.fromkeys(["<pad>", "<eos>", "<bos>", "<unk>", *_BYTES, "\n\n", "\n\n\n"])
    for word in words:
        tokens.update(dict.fromkeys(word))
        for end in range(2, len(word) + 1):
            tokens[word[:end]] = None
            merges[f"{word[: end - 1]} {word[end - 1]}"] = None
    lines = [line for line in merges if " " not in line.strip() or line.count(" ") == 1]
    rng.shuffle(lines)
    texts = [text for text in tokens if text]
    special = {"<pad>": CONTROL, "<eos>": CONTROL, "<bos>": CONTROL, "<unk>": UNKNOWN} | dict.fromkeys(_BYTES, BYTE)
    return {
        "model": model, "pre": pre, "tokens": texts, "token_type": [special.get(text, NORMAL) for text in texts],
        "merges": lines, "bos_token_id": texts.index("<bos>"), "eos_token_id": texts.index("<eos>"),
    }  # fmt: skip


def pairs(pre: str, model: str = "gpt2", added: tuple[str, ...] = ()) -> dict[str, Any]:
    """Every pair of bytes is a token, in shuffled order of rank: ids show where words begin and end."""
    letters = [letter.decode() for letter in LETTERS]
    joined = list(itertools.product(letters, letters))
    random.Random(5).shuffle(joined)
    tokens = [*letters, *("".join(pair) for pair in joined), *added, "<|x|>"]
    types = [NORMAL] * (len(tokens) - 1) + [CONTROL]
    return {
        "model": model, "pre": pre, "tokens": tokens, "token_type": types, "merges": [" ".join(p) for p in joined],
        "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip


def _dna() -> dict[str, Any]:
    bases = ["".join(kmer) + "\ue000" for kmer in itertools.product("ACGT", repeat=6)]
    return pairs("gpt-2", "hybriddna", ("<dna>", "</dna>", "<oov>", *bases))


MADE = {
    "rwkv": _rwkv,
    "plamo2": _plamo2,
    "unigram": _unigram,
    "hybriddna": _dna,
    "whitespace": lambda: _raw_bpe("whitespace", "whitespace"),
    "gemma4-merges": lambda: _raw_bpe("gpt2", "granite-embed-multi-311m"),
    "sarvam-merges": lambda: _raw_bpe("gpt2", "sarvam-moe"),
}


def byte_level_pres() -> dict[PreTokenization, str]:
    """One value of ``tokenizer.ggml.pre`` for each kind of pre-tokenization in the byte alphabet."""
    return {pre: name for name, pre in reversed(BY_NAME.items()) if pre.byte_letters}


def write(path: Path, values: dict[str, Any]) -> Path:
    """Write a vocabulary-only file; ``values`` are keys under ``tokenizer.ggml``."""
    with gguf.Writer(path, "llama") as writer:
        for key, value in values.items():
            array = np.array(value, np.float32) if key == "scores" else value
            writer.add(f"tokenizer.ggml.{key}", np.array(value, np.int32) if key == "token_type" else array)
    return path
