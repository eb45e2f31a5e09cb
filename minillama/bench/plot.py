"""Tokens a second of decoding, drawn over the position."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from minillama.bench.report import Bench
from minillama.errors import MissingDependencyError


def plot(benches: Sequence[Bench], path: str | os.PathLike[str]) -> Path:
    """Draw the decoding rates of benchmarks into a file, in the format of its suffix.

    Parameters
    ----------
    benches
        Of each, the median rates over the positions, with lowest and highest; ours solid, llama.cpp's dashed.
    path
        The file.

    Raises
    ------
    MissingDependencyError
        matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingDependencyError("plots need matplotlib: pip install 'minillama[plot]'") from None
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    for i, bench in enumerate(benches):
        tests = sorted((test for test in bench.tests if test.kind == "decode"), key=lambda test: test.at)
        for name, line in (("minillama", "-"), (bench.llama_cpp, "--")):
            if name is None:
                continue
            spreads = [test.ours if name == "minillama" else test.theirs for test in tests]
            known = [(test.at, spread) for test, spread in zip(tests, spreads, strict=True) if spread is not None]
            middle = [spread.median for _, spread in known]
            errors = [[s.median - s.lowest for _, s in known], [s.highest - s.median for _, s in known]]
            label = f"{Path(bench.model).stem}, {bench.n_threads} threads, {name}"
            axes.errorbar(
                [at for at, _ in known], middle, yerr=errors, fmt=f"o{line}", color=f"C{i}", capsize=3, label=label
            )
    axes.set(xlabel="position", ylabel="decoded tokens per second", ylim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path)
    return Path(path)
