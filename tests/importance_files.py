"""Importance matrices written as llama.cpp's ``imatrix`` writes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from minillama.gguf import Writer


def write_imatrix(
    path: Path,
    sums: Mapping[str, np.ndarray],
    counts: Mapping[str, Sequence[float]],
    *,
    datasets: Sequence[str] = ("texts",),
    n_chunks: int = 7,
) -> Path:
    """Write sums of squares and counts by tensor name."""
    with Writer(path) as writer:
        writer.add("general.type", "imatrix")
        writer.add("imatrix.datasets", list(datasets))
        writer.add("imatrix.chunk_count", n_chunks)
        writer.add("imatrix.chunk_size", 512)
        for name, numbers in sums.items():
            writer.add_tensor(f"{name}.in_sum2", numbers[None])
        for name, numbers in counts.items():
            writer.add_tensor(f"{name}.counts", np.array(numbers, np.float32)[:, None])
    return path
