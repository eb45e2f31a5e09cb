"""A second process takes part in compiling, and its kernels are used."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from minillama.generate import load, warmup
from minillama.kernels import jit
from minillama.runtime import plan
from tests.tiny_models import TinyModel


def test_all_kernels_of_a_pass_are_compiled_attention_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, ...]] = []
    original = plan.entry_point

    def entry_point(kernel: Any, kinds: object, *, takes_scratch: bool) -> int:
        asked.append((kernel.__name__, kinds, takes_scratch))
        return original(kernel, kinds, takes_scratch=takes_scratch)

    monkeypatch.setattr(plan, "entry_point", entry_point)
    path = TinyModel(n_layer=1).write(tmp_path / "tiny.gguf")
    warmup.compile_from_the_end(str(path), "f16")
    ahead = asked.copy()
    asked.clear()
    model = load(path, kv_type="f16")
    model.recorded_pass([1, 2, 3], model.new_cache())
    assert set(asked) <= set(ahead)
    first = next(i for i, call in enumerate(ahead) if "attention" in call[0])
    assert first < next(i for i, call in enumerate(ahead) if "mul_mat" in call[0])


def test_a_process_starts_when_a_kernel_is_missing_and_only_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(warmup.subprocess, "Popen", lambda command, **_: started.append(command))
    monkeypatch.setattr(warmup, "_HELPERS", [])
    monkeypatch.setattr(jit, "_waiting", [])
    warmup.share_compilation("model.gguf", kv_type="f16")
    assert not started

    for _ in range(2):  # as the cache does when it has no kernel
        while jit._waiting:
            jit._waiting.pop()()
    assert [command[-2:] for command in started] == [["model.gguf", "f16"]]


def test_one_process_waits_for_the_other(tmp_path: Path) -> None:
    program = (
        "import sys, time; from minillama.kernels.jit import one_process_compiles as one\n"
        "with one('kernel'):\n print('in', flush=True); time.sleep(0.3); print('out', flush=True)"
    )
    with (tmp_path / "log").open("a") as log:
        both = [
            subprocess.Popen(
                [sys.executable, "-c", program], env={**os.environ, "MINILLAMA_CACHE": str(tmp_path)}, stdout=log
            )
            for _ in range(2)
        ]
        assert [process.wait() for process in both] == [0, 0]
    assert (tmp_path / "log").read_text().split() == ["in", "out", "in", "out"]
