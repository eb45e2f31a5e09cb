"""A vocabulary small enough to read: 256 byte letters, the results of a few merges, then special tokens."""

from typing import Any

from minillama.tokenizer.bytes_alphabet import LETTERS

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

MERGES = [
    "h e",
    "l l",
    "he ll",
    "hell o",
    "Ġ w",
    "o r",
    "Ġw or",
    "Ċ Ċ",
    "ĊĊ ĊĊ",
    "Ġ Ġ",
    "ĠĠ ĠĠ",
    "a a",
    "aa aa",
    "æ Ń",
    "1 2",
]
SPECIAL = {"<bos>": CONTROL, "<eos>": CONTROL, "<|im_end|>": CONTROL, "<unk>": UNKNOWN, "<user>": USER_DEFINED}
LETTER_TEXTS = [letter.decode() for letter in LETTERS]
TEXTS = [*LETTER_TEXTS, *(merge.replace(" ", "") for merge in MERGES), *SPECIAL]
ID = {text: i for i, text in enumerate(TEXTS)}


def toy_metadata(
    texts: list[str] = TEXTS, merges: list[str] = MERGES, special: dict[str, int] = SPECIAL, **changes: Any
) -> dict[str, Any]:
    """GGUF metadata; ``changes`` are keys under ``tokenizer.ggml.``, and None removes one."""
    values: dict[str, Any] = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": texts,
        "token_type": [special.get(text, NORMAL) for text in texts],
        "merges": merges,
        "bos_token_id": texts.index("<bos>") if "<bos>" in texts else None,
        "eos_token_id": texts.index("<eos>") if "<eos>" in texts else None,
        **changes,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in values.items() if value is not None}


def ids_of(*texts: str) -> list[int]:
    """Ids by token text."""
    return [ID[text] for text in texts]
