"""Every operation beside ggml's, and how they compare.

    python -m tests.reference.operations          # measures, rewrites the table of docs/exactness.md

Distances and errors are in ulps of the largest magnitude of their row (2^-23 of it).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from tests.reference import ggml, matrix_operations, pointwise_operations
from tests.reference.document import write_table
from tests.reference.operation import Arguments, Operation
from tests.unit.kernels import oracles
from tests.unit.kernels.kernel_inputs import same_bits

OPERATIONS = {op.name: op for module in (pointwise_operations, matrix_operations) for op in module.operations()}


@dataclass
class Comparison:
    """Ours against one build of ggml: how much differs and how far, and the error of each against the oracle."""

    cases: int = 0
    values: int = 0
    differ: int = 0
    distance: float = 0.0
    our_error: float = 0.0
    their_error: float = 0.0

    def add(self, operation: Operation, arguments: Arguments, build: ggml.Ggml) -> None:
        """Count one case."""
        ours, theirs = operation.ours(*arguments), operation.ggml(build, *arguments)
        self.cases += 1
        self.values += ours.size
        self.differ += int(np.count_nonzero(~same_bits(ours, theirs)))
        self.distance = max(self.distance, oracles.error(ours, theirs))
        if operation.oracle is not None and _ordinary(arguments):
            want = operation.oracle(*arguments)
            self.our_error = max(self.our_error, oracles.error(ours, want))
            self.their_error = max(self.their_error, oracles.error(theirs, want))


def _ordinary(arguments: Arguments) -> bool:
    """Whether no value is so large or small that float32 overflows or underflows where float64 does not."""
    sizes = [np.abs(a[np.isfinite(a) & (a != 0)]) for a in arguments if getattr(a, "dtype", None) == np.float32]
    return all(not size.size or (size.min() > 1e-12 and size.max() < 1e12) for size in sizes)


def _number(value: float) -> str:
    return f"{value:.2g}" if value < 100 else f"{value:,.0f}"


HEAD = (
    "operation", "cases", "values", "equal to baseline", "equal to libggml-python", "distance", "error, ours",
    "error, libggml-python", "why it differs",
)  # fmt: skip


def measure() -> Iterator[list[str]]:
    """A row per operation; its variations (masks, options, scalings) are one row."""
    for name, group in groupby(OPERATIONS.values(), lambda op: op.name.split(",")[0]):
        baseline, packaged, variations = Comparison(), Comparison(), list(group)
        for operation in variations:
            for arguments in operation.cases():
                baseline.add(operation, arguments, ggml.baseline())
                packaged.add(operation, arguments, ggml.packaged())
        counts = (baseline.cases, baseline.values, baseline.values - baseline.differ, packaged.values - packaged.differ)
        has_oracle = any(operation.oracle is not None for operation in variations)
        errors = (packaged.our_error, packaged.their_error)
        reasons = dict.fromkeys(operation.reason for operation in variations if operation.reason)
        yield [
            name,
            *(f"{count:,}" for count in counts),
            _number(packaged.distance),
            *(_number(error) if has_oracle else "exact" for error in errors),
            "; ".join(reasons) if packaged.differ else "",
        ]


def main() -> None:
    """Measure every operation and rewrite the table."""
    rows = []
    for row in measure():
        rows.append(row)
        print(" | ".join(row), flush=True)
    write_table("operations", HEAD, rows)


if __name__ == "__main__":
    main()
