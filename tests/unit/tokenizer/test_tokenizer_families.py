"""SentencePiece, WordPiece, Unigram, RWKV, PLaMo-2 and the hybrids on vocabularies small enough to read."""

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_vocabulary import BYTE, CONTROL, NORMAL, UNKNOWN, USER_DEFINED, toy_metadata

from minillama.errors import TokenizerError
from minillama.tokenizer import Tokenizer
from minillama.tokenizer.charsmap import CharsMap
from minillama.tokenizer.rwkv import unescape
from minillama.tokenizer.spaces import clean_up

BYTES = [f"<0x{value:02X}>" for value in range(256)]


def make(model: str, tokens: dict[str, float], special: dict[str, int] | None = None, **keys: Any) -> Tokenizer:
    """A tokenizer of these tokens (with scores); ``keys`` are further keys under ``tokenizer.ggml``."""
    kinds = dict.fromkeys(BYTES, BYTE) | (special or {})
    values: dict[str, Any] = {
        "model": model,
        "tokens": list(tokens),
        "scores": np.array(list(tokens.values()), np.float32),
        "token_type": [kinds.get(text, NORMAL) for text in tokens],
        **keys,
    }
    return Tokenizer.from_metadata({f"tokenizer.ggml.{key}": value for key, value in values.items()})


SPECIAL = {"<unk>": UNKNOWN, "<s>": CONTROL, "</s>": CONTROL}
WORDS = {"▁": -9.0, "h": -9.0, "e": -9.0, "l": -9.0, "o": -9.0, "he": -2.0, "el": -1.0, "hel": -3.0, "▁h": -4.0}
SPM_TOKENS = dict.fromkeys(SPECIAL, 0.0) | dict.fromkeys(BYTES, 0.0) | WORDS
SPM = make("llama", SPM_TOKENS, SPECIAL)


def pieces(tokenizer: Tokenizer, text: str, **flags: bool) -> list[str]:
    return [tokenizer.token_text(token) for token in tokenizer.encode(text, **{"add_special": False, **flags})]


def test_sentencepiece_merges_the_best_score_first_and_adds_a_space() -> None:
    assert pieces(SPM, "hello") == ["▁", "hel", "l", "o"]
    assert pieces(SPM, "hello", add_special=True)[0] == "<s>"
    assert pieces(SPM, "he</s>he", parse_special=True) == ["▁", "he", "</s>", "▁", "he"]
    assert pieces(SPM, "é h") == ["▁", "<0xC3>", "<0xA9>", "▁h"]


def test_sentencepiece_adds_no_space_if_the_file_says_so() -> None:
    assert pieces(make("llama", SPM_TOKENS, SPECIAL, add_space_prefix=False), "he") == ["he"]


@pytest.mark.parametrize("text", ["hello", "   x", "\n x", "", " ", "a  b", "héllo ☃", "</s>"])
def test_sentencepiece_round_trip_without_a_growing_space(text: str) -> None:
    ids = SPM.encode(text, add_special=False)
    assert SPM.decode(ids) == text
    stream = SPM.stream_decoder()
    assert "".join([*map(stream.push, ids), stream.flush()]) == text
    assert SPM.decode(SPM.encode(text), skip_special=True) == text
    assert SPM.decode(ids, continues=True) == (" " + text if text else "")


@given(st.text(st.sampled_from("helo ▁é☃\n\0") | st.characters(codec="utf-8"), max_size=40))
def test_sentencepiece_round_trip_of_any_text(text: str) -> None:
    encoding = SPM.encode_with_offsets(text, add_special=False)
    assert encoding.ids == SPM.encode(text, add_special=False)
    assert SPM.decode(encoding.ids) == text.replace("▁", " ")
    ends = [0, *(end for _, end in encoding.offsets)]
    assert ends[-1] == len(text)
    assert all(start <= end <= stop for end, (start, stop) in zip(ends, encoding.offsets, strict=False))


