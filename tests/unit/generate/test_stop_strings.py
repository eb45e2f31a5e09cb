"""Stop strings, however the text is cut into tokens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minillama.errors import InvalidInputError
from minillama.generate.stopping import StopStrings

TEXT = st.text(alphabet="ab", max_size=12)
STOPS = st.lists(st.text(alphabet="ab", min_size=1, max_size=4), max_size=3)


def expected(text: str, stops: list[str]) -> str:
    """The text up to where the first complete stop string begins, found by looking at ever longer beginnings."""
    for end in range(len(text) + 1):
        begins = [text[:end].find(stop) for stop in stops if stop in text[:end]]
        if begins:
            return text[: min(begins)]
    return text


@given(TEXT, STOPS, st.data())
def test_any_cut_gives_the_same(text: str, stops: list[str], data: st.DataObject) -> None:
    matcher, shown, rest = StopStrings(stops), [], text
    while rest:
        n = data.draw(st.integers(1, len(rest)))
        shown.append(matcher.push(rest[:n]))
        rest = rest[n:]
    by_letter = StopStrings(stops)
    letters = "".join(by_letter.push(letter) for letter in text) + by_letter.flush()
    assert letters == expected(text, stops)
    whole = "".join(shown) + matcher.flush()
    # A piece that completes two stop strings at once is cut at the one that begins first.
    assert whole == letters or (matcher.found and letters.startswith(whole))


@given(TEXT, STOPS)
def test_shown_text_is_never_taken_back(text: str, stops: list[str]) -> None:
    matcher = StopStrings(stops)
    shown = ""
    for letter in text:
        shown += matcher.push(letter)
        assert expected(text, stops).startswith(shown)


def test_nothing_comes_after_a_stop() -> None:
    matcher = StopStrings(["end"])
    assert matcher.push("the end of it") == "the "
    assert matcher.found
    assert matcher.push("more") == ""
    assert matcher.flush() == ""


def test_without_stop_strings_nothing_is_held_back() -> None:
    assert StopStrings([]).push("abc") == "abc"


@pytest.mark.parametrize("wrong", ["end", [""], [1]])
def test_wrong_stop_strings(wrong: object) -> None:
    with pytest.raises(InvalidInputError, match="a list of non-empty strings"):
        StopStrings(wrong)  # type: ignore[arg-type]
