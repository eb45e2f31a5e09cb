"""Tracing on the real models: no bit changes, and recorded values are llama.cpp's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

import minillama as ml
from minillama.cli import main
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
def test_stepping_and_comparing_with_llama_cpp_on_the_command_line(baseline: LlamaCpp, tmp_path: Path) -> None:
    folder = str(ensure("baseline"))

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(main, list(arguments))

    script = tmp_path / "script.txt"
    script.write_text(
        "break differs llama.cpp\nuntil blk.3.ffn_out\nreplace scale 2 0, 5\ncontinue\n"
        "back blk.3.ffn_inp\ncontinue\ndiff llama.cpp\n"
    )
    done = run("step", PROMPT, "--llama-cpp", folder, "--commands", str(script))
    assert done.exit_code == 0, done.output
    assert "breakpoint 1: differs llama.cpp\nblk.3.l_out: float32" in done.stdout  # the first that was not replaced
    after = done.stdout.split("(step) back blk.3.ffn_inp")[1]
    assert "the pass came to its end" in after  # the replacement is gone
    assert "values equal" in after

    ours, theirs = str(tmp_path / "ours.npz"), str(tmp_path / "theirs.safetensors")
    assert run("trace", PROMPT, "--save", ours).exit_code == 0
    assert run("trace", PROMPT, "--llama-cpp", folder, "--save", theirs).exit_code == 0
    found = run("compare", ours, theirs)
    assert (found.exit_code, found.stdout.splitlines()[1][:22]) == (0, "head: KL mean 0 max 0,")
    assert "points equal in every bit" in found.stdout
