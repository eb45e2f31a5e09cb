"""A model whose file is cut short, written to or replaced: an error, and never a dead process.

Each case runs in a process of its own, because what is tested is that it survives.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiny_models import TinyModel

PROGRAM = """
import os, sys
import numpy as np
from minillama.errors import GGUFError
from minillama.generate import load

path, driver, use_mmap = sys.argv[1], sys.argv[2], sys.argv[3] == "map"
def reload():
    return load(path, threads=1, driver=driver, backend="reference", use_mmap=use_mmap)
model = reload()
before = model.logits([1, 2, 3])
def attempt(what):
    try:
        return what()
    except GGUFError as error:
        print(str(error).partition(": ")[2])
"""


def run(path: Path, code: str, *, driver: str = "eager", mapping: str = "map") -> list[str]:
    command = [sys.executable, "-c", PROGRAM + code, str(path), driver, mapping]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"exit status {done.returncode}: {done.stderr}"
    return done.stdout.splitlines()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return TinyModel(n_layer=1).write(tmp_path / "tiny.gguf")


@pytest.mark.parametrize("driver", ["eager", "captured"])
def test_cut_short(path: Path, driver: str) -> None:
    size = path.stat().st_size
    uses = """
os.truncate(path, 5000)
attempt(lambda: model.logits([1, 2, 3]))
attempt(lambda: model.forward([1], model.new_cache()))
attempt(lambda: model.forward_batch([[1]], [model.new_cache()]))
attempt(lambda: model.step([1, 2]))
attempt(lambda: model.weights["blk.0.attn_q.weight"])
attempt(lambda: model.generate("the text"))
attempt(lambda: model.tokenizer)
"""
    message = f"the file changed while it was mapped: it had {size} bytes and has 5000; load it again"
    assert run(path, uses, driver=driver) == [message] * 7


def test_emptied_and_written_again(path: Path) -> None:
    uses = """
content = open(path, "rb").read()
os.truncate(path, 0)
attempt(lambda: model.logits([1]))
open(path, "wb").write(content)
os.utime(path, (1, 1))
attempt(lambda: model.logits([1]))
model = reload()
np.testing.assert_array_equal(model.logits([1, 2, 3]), before)
"""
    first, second = run(path, uses)
    assert first.endswith("bytes and has 0; load it again")
    assert second == "the file changed while it was mapped: it was written to; load it again"


def test_replaced_by_another_of_its_name(path: Path) -> None:
    """As editors, pip and rsync do it: the old file stays with those who have it mapped."""
    TinyModel(n_layer=1, seed=2).write(path.with_name("other.gguf"))
    uses = """
os.replace(os.path.join(os.path.dirname(path), "other.gguf"), path)
np.testing.assert_array_equal(model.logits([1, 2, 3]), before)
assert not np.array_equal(reload().logits([1, 2, 3]), before)
"""
    assert run(path, uses) == []


def test_a_model_in_memory_does_not_care(path: Path) -> None:
    uses = """
os.truncate(path, 0)
np.testing.assert_array_equal(model.logits([1, 2, 3]), before)
assert model.tokenizer.encode("a")
"""
    assert run(path, uses, mapping="read") == []
