"""Cutting text into words: examples by hand, and the `regex` library with the published patterns as an oracle."""

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from minillama.errors import UnsupportedError
from minillama.tokenizer import patterns
from minillama.tokenizer.patterns import pre_tokenization
from minillama.tokenizer.unicode_classes import (
    HAN_LETTER,
    HAN_OTHER,
    LETTER,
    MARK,
    NUMBER,
    OTHER,
    PUNCTUATION,
    SPACE,
    SYMBOL,
    class_table,
    fold,
)

_PUBLISHED = {
    "gpt-2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "llama-bpe": (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+"
    ),
    "qwen2": (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+"
    ),
}
# Characters whose class no Unicode version has changed; without U+017F, which (?i:'s) matches in `regex` only.
_LETTERS = st.sampled_from("abstmdrevlSTMDREVLÀéßжΩא中あ한\u0301\u0e31')!?.-_+<$€™😀\x00\x04\u200b\ufffd")
_OTHERS = st.sampled_from("0129٣½Ⅷ \t\n\r\x0b\x0c\x1c\x85\xa0\u2028\u3000'")
_TEXTS = st.text(_LETTERS | _OTHERS, max_size=40)


def words(pre: str, text: str) -> list[str]:
    return [word.decode() for word in pre_tokenization(pre).pre_tokenizer.split(text.encode())]


@pytest.mark.parametrize("pre", sorted(_PUBLISHED))
@given(text=_TEXTS)
def test_words_equal_the_published_pattern(pre: str, text: str) -> None:
    assert words(pre, text) == regex.findall(_PUBLISHED[pre], text)


@given(text=_TEXTS)
def test_smollm_is_gpt2_between_single_digits(text: str) -> None:
    between = regex.split(r"(\p{N})", text)
    expected = [word for part in between for word in regex.findall(_PUBLISHED["gpt-2"], part)]
    assert words("smollm", text) == expected


@pytest.mark.parametrize(
    ("pre", "text", "expected"),
    [
        ("llama-bpe", "x\n\n", ["x", "\n\n"]),
        ("llama-bpe", "\n\n\n\n", ["\n\n\n\n"]),
        ("llama-bpe", "a  \n \n  b", ["a", "  \n \n", " ", " b"]),
        ("llama-bpe", "a   ", ["a", "   "]),
        ("llama-bpe", "!\r\n\r\n ", ["!\r\n\r\n", " "]),
        ("llama-bpe", "12345", ["123", "45"]),
        ("llama-bpe", "I'LL", ["I", "'LL"]),
        ("llama-bpe", "'ſ", ["'ſ"]),
        ("llama-bpe", "\tif", ["\tif"]),
        ("qwen2", "12345", ["1", "2", "3", "4", "5"]),
        ("qwen2", "->", ["->"]),
        ("qwen2", "(x):\n", ["(x", "):\n"]),
        ("gpt-2", "12345 6", ["12345", " 6"]),
        ("gpt-2", "a\n\n\nb", ["a", "\n\n", "\n", "b"]),
        ("gpt-2", "I'LL", ["I", "'", "LL"]),
        ("gpt-2", "e\u0301", ["e", "\u0301"]),
        ("smollm", "a   12", ["a", "   ", "1", "2"]),
        ("smollm", "½ ٣", ["½", " ", "٣"]),
        ("default", "a-b 1234!?", ["a", "-", "b", " ", "123", "4", "!?"]),
        ("default", " 12", [" ", "12"]),
    ],
)
def test_words_by_hand(pre: str, text: str, expected: list[str]) -> None:
    assert words(pre, text) == expected


@pytest.mark.parametrize("ending", ["s", "t", "m", "d", "re", "ve", "ll"])
def test_contractions(ending: str) -> None:
    upper = ending.upper()
    for pre in ("llama-bpe", "qwen2"):
        assert words(pre, f"I'{ending}x I'{upper}x") == ["I", f"'{ending}", "x", " I", f"'{upper}", "x"]
    for pre in ("gpt-2", "smollm"):
        assert words(pre, f"I'{ending}x I'{upper}x") == ["I", f"'{ending}", "x", " I", "'", f"{upper}x"]


@pytest.mark.parametrize("pre", sorted(patterns._PATTERNS))
@given(data=st.binary(max_size=40) | _TEXTS.map(str.encode))
def test_nothing_is_lost(pre: str, data: bytes) -> None:
    assert b"".join(pre_tokenization(pre).pre_tokenizer.split(data)) == data


@pytest.mark.parametrize("pre", sorted(patterns._PATTERNS))
@pytest.mark.parametrize("unit", [" ", "\n", " \n", "\r\n", "a", "7", "!", "'", "'s ", " é", "漢\u3000"])
def test_100_kb_of_one_thing(pre: str, unit: str) -> None:
    text = unit * (100_000 // len(unit))
    assert "".join(words(pre, text)) == text


@pytest.mark.parametrize("alias", ["llama3", "llama-v3", "falcon3", "pixtral"])
def test_aliases_of_llama_bpe(alias: str) -> None:
    assert pre_tokenization(alias) is pre_tokenization("llama-bpe")


@pytest.mark.parametrize("name", ["my-own", "", "LLAMA3"])
def test_unknown_name_lists_the_known_ones(name: str) -> None:
    with pytest.raises(UnsupportedError, match=rf"pre-tokenizer '{name}'.*gpt-2.*llama-bpe.*qwen2.*smollm"):
        pre_tokenization(name)


def test_classes_of_a_few_code_points() -> None:
    expected = {
        "é": LETTER,
        "漢": HAN_LETTER,
        "\ufa6e": HAN_OTHER,
        "ª": LETTER,
        "½": NUMBER,
        "٣": NUMBER,
        "。": PUNCTUATION,
        "€": SYMBOL,
    }
    expected |= {"\u0301": MARK, "\x85": SPACE, "\u3000": SPACE, "\u200b": OTHER, "\U0010ffff": OTHER, "\ud800": OTHER}
    assert {letter: class_table()[ord(letter)] for letter in expected} == expected


def test_the_regex_library_cuts_by_a_newer_unicode_than_llama_cpp() -> None:
    """Why patterns run on folded classes: docs/adr/0004-fewer-dependencies.md."""
    text = "a\U00013460b"  # a letter since Unicode 16; llama.cpp's tables are those of 15.1
    assert regex.findall(_PUBLISHED["gpt-2"], text) == [text]
    assert words("gpt-2", text) == ["a", "\U00013460", "b"]


def test_folding_keeps_ascii_and_counts_stray_bytes_as_replacement_characters() -> None:
    folded, starts = fold("aé\n".encode() + b"\xe6\xad\xff")
    assert folded == bytes([ord("a"), LETTER, ord("\n"), SYMBOL, SYMBOL, SYMBOL])
    assert list(starts) == [0, 1, 3, 4, 5, 6, 7]


def test_overlong_forms_and_surrogates_are_one_character() -> None:
    folded, starts = fold(b"\xc1\x81\xed\xa0\x80\xf7\xbf\xbf\xbf")
    assert folded == bytes([ord("A"), OTHER, OTHER])
    assert list(starts) == [0, 2, 5, 9]
