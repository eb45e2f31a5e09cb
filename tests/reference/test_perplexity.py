"""Perplexity and scores: as llama.cpp's program printed them, and from the logits it computes now."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minillama as ml
from minillama.generate.scoring import logprobs_of
from minillama.hub import resolve
from minillama.verify.llama_cpp import LlamaCpp
from tests.reference.build_llama_cpp import ensure
from tests.reference.record_perplexity import PATH, TEXT

RUNS = json.loads(PATH.read_text())["runs"]


@pytest.mark.real
@pytest.mark.parametrize("run", RUNS, ids=lambda run: f"{run['model']}-{run['n_ctx']}")
def test_every_digit_that_llama_perplexity_printed(run: dict[str, Any]) -> None:
    model = ml.load(run["model"])
    found = model.perplexity(model.tokenizer.encode(TEXT)[: run["n_chunks"] * run["n_ctx"]], n_ctx=run["n_ctx"])
    assert (f"{found.value:.4f}", f"{found.error:.5f}") == (run["perplexity"], run["error"])


@pytest.fixture(scope="module")
def baseline() -> LlamaCpp:
    return LlamaCpp(ensure("baseline"))


@pytest.mark.llama_cpp
@pytest.mark.parametrize("name", ["smollm2-135m", "gemma3-270m"])
def test_perplexity_from_llama_cpps_logits(name: str, baseline: LlamaCpp) -> None:
    model, n_ctx = ml.load(name), 128
    ids = model.tokenizer.encode(TEXT)[:512]
    found = model.perplexity(ids, n_ctx=n_ctx)
    chunks = [ids[i : i + n_ctx] for i in range(0, len(ids), n_ctx)]
    if model.tokenizer.add_bos:
        chunks = [[model.tokenizer.bos_id, *chunk[1:]] for chunk in chunks]
    losses, logprobs = [], []
    for chunk, logits in zip(chunks, baseline.logits(Path(resolve(name)), chunks), strict=True):
        scored = slice(n_ctx // 2, n_ctx - 1)
        logprobs.append(logprobs_of(logits[scored], chunk[n_ctx // 2 + 1 :]))
        for i in range(n_ctx)[scored]:
            row = logits[i].astype(np.float64) - logits[i].max()
            losses.append(np.log(np.exp(row).sum()) - row[chunk[i + 1]])
    np.testing.assert_array_equal(found.logprobs, np.concatenate(logprobs))
    assert found.n_scored == len(losses) == 4 * 63
    assert found.value == pytest.approx(np.exp(np.mean(losses)), rel=1e-6)  # exponentials in double, summed in pairs
    assert found.error == pytest.approx(found.value * np.std(losses) / np.sqrt(len(losses) - 1), rel=1e-5)


@pytest.mark.llama_cpp
def test_scores_from_llama_cpps_logits(baseline: LlamaCpp) -> None:
    model, name = ml.load("smollm2-135m"), "smollm2-135m"
    prompt, endings = "The capital of France is", [" Paris", " Rome", " a city that never sleeps"]
    n, texts = len(model.tokenizer.encode(prompt)), [model.tokenizer.encode(prompt + ending) for ending in endings]
    scores = model.score(prompt, endings)
    for score, ids, logits in zip(scores, texts, baseline.logits(Path(resolve(name)), texts), strict=True):
        assert list(score.tokens) == ids[n:]
        assert list(score.logprobs) == logprobs_of(logits[n - 1 : -1], ids[n:]).tolist()
        assert score.is_greedy == (logits[n - 1 : -1].argmax(axis=1).tolist() == ids[n:])
