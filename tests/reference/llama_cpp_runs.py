"""Answers of a llama.cpp build, got from a process of its own so that several builds can be asked side by side."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from tests.reference.build_llama_cpp import ensure

WORKER = Path(__file__).with_name("logits_worker.py")


def _run(build: str, request: dict[str, Any]) -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "request.json"
        path.write_text(json.dumps(request))
        env = {**os.environ, "PYTHONPATH": str(ensure(build))}
        command = [sys.executable, str(WORKER), str(path)]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the llama.cpp worker failed: {done.stderr[-2000:]}")
    return done.stdout


def evaluate(
    model: Path,
    texts: list[str],
    *,
    n_predict: int = 48,
    kv_type: str = "f32",
    build: str = "baseline",
    threads: int = 2,
    ubatch: int = 512,
) -> list[dict[str, Any]]:
    """Token ids and a hash of every position's logits, for each text and its greedy continuation."""
    request = {
        "model": str(model), "texts": texts, "n_predict": n_predict, "kv_type": kv_type, "threads": threads,
        "ubatch": ubatch,
    }  # fmt: skip
    return json.loads(_run(build, request))


def named_tensors(model: Path, text: str, *, kv_type: str = "f32", build: str = "baseline") -> dict[str, np.ndarray]:
    """Every float32 tensor of the evaluation of one prompt, by its name in llama.cpp's graph."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tensors.npz"
        request = {
            "model": str(model), "texts": [text], "n_predict": 0, "kv_type": kv_type, "threads": 2, "ubatch": 512,
            "tensors": str(path),
        }  # fmt: skip
        _run(build, request)
        with np.load(path) as saved:
            return dict(saved)
