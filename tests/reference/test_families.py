"""Every family, bit-equal to llama.cpp's baseline build: as recorded (families.json), and live (``llama_cpp``)."""

from __future__ import annotations

import functools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minillama import gguf
from minillama.model.families import FAMILIES as SUPPORTED
from minillama.model.model import Model
from minillama.verify import LlamaCpp
from minillama.verify.logits import first_difference
from tests.reference.build_llama_cpp import ensure
from tests.reference.families import N_PREDICT, PATH, TABLE, TEXT, greedy
from tests.reference.test_logits import assert_same_positions, hashes_in_chunks, position_hashes
from tests.tiny_families import CASES, ENCODERS, FAMILIES, file_hash

RECORDED = {(run["family"], run["types"]): run for run in json.loads(PATH.read_text())["runs"]}
EVERY_CASE = pytest.mark.parametrize(("name", "types"), CASES)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("families")


def written(folder: Path, name: str, types: str) -> Path:
    path = folder / f"{name}-{types}.gguf"
    return path if path.exists() else FAMILIES[name].write(path, types)


@functools.cache
def baseline() -> LlamaCpp:
    llama = LlamaCpp(ensure("baseline"))
    assert llama.is_baseline
    return llama


def test_every_architecture_is_measured() -> None:
    decoders = {name for name, declared in SUPPORTED.items() if not declared.is_encoder}
    assert {tiny.architecture for tiny in FAMILIES.values()} == decoders
    assert set(RECORDED) == set(CASES)
    rows = [line for line in TABLE.read_text().splitlines() if line.startswith("| ")][2:]
    encoders = [(name, types) for name, tiny in ENCODERS.items() for types in tiny.types]
    assert [tuple(row.split(" | ")[i].strip("| ") for i in (0, 3)) for row in rows] == CASES + encoders


@EVERY_CASE
@pytest.mark.parametrize(("driver", "size"), [("captured", 10**6), ("captured", 1), ("eager", 7)])
def test_recorded(folder: Path, name: str, types: str, driver: str, size: int) -> None:
    run, path = RECORDED[name, types], written(folder, name, types)
    assert file_hash(path) == run["file"], "the file is not the one that was recorded"
    model = Model(gguf.open(path), driver=driver)
    assert_same_positions(hashes_in_chunks(model, run["ids"], size), run["sha"], f"{name} {types}")


@EVERY_CASE
def test_recorded_after_a_pass_without_logits(folder: Path, name: str, types: str) -> None:
    run, model = RECORDED[name, types], Model(gguf.open(written(folder, name, types)))
    cache = model.new_cache()
    model.forward(run["ids"][:-1], cache, logits=None)
    assert position_hashes(model.forward(run["ids"][-1:], cache)[None]) == run["sha"][-1:]


@EVERY_CASE
def test_recorded_greedy(folder: Path, name: str, types: str) -> None:
    run = RECORDED[name, types]
    assert greedy(Model(gguf.open(written(folder, name, types))), run["ids"][: run["n_prompt"]]) == run["ids"]


@pytest.mark.parametrize("name", FAMILIES)
def test_recorded_by_the_reference_backend(folder: Path, name: str) -> None:
    run, path = RECORDED[name, "f16"], written(folder, name, "f16")
    logits = Model(gguf.open(path), backend="reference").logits(run["ids"][:12])
    assert_same_positions(position_hashes(logits), run["sha"][:12], name)


@pytest.mark.llama_cpp
@EVERY_CASE
@pytest.mark.parametrize("kv_type", ["f32", "f16"])
def test_live(folder: Path, name: str, types: str, kv_type: str) -> None:
    path = written(folder, name, types)
    (answer,) = baseline().evaluate(path, [TEXT], n_predict=N_PREDICT, kv_type=kv_type)
    if kv_type == "f32":
        assert answer["sha"] == RECORDED[name, types]["sha"], "the build no longer computes what was recorded"
    hashes = position_hashes(Model(gguf.open(path), kv_type=kv_type).logits(answer["ids"]))
    assert_same_positions(hashes, answer["sha"], f"{name} {types} {kv_type}")


