"""Cutting text at special tokens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minillama.tokenizer.special import SpecialSplitter, SpecialToken


def pieces_of(splitter: SpecialSplitter, data: bytes) -> list[bytes | int]:
    """Text between special tokens, and their ids."""
    fragments = splitter.split(data)
    return [data[start:end] if token is None else token for start, end, token in fragments]


def split(texts: list[str], data: str) -> list[bytes | int]:
    splitter = SpecialSplitter(SpecialToken(i, text.encode()) for i, text in enumerate(texts))
    return pieces_of(splitter, data.encode())


def test_nothing_and_no_special_token() -> None:
    assert split(["<s>"], "") == []
    assert split(["<s>"], "a") == [b"a"]
    assert split([], "a") == [b"a"]


def test_text_around_and_between() -> None:
    assert split(["<s>", "</s>"], "<s>a</s><s>") == [0, b"a", 1, 0]


def test_the_longest_token_goes_first_wherever_it_is() -> None:
    assert split(["ab", "bcd"], "abcd") == [b"a", 1]
    assert split(["  ", "   "], " " * 5) == [1, 0]
    assert split(["a", "abc", "bcde"], "abcde") == [0, 2]


def test_of_equally_long_ones_the_lower_id_goes_first() -> None:
    assert split(["ab", "ba"], "bab") == [b"b", 0]
    assert split(["ba", "ab"], "bab") == [0, b"b"]


def test_occurrences_do_not_overlap() -> None:
    assert split(["aa"], "aaa") == [0, b"a"]


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        (False, False, [b" a \n", 0, b" \t", 0, b" b "]),
        (True, False, [b" a", 0, 0, b" b "]),
        (False, True, [b" a \n", 0, 0, b"b "]),
        (True, True, [b" a", 0, 0, b"b "]),
    ],
)
def test_stripping(left: bool, right: bool, expected: list[bytes | int]) -> None:
    splitter = SpecialSplitter([SpecialToken(0, b"<m>", strip_left=left, strip_right=right)])
    assert pieces_of(splitter, b" a \n<m> \t<m> b ") == expected


def test_stripping_leaves_non_ascii_spaces() -> None:
    splitter = SpecialSplitter([SpecialToken(0, b"<m>", strip_left=True)])
    assert pieces_of(splitter, "\u3000<m>".encode()) == ["\u3000".encode(), 0]


@given(st.lists(st.text("ab<", min_size=1, max_size=4), unique=True, max_size=5), st.text("ab<c", max_size=40))
def test_without_stripping_the_pieces_make_up_the_text(texts: list[str], data: str) -> None:
    pieces = split(texts, data)
    assert "".join(texts[piece] if isinstance(piece, int) else piece.decode() for piece in pieces) == data
    assert not any(text in piece.decode() for piece in pieces if isinstance(piece, bytes) for text in texts)


def test_many_tokens_in_100_kb() -> None:
    texts = [f"<|reserved_{i}|>" for i in range(300)]
    data = "<|reserved_" * 5_000 + "<|reserved_7|>x" * 3_000
    assert split(texts, data)[1:] == [7, b"x"] * 3_000
