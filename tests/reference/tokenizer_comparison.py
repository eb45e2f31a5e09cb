"""Our ids and llama.cpp's for many texts of one vocabulary, and what explains a difference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from minillama.errors import TokenizerError
from minillama.hub import local_models, pull
from minillama.tokenizer import TokenAttribute, Tokenizer
from tests.reference import tokenizer_texts
from tests.reference.tokenizer_live import Request, llama_cpp_ids
from tests.reference.tokenizer_vocabs import ensure_vocabs

# Vocabulary-only files of llama.cpp, and the pre-tokenizer to ask for where the file names none.
VOCABS: dict[str, str | None] = {
    "aquila": "default", "baichuan": None, "bert-bge": None, "command-r": None, "deepseek-coder": None,
    "deepseek-llm": None, "falcon": None, "gemma-4": None, "gpt-2": None, "gpt-neox": "default", "llama-bpe": None,
    "llama-spm": None, "mpt": None, "nomic-bert-moe": None, "phi-3": None, "qwen2": None, "qwen35": None,
    "refact": None, "starcoder": None,
}  # fmt: skip
REAL_MODELS = [
    "SmolLM2-135M-Instruct.Q4_1.gguf",
    "gemma-3-270m-q4_k_m.gguf",
    "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
    "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
]
# In these llama.cpp finds control tokens in plain text, with parse_special off; we do not.
_INJECTABLE = ("rwkv", "plamo2")


def vocabulary(name: str) -> tuple[Tokenizer, Path]:
    """Our tokenizer and the file of a vocabulary-only file or a real model, fetched if need be."""
    if name in REAL_MODELS:
        (model,) = [model for model in local_models() if model.path.name == name]
        path = pull(model.name)
    else:
        path = ensure_vocabs() / f"ggml-vocab-{name}.gguf"
    return Tokenizer.from_gguf(path, pre=VOCABS.get(name)), path


def special_texts(tokenizer: Tokenizer) -> list[str]:
    """Up to 40 special tokens, the shortest and the longest among them."""
    kinds = TokenAttribute.UNKNOWN | TokenAttribute.CONTROL | TokenAttribute.USER_DEFINED
    special = [i for i in range(tokenizer.n_vocab) if tokenizer.attributes(i) & kinds]
    texts = sorted((tokenizer.token_text(i) for i in special), key=len)
    return texts[:20] + texts[20:][-20:]


def short_requests(tokenizer: Tokenizer, n: int) -> list[Request]:
    """At least ``n`` texts, in turn as plain text and with special tokens, and bytes that are not UTF-8."""
    texts = [text.encode() for text in tokenizer_texts.valid_texts(special_texts(tokenizer), n=n)]
    requests = [Request(text, i % 2 == 1, i % 2 == 1) for i, text in enumerate(texts)]
    return requests + [
        Request(text, False, parse) for text in tokenizer_texts.broken_texts() for parse in (False, True)
    ]


def long_requests() -> list[Request]:
    """100 KB of one thing each, and the repository's own text."""
    return [Request(text.encode()) for text in tokenizer_texts.long_texts() + tokenizer_texts.repository_texts()]


@dataclass
class Comparison:
    """What came of it.

    Attributes
    ----------
    compared
        Number of texts.
    different
        Differences without an explanation, in words.
    injected
        Texts in which llama.cpp found a control token although it was told not to.
    refused
        Texts that we refuse and on which llama.cpp ends the process.
    died
        Texts on which llama.cpp ends the process and we do not.
    """

    compared: int = 0
    different: list[str] = field(default_factory=list)
    injected: int = 0
    refused: int = 0
    died: int = 0


def compare(tokenizer: Tokenizer, path: Path, requests: Sequence[Request]) -> Comparison:
    """Compare the ids of every request."""
    result = Comparison(compared=len(requests))
    for request, theirs in zip(requests, llama_cpp_ids(path, requests), strict=True):
        try:
            ours = tokenizer.encode(*request, errors="replace")
        except TokenizerError:
            ours = None
        if ours == theirs:
            result.refused += ours is None
        elif theirs is None:
            result.died += 1
        elif ours is not None and _is_injected(tokenizer, request, theirs):
            result.injected += 1
        else:
            result.different.append(f"{request}: ours {_short(ours)}, llama.cpp's {_short(theirs)}")
    return result


def _is_injected(tokenizer: Tokenizer, request: Request, theirs: list[int]) -> bool:
    plain = tokenizer.model in _INJECTABLE and not request.parse_special
    return plain and any(map(tokenizer.is_special, theirs))


def _short(ids: list[int] | None) -> str:
    return str(ids) if ids is None or len(ids) < 50 else f"{ids[:50]}... ({len(ids)})"
