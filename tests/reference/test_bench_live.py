"""The benchmark as a command, on the default model, with the real llama.cpp on the other side."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.reference.build_llama_cpp import ensure

pytestmark = [pytest.mark.llama_cpp, pytest.mark.real]


def test_both_sides_are_measured_and_drawn(tmp_path: Path) -> None:
    command = [
        sys.executable, "-m", "minillama", "bench", "-p", "16", "-n", "4", "-t", "1", "--rounds", "2", "--profile",
        "--llama-cpp", str(ensure("baseline")), "--plot", str(tmp_path / "plot.png"), "--json",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    (found,) = json.loads(done.stdout)
    assert found["llama_cpp"] == "llama-cpp-python 0.3.36"
    assert [test["kind"] for test in found["tests"]] == ["prompt", "decode"]
    for test in found["tests"]:
        assert test["ratio"] > 0
        assert test["ours"]["lowest"] <= test["ours"]["median"] <= test["ours"]["highest"]
    assert found["theirs"]["load_seconds"] > 0
    assert len(found["profiles"]) == 2
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
