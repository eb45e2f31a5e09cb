"""What is compared of an operation: arguments, our kernel, ggml's graph, the oracle, and the distance to expect."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.unit.kernels import kernel_inputs as inputs

SIZES = (*range(1, 18), 31, 63, 64, 100, 255)
KINDS = (*inputs.INPUT_KINDS, "moderate", "special")

Array = np.ndarray
Arguments = tuple[Any, ...]


@dataclass(frozen=True)
class Operation:
    """One operation; ``bound`` is the largest distance of the packaged build (AVX2, FMA) allowed, 0 for equal bits."""

    name: str
    cases: Callable[[], Iterator[Arguments]]
    ours: Callable[..., Array]
    ggml: Callable[..., Array]
    oracle: Callable[..., Array] | None
    bound: float = 0.0
    reason: str = ""


def rows(kind: str, n_rows: int, n: int, rng: np.random.Generator) -> Array:
    """Inputs of the kernels' tests, values where functions bend, and rows that hold zeros, infinities and a NaN."""
    if kind == "moderate":
        return (rng.standard_normal((n_rows, n)) * 12).astype(np.float32)
    if kind == "special":
        x = inputs.input_rows("normal", n_rows, n, rng)
        values = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 1e-45, -1e-45, 3.4e38, -3.4e38], np.float32)
        x[:, rng.integers(0, n, len(values))] = values
        return x
    return inputs.input_rows(kind, n_rows, n, rng)


def each(name: str, n_arrays: int, *rest: Any, kinds: tuple[str, ...] = KINDS, n_rows: int = 3) -> Iterator[Arguments]:
    """``n_arrays`` arrays of every kind and size, then the other arguments."""
    for kind in kinds:
        for n in SIZES:
            rng = inputs.generator(name, kind, n)
            yield (*(rows(kind, n_rows, n, rng) for _ in range(n_arrays)), *rest)


def run(kernel: Callable[..., None], *arguments: Any) -> Array:
    """A kernel over all rows of its first argument."""
    out = np.full_like(arguments[0], 12345.0)
    kernel(*arguments, out, 0, len(out))
    return out
