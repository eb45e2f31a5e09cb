"""Whole files against llama.cpp's quantizer: every byte of the file it writes, for every mix."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from minillama import gguf
from minillama.gguf import BLOCK_SIZE, TYPE_SIZE, GGMLType
from minillama.hub import pull
from minillama.quantization import quantize_file, read_imatrix
from minillama.quantization.mixes import MIXES
from tests.importance_files import write_imatrix
from tests.reference.build_llama_cpp import ensure
from tests.tiny_models import TinyModel

pytestmark = pytest.mark.llama_cpp
WORKER = Path(__file__).parent / "quantize_worker.py"
F16 = {"matrix_type": GGMLType.F16, "embedding_type": GGMLType.F16}


def importance_of(path, spread):
    rng = np.random.default_rng(3)
    with gguf.open(path) as file:
        return {
            name: (rng.random(tensor.shape[-1]) ** spread).astype(np.float32)
            for name, tensor in file.tensors.items()
            if "blk" in name and len(tensor.shape) == 2
        }


# Layers: 17 so that eighths, sixteenths and thirds all differ; 80 with grouped heads is the "70B" of the rules.
SOURCES = {
    "f16": TinyModel(n_layer=17, **F16),
    "tied": TinyModel(n_layer=8, n_head=4, n_head_kv=1, tied=True, **F16),
    "f32": TinyModel(n_layer=2, architecture="qwen2", bias=True),
    "bf16": TinyModel(n_layer=2, matrix_type=GGMLType.BF16, embedding_type=GGMLType.BF16),
    "70b": TinyModel(n_layer=80, n_ff=256, **F16),
    "odd": TinyModel(n_layer=2, n_embd=288, n_ff=272, **F16),
    "q8_0": TinyModel(n_layer=3, matrix_type=GGMLType.Q8_0, embedding_type=GGMLType.Q8_0),
    "q4_k": TinyModel(n_layer=3, matrix_type=GGMLType.Q4_K, embedding_type=GGMLType.Q6_K),
}
WITH_IMPORTANCE = ("f16", "tied")
LARGE = {"70b": ("Q2_K", "Q3_K_S", "Q4_K_M")}  # the mixes to try of a source that takes long
CASES = [(name, mix) for name in SOURCES for mix in LARGE.get(name, MIXES)]


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    """Sources and what llama.cpp makes of them, by (source, mix, with importance)."""
    folder = tmp_path_factory.mktemp("llama_cpp")
    jobs, sources = {}, {}
    for name, model in SOURCES.items():
        sources[name] = model.write(folder / f"{name}.gguf")
        for mix in (MIXES[each] for each in LARGE.get(name, MIXES)):
            for weighted in (False, True) if name in WITH_IMPORTANCE else (False,):
                importance = {k: v.tolist() for k, v in importance_of(sources[name], 3).items()} if weighted else None
                jobs[name, mix.name, weighted] = {
                    "source": str(sources[name]),
                    "target": str(folder / f"{name}-{mix.name}-{weighted}.gguf"),
                    "file_type": mix.file_type,
                    "allow_requantize": True,
                    "importance": importance,
                }
    run_worker(list(jobs.values()), folder)
    return sources, {key: Path(job["target"]) for key, job in jobs.items()}


def run_worker(jobs, folder):
    listed = folder / "jobs.json"
    listed.write_text(json.dumps(jobs))
    environment = {**os.environ, "PYTHONPATH": str(ensure("baseline"))}
    command = [sys.executable, str(WORKER), str(listed)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


def assert_same_file(got, want, label):
    """Equal bytes; else say which tensor or key differs first."""
    if got.read_bytes() == want.read_bytes():
        return
    with gguf.open(got) as ours, gguf.open(want) as theirs:
        assert list(ours.metadata) == list(theirs.metadata), label
        assert list(ours.tensors) == list(theirs.tensors), label
        for name, tensor in theirs.tensors.items():
            mine = ours.tensors[name]
            assert mine.type_name == tensor.type_name, f"{label}: {name} is {mine.type_name}, {tensor.type_name} wanted"
            size = TYPE_SIZE[tensor.type]
            wrong = (mine.data.reshape(-1, size) != tensor.data.reshape(-1, size)).any(axis=1)
            found = f"{wrong.sum()} of {wrong.size} blocks of {BLOCK_SIZE[tensor.type]} differ"
            assert not wrong.any(), f"{label}: {name} {tensor.type_name}: {found}, first {wrong.argmax()}"
    raise AssertionError(f"{label}: the tensors are equal, the headers are not")


@pytest.mark.parametrize(("name", "mix"), CASES)
def test_the_same_file(name, mix, theirs, tmp_path):
    sources, targets = theirs
    got = quantize_file(sources[name], tmp_path / "ours.gguf", mix, allow_requantize=True)
    assert_same_file(got, targets[name, mix, False], f"{name} {mix}")


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("name", WITH_IMPORTANCE)
def test_the_same_file_with_importances(name, mix, theirs, tmp_path):
    sources, targets = theirs
    importance = importance_of(sources[name], 3)
    got = quantize_file(sources[name], tmp_path / "ours.gguf", mix, importance=importance)
    assert_same_file(got, targets[name, mix, True], f"{name} {mix} with importances")


@pytest.mark.parametrize("mix", ["Q4_K_M", "Q5_K_S", "Q4_0"])
def test_the_same_file_by_an_importance_file(mix, theirs, tmp_path):
    """As ``llama-quantize --imatrix``: it divides sums by counts in float32, and says so in the metadata."""
    source = theirs[0]["f16"]
    sums = {name: numbers * 300 for name, numbers in importance_of(source, 3).items()}
    counts = {name: [100 + len(name)] for name in sums}
    path = write_imatrix(tmp_path / "imatrix.gguf", sums, counts, datasets=["wiki.txt", "code.txt"])
    job = {
        "source": str(source),
        "target": str(tmp_path / "theirs.gguf"),
        "file_type": MIXES[mix].file_type,
        "allow_requantize": False,
        "importance": {name: (sums[name] / np.float32(counts[name][0])).tolist() for name in sums},
        "overrides": {
            "quantize.imatrix.file": str(path)[:127],
            "quantize.imatrix.dataset": "wiki.txt",
            "quantize.imatrix.entries_count": len(sums),
            "quantize.imatrix.chunks_count": 7,
        },
    }
    run_worker([job], tmp_path)
    got = quantize_file(source, tmp_path / "ours.gguf", mix, importance=read_imatrix(path))
    assert_same_file(got, tmp_path / "theirs.gguf", f"{mix} by an importance file")


@pytest.mark.real
def test_a_real_model(tmp_path):
    # SmolLM2 has Q4_1 and F32 tensors; its F16 version is the source, as for a person who converts a checkpoint.
    source = tmp_path / "f16.gguf"
    quantize_file(pull("smollm2-135m"), source, "F16", allow_requantize=True)
    for mix in ("Q8_0", "Q4_0", "Q6_K", "Q4_K_M"):
        want = tmp_path / f"{mix}.gguf"
        job = {"source": str(source), "target": str(want), "importance": None, "allow_requantize": False}
        run_worker([{**job, "file_type": MIXES[mix].file_type}], tmp_path)
        assert_same_file(quantize_file(source, tmp_path / "ours.gguf", mix), want, f"SmolLM2 {mix}")
