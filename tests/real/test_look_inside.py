"""Tracing on the real models: no bit changes, and recorded values are llama.cpp's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import minillama as ml
from minillama.hub import resolve
from minillama.trace import compare, edits, logit_difference, patch_grid
from minillama.verify.llama_cpp import LlamaCpp
from minillama.verify.recording import llama_cpp_recording
from tests.reference.build_llama_cpp import ensure

PROMPT = "The capital of France is the city of Paris, and"
MODELS = ["smollm2-135m", "qwen2.5-coder-0.5b", "gemma3-270m"]


@pytest.mark.real
@pytest.mark.parametrize("name", MODELS)
def test_no_bit_changes(name: str) -> None:
    model = ml.load(name)
    ids = model.tokenizer.encode(PROMPT)
    plain = model.logits(ids)
    on_demand = [point for point in model.points if model.points[point].on_demand]
    whole = model.trace(ids, ["*", *on_demand])
    np.testing.assert_array_equal(whole.logits, plain)
    fused = model.trace(ids, "blk.*.kqv")
    for point in fused:
        np.testing.assert_array_equal(fused[point], whole[point], err_msg=point)
    middle = f"blk.{model.config.n_layer // 2}.l_out"
    np.testing.assert_array_equal(model.forward_from(middle, whole[middle], model.new_cache()), plain)
    np.testing.assert_array_equal(model.step(ids).finish(), plain)
    trace = ml.Trace(model, ["blk.*.l_out", "blk.*.kq_soft_max"])
    traced = model.generate(ids, max_tokens=12, ignore_eos=True, trace=trace, logprobs=1)
    assert traced.logprobs == model.generate(ids, max_tokens=12, ignore_eos=True, logprobs=1).logprobs
    again = model.trace(trace.tokens, ["blk.*.l_out", "blk.*.kq_soft_max"])
    for point in again:  # recorded by plans, token by token, and eagerly, all at once
        np.testing.assert_array_equal(trace[point], again[point], err_msg=point)


@pytest.mark.real
def test_a_patched_number_is_that_of_an_edited_pass() -> None:
    model = ml.load("smollm2-135m")
    texts = (model.tokenizer.encode(f"The capital of {country} is") for country in ("France", "Italy"))
    clean, corrupted = texts
    metric = logit_difference(*(model.tokenizer.encode(city, add_special=False)[0] for city in (" Paris", " Rome")))
    grid = patch_grid(model, clean, corrupted, metric, layers=[3, 20], positions=[3, 4])
    source = model.trace(clean, ["blk.3.l_out", "blk.20.l_out"])
    for i, layer in enumerate(grid.layers):
        for j, position in enumerate(grid.positions):
            change = {f"blk.{layer}.l_out": edits.patch(source, positions=position)}
            assert grid.values[i, j] == metric(model.trace(corrupted, edits=change).logits[-1])


@pytest.fixture(scope="module")
def baseline() -> LlamaCpp:
    return LlamaCpp(ensure("baseline"))


@pytest.mark.llama_cpp
@pytest.mark.parametrize("name", ["smollm2-135m", "gemma3-270m"])
def test_recorded_values_are_those_of_llama_cpp(name: str, baseline: LlamaCpp) -> None:
    model = ml.load(name)
    ids = model.tokenizer.encode(PROMPT)
    theirs = llama_cpp_recording(model, Path(resolve(name)), ids, baseline)
    found = compare(model.trace(ids, "*"), theirs)
    assert found.equal, found.first_difference
    assert len(found.points) > 10 * model.config.n_layer


@pytest.mark.llama_cpp
def test_perplexity_is_that_of_llama_cpp(baseline: LlamaCpp) -> None:
    model = ml.load("smollm2-135m")
    text = (Path(__file__).parents[2] / "docs" / "exactness.md").read_text()
    ids = model.tokenizer.encode(text)[:512]
    found = model.perplexity(ids, n_ctx=128)
    chunks = [ids[i : i + 128] for i in range(0, 512, 128)]
    losses = []
    for chunk, logits in zip(chunks, baseline.logits(Path(resolve("smollm2-135m")), chunks), strict=True):
        for i in range(64, 127):  # as llama-perplexity: exponentials are floats, their sum is a double
            row = logits[i] - logits[i].max()
            losses.append(np.log(np.exp(row).astype(np.float64).sum()) - np.float64(row[chunk[i + 1]]))
    assert found.n_scored == len(losses)
    assert found.value == pytest.approx(np.exp(np.mean(losses)), rel=1e-6)
    assert found.error == pytest.approx(np.exp(np.mean(losses)) * np.std(losses) / np.sqrt(len(losses) - 1), rel=1e-5)