@given(st.binary(max_size=40))
def test_sentencepiece_keeps_any_bytes(data: bytes) -> None:
    kept = SPM.decode_bytes(SPM.encode(data, add_special=False))
    assert kept.replace("▁".encode(), b" ") == data.replace("▁".encode(), b" ")


def test_sentencepiece_without_bytes_refuses_what_it_cannot_write() -> None:
    tokenizer = make("llama", dict.fromkeys(SPECIAL, 0.0) | WORDS, SPECIAL)
    with pytest.raises(TokenizerError, match="no token for byte 0xC3"):
        tokenizer.encode("é")


WORDPIECE_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "▁play", "ing", "▁,", "▁die", "▁中", "▁straße", "s"]
WORDPIECE = make(
    "bert", dict.fromkeys(WORDPIECE_TOKENS, 0.0), dict.fromkeys(WORDPIECE_TOKENS[:4], CONTROL), bos_token_id=2,
    seperator_token_id=3, unknown_token_id=1, padding_token_id=0,
)  # fmt: skip


def test_wordpiece() -> None:
    assert pieces(WORDPIECE, "Playing, plays", add_special=True) == [
        "[CLS]", "▁play", "ing", "▁,", "▁play", "s", "[SEP]",
    ]  # fmt: skip
    assert pieces(WORDPIECE, "play中DÍE \x00\ufffd\u0301play") == ["▁play", "▁中", "▁die", "▁play"]
    assert pieces(WORDPIECE, "xyz [CLS]") == ["[UNK]", "[UNK]", "[UNK]", "[UNK]"]
    assert WORDPIECE.detokenize(WORDPIECE.encode("play , play", False)) == b" play, play"


def test_wordpiece_offsets_reach_back_through_lower_case_and_accents() -> None:
    text = "Ünd PLAYÍNG, DÍe"
    encoding = WORDPIECE.encode_with_offsets(text)
    assert [text[start:end] for start, end in encoding.offsets] == ["", "Ünd", "PLAY", "ÍNG", ",", "DÍe", ""]


UNIGRAM_SPECIAL = {"<pad>": CONTROL, "</s>": CONTROL, "<unk>": UNKNOWN, "<x>": USER_DEFINED}
UNIGRAM_TOKENS = {**dict.fromkeys(UNIGRAM_SPECIAL, 0.0), "▁": -3.0, "a": -2.0, "b": -2.0, "ab": -3.5, "▁a": -2.5}


def test_unigram_takes_the_best_sum() -> None:
    tokenizer = make("t5", UNIGRAM_TOKENS, UNIGRAM_SPECIAL, add_space_prefix=True)
    assert pieces(tokenizer, "ab", add_special=True) == ["▁a", "b", "</s>"]
    assert pieces(tokenizer, "a?!b  <x>") == ["▁a", "<unk>", "b", "▁", "▁", "<x>"]
    encoding = tokenizer.encode_with_offsets("a?!b", add_special=False)
    assert encoding.offsets == [(0, 1), (1, 3), (3, 4)]


def test_unigram_merges_spaces_if_the_file_says_so() -> None:
    tokenizer = make("t5", UNIGRAM_TOKENS, UNIGRAM_SPECIAL, add_space_prefix=True, remove_extra_whitespaces=True)
    assert pieces(tokenizer, "  a   b  ") == ["▁a", "▁", "b"]


@pytest.mark.parametrize("kind", [NORMAL, USER_DEFINED])
def test_unigram_never_finds_a_token_without_text(kind: int) -> None:
    tokens = {**UNIGRAM_TOKENS, "": -0.5}
    tokenizer = make("t5", tokens, {**UNIGRAM_SPECIAL, "": kind})
    assert pieces(tokenizer, "ab") == ["ab"]


def charsmap(nodes: list[int], replacements: bytes) -> bytes:
    return struct.pack(f"<I{len(nodes)}I", 4 * len(nodes), *nodes) + replacements


