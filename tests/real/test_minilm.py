"""A real encoder: MiniLM from the package index, converted by the example."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import minillama as ml
from minillama.verify import LlamaCpp
from tests.reference.build_llama_cpp import ensure

pytestmark = pytest.mark.real

HOME = Path(__file__).parents[2]
# Of llama.cpp's baseline build, whose vectors are equal (test_llama_cpp): hashes of three texts' vectors.
RECORDED = {
    "This is an example sentence": "667ad9f60444ae74",
    "Zürich, 2024! ünïcödé 🍕": "dc972cebdc943b37",
    "word " * 300: "9188b060e5fab156",
}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("minilm")
    command = [sys.executable, str(HOME / "examples" / "sentence_embeddings.py"), str(folder)]
    subprocess.run(command, check=True, capture_output=True)
    (found,) = folder.glob("*.gguf")
    return found


def test_recorded_vectors(path: Path) -> None:
    for options in ({}, {"driver": "eager", "threads": 1}):
        vectors = ml.load(path, **options).embed(list(RECORDED), normalize=False)
        assert [hashlib.sha256(v.tobytes()).hexdigest()[:16] for v in vectors] == list(RECORDED.values())


def test_vectors_are_near_the_published_ones(path: Path) -> None:
    """The first numbers of this sentence's vector in the documentation of sentence-transformers.

    Halves of the weights and llama.cpp's GELU by a table of halves move them by some 1e-4.
    """
    vector = ml.load(path).embed("This is an example sentence")
    np.testing.assert_allclose(vector[:6], [0.0677, 0.0635, 0.0487, 0.0793, 0.0374, 0.0027], atol=3e-4)
    assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-6)


@pytest.mark.llama_cpp
def test_llama_cpp(path: Path) -> None:
    model, llama = ml.load(path), LlamaCpp(ensure("baseline"))
    texts = [*RECORDED, "", "a", "[CLS] in the text", "東京 is Tokyo", "x" * 200]
    ids = [model.tokenizer.encode(text) for text in texts]
    assert llama.tokenize(path, texts) == ids
    for ours, theirs in zip(model.embed(texts, normalize=False), llama.embed(path, ids), strict=True):
        np.testing.assert_array_equal(ours, theirs)
