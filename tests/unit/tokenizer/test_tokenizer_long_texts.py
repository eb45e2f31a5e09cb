"""Long texts are cut and merged in compiled code; plain Python is the oracle."""

import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from test_tokenizer_families import SPM, SPM_TOKENS, UNIGRAM_SPECIAL, UNIGRAM_TOKENS, make
from toy_charsmap import charsmap_of
from toy_vocabulary import LETTER_TEXTS, USER_DEFINED, toy_metadata

from minillama.errors import TokenizerError
from minillama.kernels import merging, trie, unigram, words
from minillama.tokenizer import Tokenizer, patterns, pretokenize, text_model
from minillama.tokenizer import unigram as plain_unigram

_PIECES = st.sampled_from(
    ["hello", " wor", "\n", "\n\n", " ", "  ", "12", "3", "'s", "'LL", "!", "é", "漢", "\u0301", "½", "\r\n", "\t", "a"]
)
_TEXTS = st.lists(_PIECES | st.text(max_size=3), max_size=30).map("".join)
_STYLED = ["gpt-2", "llama-bpe", "qwen2", "qwen35", "ufakzeka", "laguna", "minicpm5", "smollm", "default"]
_STYLED += ["falcon", "superbpe", "viking"]


@pytest.fixture
def always_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_model, "LONG_TEXT", 0)
    monkeypatch.setattr(pretokenize, "LONG_TEXT", 0)
    monkeypatch.setattr(plain_unigram, "LONG_TEXT", 0)


def both_ways(tokenizer: Tokenizer, text: str | bytes) -> None:
    """Assert that compiled code finds the ids that the pieces in plain Python have."""
    plain = tokenizer.encode_with_offsets(text, add_special=False).ids
    assert tokenizer.encode(text, add_special=False) == plain
    assert tokenizer.count(text, add_special=False) == len(plain)


@pytest.mark.parametrize("name", _STYLED)
@settings(deadline=None)  # the first call compiles
@given(text=_TEXTS)
def test_words(name: str, text: str) -> None:
    pre_tokenizer = patterns.pre_tokenization(name).pre_tokenizer
    plain = pre_tokenizer.ends(text.encode()).tolist()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(pretokenize, "LONG_TEXT", 0)
        assert pre_tokenizer.ends(text.encode()).tolist() == plain


_TOY = {pre: Tokenizer.from_metadata(toy_metadata(pre=pre)) for pre in ("gpt-2", "llama-bpe")}


@pytest.mark.parametrize("tokenizer", [*_TOY.values(), SPM], ids=["gpt-2", "llama-bpe", "llama"])
@settings(deadline=None)  # the first call compiles
@given(text=_TEXTS | st.binary(max_size=40))
def test_merges(tokenizer: Tokenizer, text: str | bytes) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(text_model, "LONG_TEXT", 0)
        both_ways(tokenizer, text)


# Strings that repeat themselves, so that many pairs of one rank wait, in several words.
_REPETITIVE = st.lists(st.tuples(st.text("abc", min_size=1, max_size=4), st.integers(1, 40)), max_size=8).map(
    lambda parts: " ".join(unit * n for unit, n in parts)
) | st.text("abc ", max_size=200)


@st.composite
def merge_lists(draw: st.DrawFn) -> list[tuple[str, str]]:
    """Merges of letters and of what other merges make, in any order."""
    symbols, pairs = list("abc"), []
    for _ in range(draw(st.integers(1, 20))):
        pairs.append((draw(st.sampled_from(symbols)), draw(st.sampled_from(symbols))))
        symbols.append("".join(pairs[-1]))
    return draw(st.permutations(pairs))


@settings(deadline=None, max_examples=300)  # the first call compiles
@given(_REPETITIVE, merge_lists())
@example("aaabc", [("a", "a"), ("b", "c"), ("a", "bc")])  # a pair waits whose left symbol is merged away
def test_merges_of_any_vocabulary(text: str, pairs: list[tuple[str, str]]) -> None:
    tokens = list(dict.fromkeys([*LETTER_TEXTS, *("".join(pair) for pair in pairs)]))
    tokenizer = Tokenizer.from_metadata(toy_metadata(tokens, [" ".join(pair) for pair in pairs]))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(text_model, "LONG_TEXT", 0)
        both_ways(tokenizer, text)


@settings(deadline=None, max_examples=300)  # the first call compiles
@given(
    _REPETITIVE,
    st.dictionaries(st.text("abc▁", min_size=2, max_size=5), st.sampled_from([-1.0, -2.0, -3.0]), max_size=30),
)
@example("aaaaaa", {"aa": -1.0, "aaa": -1.0})  # a pair joins those of its rank in front of them
def test_scores_with_ties(text: str, scores: dict[str, float]) -> None:
    tokens = {**SPM_TOKENS, "a": -9.0, "b": -9.0, "c": -9.0, **scores}
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": list(tokens),
        "tokenizer.ggml.scores": np.array(list(tokens.values()), np.float32),
    }
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(text_model, "LONG_TEXT", 0)
        both_ways(Tokenizer.from_metadata(metadata), text)