def test_charsmap_replaces_the_longest_string() -> None:
    # The root's base is 256: the child for "A" is at 256 ^ 65, a leaf whose value is at its place ^ its base.
    nodes = [0] * 1024
    nodes[0] = 256 << 10
    nodes[256 ^ 65] = 1 << 10 | 1 << 8 | 65
    nodes[(256 ^ 65) ^ 1] = 1 << 31
    table = CharsMap(np.frombuffer(charsmap(nodes, b"aa\0"), np.uint8))
    assert table.longest(b"xA", 1) == (b"aa", 1)
    assert table.longest(b"xA", 0) is None


@pytest.mark.parametrize("table", [b"", b"\0\0\0", struct.pack("<I", 400) + b"x", struct.pack("<I", 0) + b"x\0"])
def test_charsmap_that_is_cut_short(table: bytes) -> None:
    with pytest.raises(TokenizerError, match="precompiled_charsmap is cut short"):
        CharsMap(np.frombuffer(table, np.uint8))


RWKV = make("rwkv", dict.fromkeys(["<s>", "a", "ab", "abcd", "\\n", "\\xe6\\xad", "\\\\", "<", "s", ">"], 0.0), SPECIAL)


def test_rwkv_takes_the_longest_token() -> None:
    assert pieces(RWKV, "abcab\nabc<s>".replace("c", "")) == ["ab", "ab", "\\n", "ab", "<", "s", ">"]
    assert RWKV.encode(b"\xe6\xad") == [5]
    assert RWKV.decode([4, 6]) == "\n\\"
    assert pieces(RWKV, "<s>", parse_special=True) == ["<s>"]
    with pytest.raises(TokenizerError, match="no token for byte 0x7A"):
        RWKV.encode("z")


def test_rwkv_escapes() -> None:
    assert unescape(rb"\t\n\r\\\x00\'a") == b"\t\n\r\\\0'a"


PLAMO_SPECIAL = {"<|plamo:unk|>": UNKNOWN, "<|plamo:bos|>": CONTROL}
PLAMO = make(
    "plamo2", {**dict.fromkeys([*PLAMO_SPECIAL, *BYTES], 0.0), "a": -2.0, "b": -2.0, "ab": -5.0, "bc": -1.0},
    PLAMO_SPECIAL,
)  # fmt: skip


def test_plamo2_takes_the_best_sum_and_bytes() -> None:
    assert pieces(PLAMO, "ab") == ["a", "b"]
    assert pieces(PLAMO, "abc") == ["a", "bc"]
    assert pieces(PLAMO, "\ufeffaé") == ["a", "<0xC3>", "<0xA9>"]
    assert PLAMO.decode(PLAMO.encode("ab☃")) == "ab☃"
    assert not any(map(PLAMO.is_special, PLAMO.encode("<|plamo:bos|>")))
    assert PLAMO.encode("<|plamo:bos|>", parse_special=True) == [1]


def test_dna_is_cut_by_six() -> None:
    added = ["<dna>", "</dna>", "<oov>", "ACGTAC\ue000", "GAAAAA\ue000"]
    letters = toy_metadata()["tokenizer.ggml.tokens"][:256]
    tokenizer = Tokenizer.from_metadata(toy_metadata([*letters, *added], [], model="hybriddna"))
    shown = ["<dna>", "ACGTAC", "<oov>", "GAAAAA", "</dna>", "A"]
    assert [tokenizer.token_text(i) for i in tokenizer.encode("<dna>acgtacNNNNNNg</dna>A", False)] == shown
    assert tokenizer.decode(tokenizer.encode("<dna>ACGTAC", False)) == "<dna>ACGTAC"


def test_whitespace_is_dropped() -> None:
    tokens = ["a", "b", "ab", "é"]
    tokenizer = Tokenizer.from_metadata(toy_metadata(tokens, ["a b"], model="whitespace", pre="whitespace"))
    assert pieces(tokenizer, " ab\n\u3000 b é") == ["ab", "b", "é"]
    encoding = tokenizer.encode_with_offsets(" ab é", add_special=False)
    assert encoding.offsets == [(1, 3), (4, 5)]


def test_tidying_of_spaces() -> None:
    assert clean_up(b"a . b , c ! ? d ' e 's f 'm g 're h 't") == b"a. b, c!? d'e's f'm g're h 't"
