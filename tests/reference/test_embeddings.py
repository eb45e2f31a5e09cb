"""Embeddings, bit-equal to llama.cpp's baseline build: as recorded (embeddings.json), and live (``llama_cpp``)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from minillama import gguf
from minillama.generate import LanguageModel
from minillama.model.families import FAMILIES as SUPPORTED
from minillama.verify import LlamaCpp
from tests.reference.build_llama_cpp import ensure
from tests.reference.embeddings import CASES, MODELS, PATH, POOLINGS, TEXTS
from tests.reference.test_logits import assert_same_positions, position_hashes
from tests.tiny_families import ENCODERS, file_hash

RECORDED = {(run["model"], run["types"]): run for run in json.loads(PATH.read_text())["runs"]}
EVERY_CASE = pytest.mark.parametrize(("name", "types"), CASES)


def rows(vectors: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.atleast_2d(v) for v in vectors])


def test_every_encoder_is_recorded() -> None:
    encoders = {name for name, declared in SUPPORTED.items() if declared.is_encoder}
    assert {tiny.architecture for tiny in ENCODERS.values()} == encoders
    assert set(RECORDED) == set(CASES)


@EVERY_CASE
@pytest.mark.parametrize("options", [{}, {"driver": "eager"}, {"backend": "reference"}], ids=str)
def test_recorded_embeddings(tmp_path: Path, name: str, types: str, options: dict) -> None:
    run, path = RECORDED[name, types], MODELS[name].write(tmp_path / "tiny.gguf", types)
    assert file_hash(path) == run["file"], "the file is not the one that was recorded"
    model = LanguageModel(gguf.open(path), **options)
    for pooling in POOLINGS:
        found = rows(model.embed(TEXTS, pooling=pooling, normalize=False))
        assert_same_positions(position_hashes(found), run["sha"][pooling], f"{name} {types} {pooling}")


@pytest.mark.llama_cpp
@EVERY_CASE
def test_live_embeddings(tmp_path: Path, name: str, types: str) -> None:
    path = MODELS[name].write(tmp_path / "tiny.gguf", types)
    model, llama = LanguageModel(gguf.open(path)), LlamaCpp(ensure("baseline"))
    for number, pooling in enumerate(POOLINGS):
        theirs, ours = llama.embed(path, TEXTS, pooling=number), model.embed(TEXTS, pooling=pooling, normalize=False)
        np.testing.assert_array_equal(rows(ours), rows(theirs), pooling)
    if name in ENCODERS:  # and by the pooling that the file states
        (theirs,), ours = llama.embed(path, TEXTS[-1:]), model.embed(TEXTS[-1], normalize=False)
        np.testing.assert_array_equal(ours, theirs)
