"""The public class: encoding, decoding, special tokens, streams, and what it refuses."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_vocabulary import ID, MERGES, SPECIAL, TEXTS, ids_of, toy_metadata

import minillama.gguf
from minillama.errors import TokenizerError, UnsupportedError
from minillama.tokenizer import Tokenizer

TOY = Tokenizer.from_metadata(toy_metadata())
LLAMA_BPE = Tokenizer.from_metadata(toy_metadata(pre="llama-bpe"))
TYPES = toy_metadata()["tokenizer.ggml.token_type"]
BOS, EOS, IM_END = ID["<bos>"], ID["<eos>"], ID["<|im_end|>"]
_PRES = ["gpt-2", "llama-bpe", "qwen2", "smollm"]
_MIXED = st.lists(
    st.sampled_from([*SPECIAL, "hello", " world", "\n", "é", "😀", "<", "|>", "12"]) | st.text(max_size=5)
).map("".join)
_TOKENS = st.lists(st.integers(0, TOY.n_vocab - 1), max_size=40)


def toy(**changes: Any) -> Tokenizer:
    return Tokenizer.from_metadata(toy_metadata(**changes))


@pytest.mark.parametrize("pre", _PRES)
@pytest.mark.parametrize("parse_special", [False, True])
@given(text=_MIXED)
def test_text_round_trip(pre: str, parse_special: bool, text: str) -> None:
    tokenizer = toy(pre=pre)
    assert tokenizer.decode(tokenizer.encode(text, add_special=False, parse_special=parse_special)) == text


@pytest.mark.parametrize("pre", _PRES)
@given(data=st.binary(max_size=60) | _MIXED.map(str.encode))
def test_bytes_round_trip(pre: str, data: bytes) -> None:
    tokenizer = toy(pre=pre)
    assert tokenizer.decode_bytes(tokenizer.encode(data, add_special=False)) == data


@given(_MIXED)
def test_text_and_its_bytes_have_the_same_ids(text: str) -> None:
    assert TOY.encode(text) == TOY.encode(text.encode()) == TOY.encode(text, errors="replace")


@given(_TOKENS, st.booleans())
def test_stream_equals_decoding_at_once(ids: list[int], skip_special: bool) -> None:
    stream = TOY.stream_decoder(skip_special)
    assert "".join([*map(stream.push, ids), stream.flush()]) == TOY.decode(ids, skip_special)


def test_stream_holds_back_half_a_character() -> None:
    stream = TOY.stream_decoder()
    assert [stream.push(token) for token in ids_of("a", "æŃ", "¦", "Ġ")] == ["a", "", "武", " "]
    assert [stream.push(token) for token in ids_of("æŃ")] == [""]
    assert stream.flush() == "\ufffd"
    assert stream.push(ID["a"]) == "a"


def test_merges_are_used() -> None:
    assert TOY.encode("hello wor\n\n", False) == ids_of("hello", "Ġwor", "ĊĊ")


def test_half_a_character_keeps_its_bytes_or_becomes_what_llama_cpp_makes_of_it() -> None:
    assert TOY.encode(b"\xe6\xad", False) == ids_of("æŃ")
    assert TOY.encode(b"\xe6\xad", False, errors="replace") == TOY.encode("\ufffd\ufffd", False)
    assert TOY.encode(b"\xe6\xad\xa6", False, errors="replace") == ids_of("æŃ", "¦")
    assert TOY.decode(ids_of("æŃ")) == "\ufffd"


def test_replacing_rewrites_overlong_forms_and_keeps_surrogates() -> None:
    assert (
        TOY.decode_bytes(TOY.encode(b"\xc1\x81\xed\xa0\x80\xff", False, errors="replace"))
        == b"A\xed\xa0\x80\xef\xbf\xbd"
    )


def test_code_points_beyond_unicode_are_refused_in_replacing() -> None:
    with pytest.raises(TokenizerError, match="bytes f4 90 80 80 at 1 stand for U\\+110000"):
        TOY.encode(b"a\xf4\x90\x80\x80", errors="replace")


def test_special_text_is_parsed_only_on_request() -> None:
    text = "a<|im_end|><unk>"
    assert TOY.encode(text, False, parse_special=True) == ids_of("a", "<|im_end|>", "<unk>")
    plain = TOY.encode(text, False)
    assert not any(TOY.is_special(token) for token in plain)
    assert TOY.decode(plain) == text


@given(_MIXED)
def test_no_text_can_inject_special_tokens(text: str) -> None:
    assert not any(TOY.is_special(token) for token in TOY.encode(text, add_special=False))


def test_user_defined_tokens_are_always_found() -> None:
    assert TOY.encode("a<user>b", False) == TOY.encode("a<user>b", False, True) == ids_of("a", "<user>", "b")


def test_user_defined_token_that_ends_generation_is_parsed_only_on_request() -> None:
    types = [4 if text == "<|im_end|>" else kind for text, kind in zip(TEXTS, TYPES, strict=True)]
    tokenizer = toy(token_type=types)
    assert IM_END not in tokenizer.encode("<|im_end|>", False)
    assert tokenizer.encode("<|im_end|>", False, True) == [IM_END]


def test_words_end_at_special_tokens() -> None:
    assert TOY.encode("hel<user>lo", False) == ids_of("he", "l", "<user>", "l", "o")


def test_byte_alphabet_is_inverted_for_normal_tokens_only() -> None:
    assert TOY.decode(ids_of("Ġ", "a", "Ċ")) == " a\n"
    tokenizer = toy(tokens=[*TEXTS, "<Ġ>"], token_type=[*TYPES, 3])
    assert tokenizer.decode([len(TEXTS)]) == "<Ġ>"


def test_skipping_special_tokens_in_decoding() -> None:
    ids = ids_of("<bos>", "a", "<unk>", "<user>", "<eos>")
    assert TOY.decode(ids) == "<bos>a<unk><user><eos>"
    assert TOY.decode(ids, skip_special=True) == "a<user>"


def test_what_is_added_by_default() -> None:
    assert TOY.encode("a") == ids_of("a")
    assert toy(pre="qwen2").encode("a") == ids_of("a")
    assert LLAMA_BPE.encode("a") == ids_of("<bos>", "a")
    assert LLAMA_BPE.encode("a", add_special=False) == ids_of("a")
    assert LLAMA_BPE.encode("") == [BOS]
    assert TOY.encode("") == []


def test_the_file_says_what_is_added() -> None:
    both = toy(add_bos_token=True, add_eos_token=True)
    assert (both.add_bos, both.add_eos) == (True, True)
    assert both.encode("a") == ids_of("<bos>", "a", "<eos>")
    assert toy(pre="llama-bpe", add_bos_token=False).encode("a") == ids_of("a")


def test_two_bos_are_kept_and_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "minillama.tokenizer"):
        assert LLAMA_BPE.encode("<bos>a", parse_special=True) == ids_of("<bos>", "<bos>", "a")
    assert "already begins with the beginning-of-text token" in caplog.text
    caplog.clear()
    assert LLAMA_BPE.encode("<bos>a", add_special=False, parse_special=True) == ids_of("<bos>", "a")
    assert toy(add_eos_token=True).encode("<eos>", parse_special=True) == [EOS, EOS]
    assert caplog.messages == ["the text already ends with the end-of-text token that the model asks to add"]


@pytest.mark.parametrize("key", ["add_bos_token", "add_eos_token"])
def test_asking_for_a_token_that_does_not_exist(key: str) -> None:
    tokenizer = Tokenizer.from_metadata(toy_metadata(["a", "b"], [], **{key: True}))
    with pytest.raises(TokenizerError, match=r"asks for .* but names none"):
        tokenizer.encode("a")


@pytest.mark.parametrize(("text", "position"), [("\ud800", 0), ("ab\udc80c", 2)])
def test_unpaired_surrogates_are_refused(text: str, position: int) -> None:
    with pytest.raises(TokenizerError, match=f"character {position} of the text is an unpaired surrogate"):
        TOY.encode(text)


@pytest.mark.parametrize("text", [None, 7, bytearray(b"a"), ["a"]])
def test_other_types_of_text_are_refused(text: Any) -> None:
    with pytest.raises(TokenizerError, match="text must be str or bytes"):
        TOY.encode(text)


def test_other_ways_to_handle_errors_are_refused() -> None:
    with pytest.raises(TokenizerError, match="errors must be 'keep' or 'replace', is 'strict'"):
        TOY.encode("a", errors="strict")  # type: ignore[arg-type]


@pytest.mark.parametrize("token", [-1, TOY.n_vocab, 10**12])
def test_ids_outside_the_vocabulary_are_refused(token: int) -> None:
    for use in (
        TOY.token_to_bytes,
        TOY.token_text,
        TOY.is_special,
        TOY.stream_decoder().push,
        lambda i: TOY.decode([i]),
    ):
        with pytest.raises(TokenizerError, match=f"token id {token} is outside the vocabulary of {TOY.n_vocab} tokens"):
            use(token)


def test_ids_must_be_integers() -> None:
    assert TOY.decode(np.array(ids_of("a", "Ġ"), np.int32)) == "a "
    with pytest.raises(TokenizerError, match="a token id must be an integer, is str"):
        TOY.decode(["a"])  # type: ignore[list-item]


def test_texts_and_ids_of_tokens() -> None:
    assert TOY.token_text(ID["Ġwor"]) == "Ġwor"
    assert TOY.token_id("Ġwor") == ID["Ġwor"]
    assert TOY.token_id(" wor") is None
    assert TOY.token_to_bytes(ID["Ġwor"]) == b" wor"
    assert TOY.n_vocab == len(TEXTS)


@pytest.mark.parametrize("model", ["gpt-2", "test", "sentencepiece"])
def test_other_kinds_of_tokenizer_are_refused(model: str) -> None:
    with pytest.raises(UnsupportedError, match=f"tokenizer kind '{model}'.* is not supported; supported: gpt2"):
        toy(model=model)


@pytest.mark.parametrize("pre", [None, "default"])
def test_the_default_pre_tokenizer_must_be_asked_for(pre: str | None) -> None:
    with pytest.raises(UnsupportedError, match="pass pre='default'"):
        toy(pre=pre)
    tokenizer = Tokenizer.from_metadata(toy_metadata(pre=pre), pre="default")
    assert tokenizer.pre == "default"


def test_unknown_pre_tokenizer_is_refused_and_can_be_overridden() -> None:
    with pytest.raises(UnsupportedError, match="'my-own'"):
        toy(pre="my-own")
    assert Tokenizer.from_metadata(toy_metadata(pre="my-own"), pre="qwen2").pre == "qwen2"


def test_vocabulary_only_file(tmp_path: Path) -> None:
    path = tmp_path / "vocab.gguf"
    with minillama.gguf.Writer(path, "llama") as writer:
        for key, value in toy_metadata().items():
            writer.add(key, value)
    from_path = Tokenizer.from_gguf(path)
    with minillama.gguf.open(path) as file:
        from_file = Tokenizer.from_gguf(file, pre="qwen2")
        assert file.metadata["general.architecture"] == "llama"  # still open
    text = "<bos>hello world 12\n\n<|im_end|>"
    for parse_special in (False, True):
        assert from_path.encode(text, True, parse_special) == TOY.encode(text, True, parse_special)
    assert from_file.encode("12", False) == ids_of("1", "2")
    assert repr(from_path) == f"<Tokenizer gpt2/gpt-2, {len(TEXTS)} tokens>"


def test_merges_may_be_bytes_of_any_kind(tmp_path: Path) -> None:
    path = tmp_path / "vocab.gguf"
    with minillama.gguf.Writer(path, "llama") as writer:
        for key, value in toy_metadata(merges=[b"\xff \xfe", *MERGES]).items():
            writer.add(key, value)
    assert Tokenizer.from_gguf(path).encode("hello", False) == ids_of("hello")
