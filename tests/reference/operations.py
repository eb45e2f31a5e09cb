"""Every operation beside ggml's, and how they compare.

    python -m tests.reference.operations          # prints the table of docs/exactness.md

Distances and errors are in ulps of the largest magnitude of their row (2^-23 of it).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

import numpy as np

from tests.reference import ggml, matrix_operations, pointwise_operations
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


def main() -> None:
    """Print a row per operation; its variations (masks, options, scalings) are one row."""
    print(
        "| operation | cases | values | differ from the baseline build | differ from the packaged build "
        "| distance | error, ours | error, packaged |"
    )
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for name, variations in groupby(OPERATIONS.values(), lambda op: op.name.split(",")[0]):
        baseline, packaged = Comparison(), Comparison()
        for operation in variations:
            for arguments in operation.cases():
                baseline.add(operation, arguments, ggml.baseline())
                packaged.add(operation, arguments, ggml.packaged())
        cells = [f"{baseline.cases:,}", f"{baseline.values:,}", f"{baseline.differ:,}", f"{packaged.differ:,}"]
        cells += [_number(packaged.distance), _number(packaged.our_error), _number(packaged.their_error)]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
