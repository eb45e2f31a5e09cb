"""Token ids against llama.cpp: recorded for real models, and live for several thousand texts per vocabulary."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minillama.errors import TokenizerError
from minillama.hub import local_models, pull
from minillama.tokenizer import Tokenizer, utf8
from minillama.tokenizer.unicode_classes import LETTER, NUMBER, PUNCTUATION, SPACE, class_table
from minillama.tokenizer.vocabulary import _NAMED
from tests.reference import build_llama_cpp, tokenizer_texts, tokenizer_unicode
from tests.reference.tokenizer_vocabs import ensure_vocabs

_HERE = Path(__file__).parent
_EXPECTED = json.loads((_HERE / "tokenizer_expected.json").read_text(encoding="utf-8"))
_RECORDED = sorted(_EXPECTED["models"])
_REAL = [*_RECORDED, "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"]
# Vocabulary-only files of llama.cpp, and the pre-tokenizer to ask for where the file names none.
_VOCABS = {
    "gpt-2": None,
    "llama-bpe": None,
    "qwen2": None,
    "starcoder": None,
    "refact": None,
    "command-r": None,
    "mpt": None,
    "gpt-neox": "default",
    "aquila": "default",
}


def _real_model(name: str) -> Path:
    """A catalog model by its file name, fetched if need be."""
    (model,) = [model for model in local_models() if model.path.name == name]
    return pull(model.name)


@pytest.mark.real
@pytest.mark.parametrize("name", _RECORDED)
def test_recorded_ids_of_real_models(name: str) -> None:
    tokenizer = Tokenizer.from_gguf(_real_model(name))
    for text, parse_special, ids in _EXPECTED["models"][name]:
        assert tokenizer.encode(text, add_special=True, parse_special=parse_special) == ids, text


def _worker(command: str, path: Path, requests: str = "") -> str:
    # The safe path keeps modules beside the worker from hiding libraries of the same name.
    env = {**os.environ, "PYTHONPATH": str(build_llama_cpp.ensure("baseline")), "PYTHONSAFEPATH": "1"}
    arguments = [sys.executable, str(_HERE / "tokenizer_worker.py"), command, str(path)]
    return subprocess.run(arguments, input=requests, env=env, check=True, stdout=subprocess.PIPE, text=True).stdout


def llama_cpp_ids(path: Path, requests: list[tuple[bytes, bool, bool]]) -> list[list[int]]:
    """llama.cpp's ids for each of ``(text, add_special, parse_special)``."""
    lines = [json.dumps([base64.b64encode(text).decode(), add, parse]) for text, add, parse in requests]
    answers = _worker("encode", path, "\n".join(lines) + "\n").splitlines()
    assert len(answers) == len(requests)
    return [json.loads(line) for line in answers]


@pytest.fixture(scope="module", params=[*_VOCABS, *_REAL])
def pair(request: pytest.FixtureRequest) -> tuple[Tokenizer, Path]:
    """Our tokenizer and the file, for every vocabulary-only file and every real model."""
    name: str = request.param
    path = _real_model(name) if name in _REAL else ensure_vocabs() / f"ggml-vocab-{name}.gguf"
    return Tokenizer.from_gguf(path, pre=_VOCABS.get(name)), path


def _special_texts(tokenizer: Tokenizer) -> list[str]:
    """Up to 40 special tokens, the shortest and the longest among them."""
    special = [i for i in range(tokenizer.n_vocab) if tokenizer.attributes(i) & (1 | 8 | 16)]
    texts = sorted((tokenizer.token_text(i) for i in special), key=len)
    return texts[:20] + texts[20:][-20:]


def _differences(
    tokenizer: Tokenizer, requests: list[tuple[bytes, bool, bool]], expected: list[list[int]], errors: Any
) -> list[str]:
    found = []
    for (text, add_special, parse_special), theirs in zip(requests, expected, strict=True):
        ours = tokenizer.encode(text, add_special, parse_special, errors)
        if ours != theirs:
            found.append(f"{text!r} ({add_special=}, {parse_special=}): ours {ours}, llama.cpp's {theirs}")
    return found