_REPLACED = {b"A": b"a", "Á".encode(): b"a b", b"bc": b"", b"b": b"b", "☃".encode(): " é".encode(), b"\xff": b"x"}


def unigram_of(words: dict[str, float], **keys: Any) -> Tokenizer:
    special = {**UNIGRAM_SPECIAL, "Ax": USER_DEFINED, "bb c": USER_DEFINED}
    tokens = {**UNIGRAM_TOKENS, **dict.fromkeys(special, 0.0), **words}
    return make("t5", tokens, special, precompiled_charsmap=charsmap_of(_REPLACED), **keys)


@settings(deadline=None, max_examples=300)  # the first call compiles
@given(
    st.text("abcAÁ☃éx ", max_size=60) | st.binary(max_size=20) | st.lists(st.sampled_from(["Ax", "bb c", "a", "☃"])),
    st.dictionaries(st.text("abcé▁", min_size=1, max_size=4), st.sampled_from([-1.1, -1.7, -2.3, -3.1]), max_size=12),
    st.booleans(),
    st.booleans(),
)
@example(b"\xf8\x80\x80\x80\x80 \xc3", {}, True, False)
@example("aab", {"aa": -1.0, "ab": -1.0, "a": -0.5, "b": -0.5}, True, False)  # of equal sums the first stays
def test_unigram(text: str | bytes | list[str], words: dict[str, float], prefix: bool, merge_runs: bool) -> None:
    tokenizer = unigram_of(words, add_space_prefix=prefix, remove_extra_whitespaces=merge_runs)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(plain_unigram, "LONG_TEXT", 0)
        both_ways(tokenizer, "".join(text) if isinstance(text, list) else text)


def test_unigram_is_compiled_once_there_has_been_enough_text() -> None:
    tokenizer = unigram_of({"ab": -1.0})
    for _ in range(3):
        both_ways(tokenizer, "ab ☃ " * 3000)
    assert "_table" in vars(tokenizer._text_model)


@pytest.mark.usefixtures("always_long")
@pytest.mark.parametrize(
    ("words", "changes", "message"),
    [
        ({"a": -1.0, "b": -1.0}, {"add_eos_token": False}, "the vocabulary has no unknown token"),
        (UNIGRAM_TOKENS, {"precompiled_charsmap": charsmap_of(_REPLACED)[:-1]}, "no replacement at"),
        (UNIGRAM_TOKENS, {"precompiled_charsmap": charsmap_of(_REPLACED, n_nodes=300)}, "is beyond the trie's"),
    ],
)
def test_compiled_unigram_refuses_what_the_plain_one_refuses(
    words: dict[str, float], changes: dict[str, Any], message: str
) -> None:
    tokenizer = make("t5", words, UNIGRAM_SPECIAL, **changes)
    with pytest.raises(TokenizerError, match=message):
        tokenizer.encode("a☃Á é".encode() + b"\xff")


@pytest.mark.usefixtures("always_long")
def test_words_that_compiled_code_declines(caplog: pytest.LogCaptureFixture) -> None:
    tokens = [*LETTER_TEXTS[:4], *LETTER_TEXTS[5:]]
    tokenizer = Tokenizer.from_metadata(toy_metadata(tokens, []))
    with caplog.at_level(logging.WARNING):
        both_ways(tokenizer, "a\x04b \x04 c")
    assert "no token for" in caplog.text


@pytest.mark.parametrize("unit", ["a", " ", "ab", "\n", "é", "hello "])
@pytest.mark.parametrize("tokenizer", [_TOY["gpt-2"], _TOY["llama-bpe"], SPM], ids=["gpt-2", "llama-bpe", "llama"])
def test_200_kb_of_one_thing(tokenizer: Tokenizer, unit: str) -> None:
    text = unit * (200_000 // len(unit.encode()))
    assert tokenizer.decode(tokenizer.encode(text, add_special=False)) == text


def test_kernels_are_compiled_for_one_set_of_types() -> None:
    for tokenizer in (*_TOY.values(), SPM, unigram_of({})):
        tokenizer.encode("hello wor " * 5000)
    compiled = {
        name: len(kernel.signatures)
        for module in (merging, words, trie, unigram)
        for name, kernel in vars(module).items()
        if hasattr(kernel, "signatures")
    }
    assert max(compiled.values()) == 1, compiled  # none where it is part of one that was kept


def test_kernels_touch_no_byte_outside_their_arrays() -> None:
    script = Path(__file__).with_name("guarded_merging.py")
    subprocess.run([sys.executable, str(script)], check=True, timeout=300)
