"""Merging: order of merges, what becomes of symbols that are no tokens, and how the work grows."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_vocabulary import LETTER_TEXTS

from minillama.tokenizer.bpe import BytePairEncoding
from minillama.tokenizer.bytes_alphabet import LETTERS, spell, unspell
from minillama.tokenizer.patterns import pre_tokenization


class CountingRanks(dict[bytes, int]):
    """Counts how often a pair is looked up."""

    lookups = 0

    def get(self, key, default=None):
        self.lookups += 1
        return super().get(key, default)


def bpe(merges: list[str], *, extra: list[str] | None = None, pre: str = "gpt-2") -> tuple[BytePairEncoding, list[str]]:
    """A model whose tokens are the letters and ``extra`` (by default all merge results), and its tokens."""
    results = [merge.replace(" ", "") for merge in merges] if extra is None else extra
    texts = list(dict.fromkeys([*LETTER_TEXTS, *results]))
    ids = {text.encode(): i for i, text in enumerate(texts)}
    return BytePairEncoding(ids, [merge.encode() for merge in merges], pre_tokenization(pre)), texts


def pieces(model: tuple[BytePairEncoding, list[str]], text: str) -> list[str]:
    return [model[1][i] for i in model[0].encode(text.encode(), True)]


def merge_by_definition(symbols: list[str], merges: list[str]) -> list[str]:
    """Byte-pair encoding as it is defined: again and again the leftmost pair of the lowest rank."""
    ranks = {tuple(merge.split(" ")): rank for rank, merge in reversed(list(enumerate(merges)))}
    while True:
        found = [(ranks[pair], i) for i, pair in enumerate(itertools.pairwise(symbols)) if pair in ranks]
        if not found:
            return symbols
        _, i = min(found)
        symbols = [*symbols[:i], symbols[i] + symbols[i + 1], *symbols[i + 2 :]]


def test_lower_rank_goes_first() -> None:
    assert pieces(bpe(["b c", "a b"]), "abc") == ["a", "bc"]
    assert pieces(bpe(["a b", "b c"]), "abc") == ["ab", "c"]


def test_of_equal_pairs_the_leftmost_goes_first() -> None:
    assert pieces(bpe(["a a"]), "aaaaa") == ["aa", "aa", "a"]


def test_a_merge_can_enable_one_of_lower_rank() -> None:
    assert pieces(bpe(["ab c", "a b", "abc d", "b c"]), "abcd") == ["abcd"]


def test_of_equal_merge_lines_the_first_counts() -> None:
    assert pieces(bpe(["a b", "b c", "a b"]), "abc") == ["ab", "c"]


@pytest.mark.parametrize("line", ["ab", " a b", "a b c", "a  b", " "])
def test_malformed_merge_lines_match_nothing(line: str) -> None:
    assert pieces(bpe([line], extra=["ab", "abc"]), "abc") == ["a", "b", "c"]


def test_merged_symbol_that_is_no_token_falls_apart_into_its_ascii_letters() -> None:
    # llama.cpp looks up the single bytes of the spelled symbol: those of "Ġ" (C4 A0) are no tokens and vanish.
    assert pieces(bpe(["a b"], extra=[]), "ab") == ["a", "b"]
    assert pieces(bpe(["Ġ a"], extra=[]), " a") == ["a"]


def test_byte_without_a_token_is_dropped_as_in_llama_cpp(caplog: pytest.LogCaptureFixture) -> None:
    texts = [*LETTER_TEXTS[:4], *LETTER_TEXTS[5:]]
    model = BytePairEncoding({text.encode(): i for i, text in enumerate(texts)}, [], pre_tokenization("gpt-2"))
    assert model.encode(b"a\x04b", True) == [texts.index("a"), texts.index("b")]
    assert caplog.messages == ["no token for b'\\x04' in this vocabulary: dropped, as in llama.cpp"]


def test_whole_words_win_over_merges_only_with_ignore_merges() -> None:
    merges, extra = ["a b"], ["ab", "abc"]
    assert pieces(bpe(merges, extra=extra, pre="gpt-2"), "abc") == ["ab", "c"]
    assert pieces(bpe(merges, extra=extra, pre="llama-bpe"), "abc") == ["abc"]


@given(
    st.text("abc", max_size=24),
    st.lists(st.tuples(st.text("abc", min_size=1, max_size=3), st.text("abc", min_size=1, max_size=3)), max_size=12),
)
def test_merging_equals_the_definition(word: str, pairs: list[tuple[str, str]]) -> None:
    merges = [f"{left} {right}" for left, right in pairs]
    assert pieces(bpe(merges), word) == (merge_by_definition(list(word), merges) if word else [])


@pytest.mark.parametrize("letter", ["a", "é", "漢"])
def test_work_on_one_word_grows_linearly(letter: str) -> None:
    def lookups(n: int) -> int:
        model, _ = bpe(["a a", "aa aa", "aaaa aaaa", "Ã ©", "Ã© Ã©"])
        model._ranks = CountingRanks(model._ranks)
        model.encode((letter * n).encode(), True)
        return model._ranks.lookups

    assert lookups(8000) <= 4.1 * lookups(2000)


def test_a_word_of_100_kb() -> None:
    assert pieces(bpe(["a a", "aa aa"]), "a" * 100_001) == ["aaaa"] * 25_000 + ["a"]


def test_the_alphabet_has_a_letter_for_every_byte() -> None:
    assert len(set(LETTERS)) == 256
    assert [LETTERS[byte].decode() for byte in b" \n\t\x00A~\x7f\xad\xff"] == list("ĠĊĉĀA~ġŃÿ")
    assert b"".join(spell("né\n".encode())) == "nÃ©Ċ".encode()


@given(st.binary())
def test_unspelling_inverts_spelling(data: bytes) -> None:
    assert unspell(b"".join(spell(data))) == data


def test_letters_outside_the_alphabet_are_shown_as_llama_cpp_shows_them() -> None:
    assert unspell("a中".encode()) == "a[UNK_BYTE_0xe4b8ada中]".encode()
    assert unspell(b"a\xff") == b"a[UNK_BYTE_0xefbfbda\xff]"
