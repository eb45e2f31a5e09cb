"""Scores of continuations and perplexity."""

from __future__ import annotations

import math

import numpy as np
import pytest

from minillama import gguf
from minillama.errors import InvalidInputError
from minillama.generate import LanguageModel
from minillama.generate.scoring import logprobs_of
from tests.tiny_models import TinyModel


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    return LanguageModel(gguf.open(TinyModel().write(tmp_path_factory.mktemp("score") / "tiny.gguf")))


def plain_logprobs(model: LanguageModel, ids: list[int]) -> list[float]:
    logits = model.logits(ids)[:-1].astype(np.float64)
    logp = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return [float(row[token]) for row, token in zip(logp, ids[1:], strict=True)]


@pytest.mark.parametrize("continuations", [[" and", "x", " the sea", " and so on"], [[1, 2], [3], [4, 5, 6]]])
def test_scores_are_those_of_whole_texts(model: LanguageModel, continuations: list) -> None:
    prompt = "In the land of the an"
    scores = model.score(prompt, continuations)
    for continuation, score in zip(continuations, scores, strict=True):
        text = prompt + continuation if isinstance(continuation, str) else ""
        ids = model.tokenizer.encode(text) if text else [*model.tokenizer.encode(prompt), *continuation]
        assert list(score.tokens) == ids[-len(score.tokens) :]
        want = plain_logprobs(model, ids)[-len(score.tokens) :]
        assert score.logprobs == pytest.approx(want, abs=1e-6)  # another order of the double sum
        assert score.logprob == pytest.approx(sum(want), abs=1e-5)


def test_text_that_joins_with_the_prompt(model: LanguageModel) -> None:
    # "a" + "nd" is one token, "and": it is scored in place of the prompt's last.
    score = model.score("th a", ["nd"])[0]
    whole = model.tokenizer.encode("th and")
    assert score.tokens == tuple(whole[-1:])
    assert score.logprobs[0] == pytest.approx(plain_logprobs(model, whole)[-1], abs=1e-6)
    longer = model.score("th a", ["nd the the and"])[0]
    whole = model.tokenizer.encode("th and the the and")
    assert longer.tokens == tuple(whole[1:])
    assert longer.logprobs == pytest.approx(plain_logprobs(model, whole), abs=1e-6)


def test_greedy(model: LanguageModel) -> None:
    likeliest = model.generate("Once", max_tokens=3, ignore_eos=True).tokens
    good, bad = model.score("Once", [list(likeliest), [(likeliest[0] + 1) % 200]])
    assert good.is_greedy
    assert not bad.is_greedy


def test_perplexity(model: LanguageModel) -> None:
    ids = [int(token) for token in np.random.default_rng(1).integers(0, 200, 100)]
    found = model.perplexity(ids, n_ctx=32)
    assert (found.n_chunks, found.n_scored) == (3, 3 * 15)
    bos = [model.tokenizer.bos_id] if model.tokenizer.add_bos else []
    chunks = [[*bos, *ids[i + len(bos) : i + 32]] for i in (0, 32, 64)]
    want = [p for chunk in chunks for p in plain_logprobs(model, chunk)[16:]]
    assert found.logprobs == pytest.approx(want, abs=1e-6)
    assert found.value == pytest.approx(math.exp(-np.mean(want)), rel=1e-6)
    assert found.error == pytest.approx(found.value * np.std(want) / math.sqrt(len(want) - 1), rel=1e-6)
    assert found.tokens.tolist() == [token for i in (0, 32, 64) for token in ids[i + 17 : i + 32]]


def test_logprobs_of_large_logits() -> None:
    logits = np.array([[1000, 0, -1000], [-1e30, -1e30, 0]], np.float32)
    assert logprobs_of(logits, [0, 1]).tolist() == [0, pytest.approx(-1e30)]


def test_bad_input(model: LanguageModel) -> None:
    with pytest.raises(InvalidInputError, match=r"the text has 40 tokens, at least 64 \(two chunks\) are wanted"):
        model.perplexity([1] * 40, n_ctx=32)
    with pytest.raises(InvalidInputError, match="chunks of 1000 tokens: wanted 4 to the model's context of 512"):
        model.perplexity([1] * 4000, n_ctx=1000)
    with pytest.raises(InvalidInputError, match="the continuation '' is empty"):
        model.score("a", [""])
    with pytest.raises(InvalidInputError, match="the prompt is empty"):
        model.score([], [[1]])
