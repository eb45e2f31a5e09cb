"""Which ids have a role, which end generation, and what attributes tokens have."""

from typing import Any

import numpy as np
import pytest
from toy_vocabulary import BYTE, CONTROL, ID, LETTER_TEXTS, TEXTS, UNUSED, USER_DEFINED, toy_metadata

from minillama.errors import TokenizerError
from minillama.tokenizer import TokenAttribute, Tokenizer


def toy(*added: str, kinds: dict[str, int] | None = None, **changes: Any) -> Tokenizer:
    """The toy vocabulary with a few more tokens."""
    return Tokenizer.from_metadata(toy_metadata([*TEXTS, *added], special=kinds or {}, **changes))


def attributes(tokenizer: Tokenizer, text: str) -> TokenAttribute:
    token = tokenizer.token_id(text)
    assert token is not None
    return tokenizer.attributes(token)


def ends(tokenizer: Tokenizer) -> set[str]:
    return {tokenizer.token_text(token) for token in tokenizer.eog_ids}


def test_roles_from_the_file() -> None:
    tokenizer = toy(eot_token_id=5, eom_token_id=6, unknown_token_id=7, padding_token_id=8, seperator_token_id=9)
    assert (tokenizer.bos_id, tokenizer.eos_id) == (ID["<bos>"], ID["<eos>"])
    assert (tokenizer.eot_id, tokenizer.eom_id, tokenizer.unk_id, tokenizer.pad_id) == (5, 6, 7, 8)
    assert (tokenizer.special.sep, tokenizer.special.mask) == (9, None)


def test_llama_cpps_default_ids_where_the_file_names_none() -> None:
    tokenizer = toy(bos_token_id=None, eos_token_id=None)
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id) == (11, 11, None)


def test_ids_beyond_the_vocabulary_count_as_not_named() -> None:
    tokenizer = toy(bos_token_id=10**6, padding_token_id=10**6)
    assert (tokenizer.bos_id, tokenizer.pad_id) == (11, None)
    tiny = Tokenizer.from_metadata(toy_metadata(["a", "b"], []))
    assert (tiny.bos_id, tiny.eos_id) == (None, None)


def test_deprecated_fill_in_the_middle_keys_are_read_last() -> None:
    assert toy(fim_pre_token_id=3, prefix_token_id=4).special.fim_pre == 4