@pytest.mark.llama_cpp
def test_ids_equal_llama_cpp(pair: tuple[Tokenizer, Path]) -> None:
    tokenizer, path = pair
    texts = [text.encode() for text in tokenizer_texts.valid_texts(_special_texts(tokenizer))]
    requests = [(text, flags, flags) for text in texts for flags in (False, True)]
    requests += [(text, True, False) for text in texts[::10]]
    different = _differences(tokenizer, requests, llama_cpp_ids(path, requests), "keep")
    assert not different, f"{len(different)} of {len(requests)}: " + "\n".join(different[:20])


@pytest.mark.llama_cpp
def test_ids_of_broken_utf8_equal_llama_cpp(pair: tuple[Tokenizer, Path]) -> None:
    tokenizer, path = pair
    requests = [(text, False, parse) for text in tokenizer_texts.broken_texts() for parse in (False, True)]
    requests = [request for request in requests if _within_unicode(request[0])]
    different = _differences(tokenizer, requests, llama_cpp_ids(path, requests), "replace")
    assert not different, f"{len(different)} of {len(requests)}: " + "\n".join(different[:20])


def _within_unicode(text: bytes) -> bool:
    """Beyond U+10FFFF llama.cpp ends the process and we raise."""
    try:
        utf8.replace_invalid(text)
    except TokenizerError:
        return False
    return True


@pytest.mark.llama_cpp
def test_vocabulary_equals_llama_cpp(pair: tuple[Tokenizer, Path]) -> None:
    tokenizer, path = pair
    theirs: dict[str, Any] = json.loads(_worker("describe", path))
    assert tokenizer.n_vocab == theirs["n_vocab"]
    assert (tokenizer.add_bos, tokenizer.add_eos) == (theirs["add_bos"], theirs["add_eos"])
    assert sorted(tokenizer.eog_ids) == theirs["eog"]
    np.testing.assert_array_equal(tokenizer.vocabulary.attributes, theirs["attributes"])
    assert [tokenizer.token_to_bytes(i).hex() for i in range(tokenizer.n_vocab)] == theirs["pieces"]
    assert [i for i in range(tokenizer.n_vocab) if not tokenizer.decode_bytes([i], True)] == theirs["not_rendered"]
    for role, token in theirs["special"].items():
        # Of several texts that fit a role llama.cpp takes the one its hash table yields first.
        candidates = [name for name in _NAMED.get(role, ()) if tokenizer.token_id(name) is not None]
        if len(candidates) <= 1:
            assert getattr(tokenizer.special, role) == token, role
        else:
            assert tokenizer.token_text(token) in candidates, role


@pytest.mark.llama_cpp
@pytest.mark.parametrize("name", [name for name, pre in _VOCABS.items() if pre is None])
def test_llama_cpps_own_vocabulary_tests(name: str) -> None:
    path = ensure_vocabs() / f"ggml-vocab-{name}.gguf"
    tokenizer = Tokenizer.from_gguf(path)
    inputs = Path(f"{path}.inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")
    outputs = Path(f"{path}.out").read_text(encoding="utf-8").splitlines()
    assert len(outputs) in (len(inputs), len(inputs) - 1)
    for text, expected in zip(inputs, outputs, strict=False):
        assert tokenizer.encode(text, add_special=False) == [int(token) for token in expected.split()], text


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
    ],
)
def test_what_went_wrong_elsewhere(name: str, text: str | bytes, expected: list[int]) -> None:
    tokenizer = Tokenizer.from_gguf(ensure_vocabs() / f"ggml-vocab-{name}.gguf")
    assert tokenizer.encode(text, add_special=False) == expected


@pytest.mark.llama_cpp
def test_every_code_point_has_llama_cpps_class() -> None:
    classes = tokenizer_unicode.read_classes((ensure_vocabs() / "unicode-data.cpp").read_text(encoding="utf-8"))
    table = class_table()
    expected = {"LETTERS": LETTER, "NUMBERS": NUMBER, "PUNCTUATION": PUNCTUATION, "WHITESPACE": SPACE}
    for name, value in expected.items():
        ours = {0x80 + int(code) for code in np.flatnonzero(table[0x80:] == value)}
        assert ours == {code for code in classes[name] if code >= 0x80}, name
