"""Mutated files open or give a typed error: no crash, no hang, little memory. ``-m fuzz`` runs a hundred thousand."""

import time
import tracemalloc
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from mutations import mutated_files, samples

import minillama.gguf as ours
from minillama.errors import GGUFError, UnsupportedError

MEMORY = 1 << 20  # bytes; the promise is 64 MB beyond the file, these files are small
SECONDS = 2.0  # for one file of a few kilobytes, on a busy machine


def touch_everything(path: Path) -> None:
    with ours.open(path) as file:
        for tensor in file.tensors.values():
            if tensor.type is not None:
                tensor.data.sum()
        for value in file.metadata.values():
            if isinstance(value, ours.StringArray):
                value.raw_list()
            elif isinstance(value, np.ndarray):
                value.tobytes()


def test_the_valid_files_open(tmp_path):
    for content in samples():
        path = tmp_path / "valid.gguf"
        path.write_bytes(content)
        touch_everything(path)


@pytest.mark.parametrize(
    ("n", "traced"),
    [
        pytest.param(3000, False, id="many"),
        pytest.param(300, True, id="traced"),
        pytest.param(100_000, True, id="fuzz", marks=pytest.mark.fuzz),
    ],
)
def test_mutated_files_open_or_give_a_typed_error(tmp_path, n, traced):
    path, opened, slowest = tmp_path / "mutated.gguf", 0, 0.0
    if traced:
        tracemalloc.start()
    try:
        for content in islice(mutated_files(n), n):
            path.write_bytes(content)
            start = time.process_time()
            try:
                touch_everything(path)
                opened += 1
            except (GGUFError, UnsupportedError):
                pass
            slowest = max(slowest, time.process_time() - start)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert n / 20 < opened < n * 19 / 20  # else the mutations are too tame or too wild
    assert slowest < SECONDS
    assert peak < MEMORY