@pytest.mark.llama_cpp
@pytest.mark.parametrize("name", FAMILIES)
def test_live_named_tensors(folder: Path, name: str) -> None:
    """Layer by layer, so that a fault in the logits has a place."""
    path = written(folder, name, FAMILIES[name].types[-1])
    model, ids = Model(gguf.open(path)), RECORDED[name, FAMILIES[name].types[-1]]["ids"]
    first, compared = first_difference(model, ids, baseline().tensors(path, ids))
    assert first is None
    assert compared > 10 * model.config.n_layer


# What a family is switched on for must change every late position: a test in which it does not could not see it.
SWITCHED_OFF: dict[str, tuple[str, dict[str, Any]]] = {
    "window": ("gemma3", {"n_swa": 0, "swa_layers": ()}),
    "all windows": ("gemma3", {"swa_layers": (True,) * 7}),
    "window by one": ("cohere2", {"n_swa": 7}),
    "base of windows": ("gemma3", {"rope_freq_base_swa": 1e6}),
    "scale outside windows": ("gemma3", {"rope_freq_scale": 1.0}),
    "scores' cap": ("gemma2", {"attn_softcap": 0.0}),
    "logits' cap": ("gemma2", {"final_softcap": 0.0}),
    "windows in turn": ("gemma2", {"swa_layers": (False, True, False)}),
    "attention scale": ("granite", {"attention_scale": 0.0}),
    "embedding scale": ("granite", {"embedding_scale": 0.0}),
    "residual scale": ("granite", {"residual_scale": 0.0}),
    "logit scale": ("granite", {"logit_scale": 0.0}),
    "no rotation": ("granite-nope", {"rope_layers": ()}),
    "rotating layers": ("smollm3", {"rope_layers": ()}),
    "rotating windows": ("cohere2", {"rope_layers": ()}),
    "parallel residual": ("gptneox", {"parallel_residual": False}),
    "YaRN": ("llama-yarn", {"rope_scaling": "linear"}),
    "YaRN's factor": ("llama-yarn", {"rope_attn_factor": 1.0}),
    "YaRN's context": ("llama-yarn", {"n_ctx_orig": 512}),
    "YaRN outside windows": ("olmo3", {"rope_scaling": "linear"}),
    "linear scaling": ("llama-linear", {"rope_freq_scale": 1.0}),
    "LongRoPE's factor": ("phi3", {"rope_attn_factor": 1.0}),
    "experts": ("llama-moe", {"n_expert_used": 1}),
    "windows with sinks": ("gpt-oss", {"n_swa": 0, "swa_layers": ()}),
}


@pytest.mark.parametrize("feature", SWITCHED_OFF)
def test_features_matter(folder: Path, feature: str) -> None:
    name, changes = SWITCHED_OFF[feature]
    run, path = RECORDED[name, FAMILIES[name].types[0]], written(folder, name, FAMILIES[name].types[0])
    model = Model(gguf.open(path), driver="eager")
    model.config = replace(model.config, **changes)
    hashes = position_hashes(model.logits(run["ids"]))
    assert not set(hashes[-8:]) & set(run["sha"][-8:])


def test_factors_of_long_contexts_are_chosen_by_the_context(folder: Path) -> None:
    path = written(folder, "phi3-long", "f16")
    long, short = (Model(gguf.open(path), n_ctx=n).logits([1, 2, 3]) for n in (65, 64))
    assert not np.array_equal(long[2], short[2])


def test_a_window_as_long_as_the_text_hides_nothing(folder: Path) -> None:
    path, run = written(folder, "gemma3", "f16"), RECORDED["gemma3", "f16"]
    logits = []
    for window in (len(run["ids"]), 128):  # with room for 128 positions, that is as if there were no window
        model = Model(gguf.open(path), driver="eager")
        model.config = replace(model.config, n_swa=window)
        logits.append(model.logits(run["ids"]))
    np.testing.assert_array_equal(logits[0], logits[1])


def test_sinks_matter(folder: Path) -> None:
    path, run = written(folder, "gpt-oss", "f16"), RECORDED["gpt-oss", "f16"]
    model = Model(gguf.open(path), driver="eager")
    for blk in model._bound.blk:
        blk.attn_sinks[:] = -np.inf
    assert not set(position_hashes(model.logits(run["ids"]))[-8:]) & set(run["sha"][-8:])
