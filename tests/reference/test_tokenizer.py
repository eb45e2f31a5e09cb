"""Tokenizers against llama.cpp: recorded ids, its own test pairs, and live for thousands of texts per vocabulary."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest

from minillama.tokenizer import Tokenizer
from minillama.tokenizer.unicode_classes import (
    CONTROL,
    LETTER,
    MARK,
    NUMBER,
    PUNCTUATION,
    SPACE,
    SYMBOL,
    base_letter,
    category_table,
    lowercase,
)
from minillama.tokenizer.vocabulary import _NAMED
from tests.reference import tokenizer_made, tokenizer_unicode
from tests.reference.tokenizer_comparison import (
    REAL_MODELS,
    VOCABS,
    Comparison,
    compare,
    long_requests,
    short_requests,
    special_texts,
    vocabulary,
)
from tests.reference.tokenizer_live import Request, describe, llama_cpp_texts
from tests.reference.tokenizer_texts import valid_texts
from tests.reference.tokenizer_vocabs import ensure_vocabs

_EXPECTED = json.loads(Path(__file__).with_name("tokenizer_expected.json").read_text(encoding="utf-8"))
_WITH_PAIRS = sorted(set(VOCABS) - {"aquila", "baichuan", "gpt-neox", "nomic-bert-moe"})
_FAMILIES = ["qwen2", "llama-spm", "gemma-4", "bert-bge", "nomic-bert-moe"]


@pytest.mark.real
@pytest.mark.parametrize("name", sorted(_EXPECTED["models"]))
def test_recorded_ids_of_real_models(name: str) -> None:
    tokenizer, _ = vocabulary(name)
    for text, parse_special, ids in _EXPECTED["models"][name]:
        assert tokenizer.encode(text, add_special=True, parse_special=parse_special) == ids, text


@pytest.fixture(scope="module", params=[*VOCABS, *REAL_MODELS])
def pair(request: pytest.FixtureRequest) -> tuple[Tokenizer, Path]:
    """Our tokenizer and the file, for every vocabulary-only file and every real model."""
    return vocabulary(request.param)


def _assert_equal(result: Comparison) -> None:
    found = len(result.different)
    assert not found, f"{found} of {result.compared} differ: " + "\n".join(result.different[:20])


@pytest.mark.llama_cpp
def test_ids_equal_llama_cpp(pair: tuple[Tokenizer, Path]) -> None:
    result = compare(*pair, random.Random(7).sample(short_requests(pair[0], 4000), 4000))
    _assert_equal(result)
    assert result.died == result.injected == 0


@pytest.mark.llama_cpp
@pytest.mark.parametrize("name", _FAMILIES)
def test_ids_of_long_texts_equal_llama_cpp(name: str) -> None:
    result = compare(*vocabulary(name), long_requests())
    _assert_equal(result)
    assert result.died == 0


@pytest.mark.llama_cpp
@pytest.mark.parametrize("name", tokenizer_made.MADE)
def test_ids_of_made_vocabularies_equal_llama_cpp(name: str, tmp_path: Path) -> None:
    path = tokenizer_made.write(tmp_path / "made.gguf", tokenizer_made.MADE[name]())
    tokenizer = Tokenizer.from_gguf(path)
    _assert_equal(compare(tokenizer, path, random.Random(8).sample(short_requests(tokenizer, 4000), 4000)))


@pytest.mark.llama_cpp
@pytest.mark.parametrize("name", tokenizer_made.byte_level_pres().values())
def test_words_of_every_pre_tokenizer_equal_llama_cpp(name: str, tmp_path: Path) -> None:
    path = tokenizer_made.write(tmp_path / "pairs.gguf", tokenizer_made.pairs(name))
    tokenizer = Tokenizer.from_gguf(path, pre=name)
    requests = [request for request in short_requests(tokenizer, 1500) if len(request.text) < 300]
    _assert_equal(compare(tokenizer, path, random.Random(9).sample(requests, 2000)))


@pytest.mark.llama_cpp
@pytest.mark.parametrize("name", ["rwkv", "plamo2"])
def test_what_llama_cpp_injects_stays_text(name: str, tmp_path: Path) -> None:
    path = tokenizer_made.write(tmp_path / "made.gguf", tokenizer_made.MADE[name]())
    tokenizer = Tokenizer.from_gguf(path)
    control = next(text for text in special_texts(tokenizer) if text.startswith("<"))
    result = compare(tokenizer, path, [Request(b"a" + control.encode())])
    assert result.injected == 1
    assert not any(map(tokenizer.is_special, tokenizer.encode("a" + control)))


@pytest.mark.llama_cpp
def test_no_control_token_comes_out_of_plain_text(pair: tuple[Tokenizer, Path]) -> None:
    tokenizer, _ = pair
    for text in special_texts(tokenizer):
        found = [token for token in tokenizer.encode(text, add_special=False) if tokenizer.is_special(token)]
        assert set(found) <= {tokenizer.unk_id}, text


@pytest.mark.llama_cpp
def test_vocabulary_equals_llama_cpp(pair: tuple[Tokenizer, Path]) -> None:
    tokenizer, path = pair
    theirs = describe(path)
    assert tokenizer.n_vocab == theirs["n_vocab"]
    ours = tokenizer.conventions
    assert (ours.add_bos, ours.add_eos, ours.add_sep) == (theirs["add_bos"], theirs["add_eos"], theirs["add_sep"])
    assert sorted(tokenizer.eog_ids) == theirs["eog"]
    np.testing.assert_array_equal(tokenizer.vocabulary.attributes, theirs["attributes"])
    np.testing.assert_array_equal(tokenizer.vocabulary.scores_or_zeros, np.array(theirs["scores"], np.float32))
    assert [tokenizer.token_to_bytes(i).hex() for i in range(tokenizer.n_vocab)] == theirs["pieces"]
    assert [i for i in range(tokenizer.n_vocab) if not tokenizer.decode_bytes([i], True, True)] == theirs[
        "not_rendered"
    ]
    for role, token in theirs["special"].items():
        # Of several texts that fit a role llama.cpp takes the one its hash table yields first.
        candidates = [name for name in _NAMED.get(role, ()) if tokenizer.token_id(name) is not None]
        if len(candidates) <= 1:
            assert getattr(tokenizer.special, role) == token, role
        else:
            assert tokenizer.token_text(token) in candidates, role


@pytest.mark.llama_cpp
@pytest.mark.parametrize("flags", [(False, False), (False, True), (True, True)])
def test_detokenized_text_equals_llama_cpp(pair: tuple[Tokenizer, Path], flags: tuple[bool, bool]) -> None:
    tokenizer, path = pair
    texts = random.Random(6).sample([text for text in valid_texts(["I 'm . a ' b ,"]) if text], 300)
    ids = [tokenizer.encode(text) for text in texts]
    rng = random.Random(5)
    ids += [[rng.randrange(tokenizer.n_vocab) for _ in range(20)] for _ in range(200)]
    for tokens, theirs in zip(ids, llama_cpp_texts(path, [(tokens, *flags) for tokens in ids]), strict=True):
        assert tokenizer.detokenize(tokens, *flags) == theirs, tokens


@pytest.mark.llama_cpp
@pytest.mark.parametrize("name", _WITH_PAIRS)
def test_llama_cpps_own_vocabulary_tests(name: str) -> None:
    tokenizer, path = vocabulary(name)
    inputs = Path(f"{path}.inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")
    outputs = Path(f"{path}.out").read_text(encoding="utf-8").splitlines()
    assert len(outputs) in (len(inputs), len(inputs) - 1)
    for text, expected in zip(inputs, outputs, strict=False):
        assert tokenizer.encode(text, add_special=False) == [int(token) for token in expected.split()], text


@pytest.mark.llama_cpp
def test_all_vocabularies_of_the_sdist_are_tested() -> None:
    assert {path.name for path in ensure_vocabs().glob("*.gguf")} == {f"ggml-vocab-{name}.gguf" for name in VOCABS}
    assert len(list(ensure_vocabs().glob("*.inp"))) == len(_WITH_PAIRS)


@pytest.mark.llama_cpp
@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("llama-bpe", "x\n\n", [87, 271]),  # ggml-org/llama.cpp#6809
        ("llama-bpe", "\n\n\n\n", [1038]),
        ("qwen2", "->", [405]),  # kekzl/imp#660
        ("qwen2", "(x):\n", [2075, 982]),
        ("qwen2", "12345", [16, 17, 18, 19, 20]),
        ("llama-bpe", b"\xe6\xad", [15722]),  # ggml-org/llama.cpp#8691
        ("llama-bpe", b"\xe6\xad\xaa", [15722, 103]),
        ("llama-spm", "</s>", [1533, 29879, 29958]),  # abetlen/llama-cpp-python#838: plain text unless asked for
        ("falcon", "In 2023, 1234!", [780, 204, 905, 30, 23, 204, 10963, 31, 12]),  # ggml-org/llama.cpp#3502
        ("gemma-3-270m-q4_k_m.gguf", "\t\t\t\t\t\ttest", [255973, 2181]),  # ggml-org/llama.cpp#8338
    ],
)
def test_what_went_wrong_elsewhere(name: str, text: str | bytes, expected: list[int]) -> None:
    tokenizer, _ = vocabulary(name)
    assert tokenizer.encode(text, add_special=False) == expected


@pytest.mark.llama_cpp
def test_every_code_point_has_llama_cpps_class() -> None:
    source = (ensure_vocabs() / "unicode-data.cpp").read_text(encoding="utf-8")
    classes = tokenizer_unicode.read_classes(source)
    expected = {
        "LETTERS": LETTER, "NUMBERS": NUMBER, "MARKS": MARK, "PUNCTUATION": PUNCTUATION, "SYMBOLS": SYMBOL,
        "CONTROLS": CONTROL, "WHITESPACE": SPACE,
    }  # fmt: skip
    for name, value in expected.items():
        ours = set(np.flatnonzero(category_table() == value).tolist())
        assert ours == classes[name] - (classes["WHITESPACE"] if value != SPACE else set()), name
    assert lowercase() == tokenizer_unicode.read_lowercase(source)
    bases = tokenizer_unicode.read_base_letters(source)
    assert all(base_letter(code) == bases.get(code, code) for code in range(0x110000))
