"""The Walsh-Hadamard transform, which llama.cpp rotates heads by before it quantizes them for the cache."""

from __future__ import annotations

import numpy as np

from minillama.kernels.jit import jit
from minillama.kernels.types import F32


@jit(name="hadamard")
def hadamard(x: F32, size: int, out: F32, start: int, stop: int) -> None:
    """``ggml_compute_forward_fwht`` of every ``size`` values of the rows, a power of two: float32 [n_rows, n].

    They are multiplied by 1 / sqrt(size), then replaced by sums and differences over distances of 1, 2, 4, ...
    It undoes itself, but for roundings.
    """
    scale = np.float32(np.float32(1) / np.sqrt(np.float32(size)))
    for row in range(start, stop):
        for first in range(0, x.shape[1], size):
            for j in range(first, first + size):
                out[row, j] = np.float32(x[row, j] * scale)
            step = 1
            while step < size:
                for i in range(first, first + size, 2 * step):
                    for j in range(i, i + step):
                        u, v = out[row, j], out[row, j + step]
                        out[row, j] = np.float32(u + v)
                        out[row, j + step] = np.float32(u - v)
                step *= 2