def test_roles_by_text_make_control_tokens() -> None:
    tokenizer = toy("<|eom_id|>", "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
    assert tokenizer.eot_id == ID["<|im_end|>"]
    assert tokenizer.eom_id == tokenizer.token_id("<|eom_id|>")
    assert tokenizer.special.fim_pre == tokenizer.token_id("<|fim_prefix|>")
    assert attributes(tokenizer, "<|fim_middle|>") == TokenAttribute.NORMAL | TokenAttribute.CONTROL
    assert attributes(tokenizer, "a") == TokenAttribute.NORMAL


def test_an_id_from_the_file_is_not_replaced_by_text() -> None:
    assert toy("<|eot_id|>", eot_token_id=5).eot_id == 5


def test_ends_by_role_and_by_text() -> None:
    assert ends(toy()) == {"<eos>", "<|im_end|>"}
    tokenizer = toy("</s>", "<|endoftext|>", "<|fim_pad|>", "<|file_sep|>", "<|fim_prefix|>", eom_token_id=5)
    added = {"</s>", "<|endoftext|>", "<|fim_pad|>", "<|file_sep|>"}
    assert ends(tokenizer) == {"<eos>", "<|im_end|>", *added, tokenizer.token_text(5)}
    assert attributes(tokenizer, "</s>") & TokenAttribute.CONTROL


def test_end_of_message_in_gpt_oss_is_no_end() -> None:
    tokenizer = toy("<|end|>", "<|return|>", "<|call|>", "<|start|>", kinds={"<|start|>": CONTROL})
    assert ends(tokenizer) == {"<eos>", "<|im_end|>", "<|return|>", "<|call|>"}
    assert attributes(tokenizer, "<|end|>") == attributes(tokenizer, "<|start|>") == TokenAttribute.USER_DEFINED
    assert "<|end|>" in ends(toy("<|end|>", "<|return|>"))


def test_ordinary_s_tag_beside_gemmas_tool_response() -> None:
    tokenizer = toy("</s>", "<|tool_response>")
    assert ends(tokenizer) == {"<eos>", "<|im_end|>", "<|tool_response>"}
    assert attributes(tokenizer, "</s>") == TokenAttribute.NORMAL


def test_token_types() -> None:
    kinds = {"<0xE6>": BYTE, "[PAD]": UNUSED, "<u>": USER_DEFINED, "<unused1>": CONTROL}
    tokenizer = toy("<0xE6>", "[PAD9]", "<u>", "<unused1>", kinds=kinds | {"[PAD9]": UNUSED})
    assert attributes(tokenizer, "<0xE6>") == TokenAttribute.BYTE
    assert attributes(tokenizer, "<u>") == TokenAttribute.USER_DEFINED
    assert attributes(tokenizer, "<unused1>") == TokenAttribute.CONTROL | TokenAttribute.UNUSED
    pieces = [tokenizer.token_to_bytes(len(TEXTS) + i) for i in range(4)]
    assert pieces == [b"\xe6", b"", b"<u>", b"<unused1>"]


def test_types_unknown_to_llama_cpp_are_undefined() -> None:
    tokenizer = toy(token_type=np.full(len(TEXTS), 99, np.int32))
    assert tokenizer.attributes(0) == TokenAttribute.UNDEFINED


@pytest.mark.parametrize(
    ("changes", "marked", "strip"),
    [
        ({"tokenizer.ggml.pre": "jina-v2-de"}, "<mask>", TokenAttribute.LSTRIP),
        ({"general.name": "Phi-3 mini"}, "<user>", TokenAttribute.RSTRIP),
        ({"general.name": "modern-bert"}, "[MASK]", TokenAttribute.LSTRIP),
    ],
)
def test_stripping_goes_by_the_models_name(changes: dict[str, str], marked: str, strip: TokenAttribute) -> None:
    kinds = dict.fromkeys(["<mask>", "[MASK]", "<|endoftext|>", "<user>"], USER_DEFINED)
    metadata = toy_metadata([*TEXTS, "<mask>", "[MASK]", "<|endoftext|>"], special=kinds) | changes
    tokenizer = Tokenizer.from_metadata(metadata)
    assert attributes(tokenizer, marked) & strip
    assert not attributes(tokenizer, "<|endoftext|>") & strip


def test_stripped_space_is_part_of_the_token() -> None:
    metadata = toy_metadata() | {"general.name": "phi3"}
    assert Tokenizer.from_metadata(metadata).encode("<user> \na", False) == [ID["<user>"], ID["a"]]


def test_scores_and_empty_texts() -> None:
    tokenizer = toy("", scores=np.arange(len(TEXTS) + 1, dtype=np.float32))
    assert tokenizer.vocabulary.scores is not None
    assert tokenizer.vocabulary.scores[3] == 3.0
    assert tokenizer.token_text(len(TEXTS)) == f"[EMPTY_{len(TEXTS)}]"
    assert toy().vocabulary.scores is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": None}, "no vocabulary: tokenizer.ggml.model is missing"),
        ({"model": "no_vocab"}, "no vocabulary: tokenizer.ggml.model is 'no_vocab'"),
        ({"tokens": None}, "tokenizer.ggml.tokens is missing"),
        ({"tokens": []}, "tokenizer.ggml.tokens is empty"),
        ({"tokens": [1, 2]}, "tokenizer.ggml.tokens must be an array of strings"),
        ({"tokens": 7}, "tokenizer.ggml.tokens must be an array of strings"),
        ({"tokens": "abc"}, "tokenizer.ggml.tokens must be an array of strings"),
        ({"tokens": ["a", "b", "a"]}, "ids 0 and 2 are both b'a'"),
        ({"merges": None}, "tokenizer.ggml.merges is missing"),
        ({"token_type": [1]}, "tokenizer.ggml.token_type has 1 values for"),
        ({"token_type": "x"}, "tokenizer.ggml.token_type must be an array of numbers"),
        ({"scores": [0.0]}, "tokenizer.ggml.scores has 1 values for"),
        ({"bos_token_id": "x"}, "tokenizer.ggml.bos_token_id must be a token id, is 'x'"),
        ({"add_bos_token": 1}, "tokenizer.ggml.add_bos_token must be true or false, is 1"),
    ],
)
def test_files_without_a_usable_vocabulary(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(TokenizerError, match=message):
        Tokenizer.from_metadata(toy_metadata(**changes))


def test_letters_alone_are_a_vocabulary() -> None:
    assert Tokenizer.from_metadata(toy_metadata(LETTER_TEXTS, [])).decode([ID["Ġ"], ID["a"]]) == " a"
