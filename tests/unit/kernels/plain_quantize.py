"""Weights quantized by the kernels, to be computed compiled and, in another process, as plain Python.

Usage: ``NUMBA_DISABLE_JIT=1 python -W error plain_quantize.py results.npz``
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[3]))

from minillama.kernels.layouts import LAYOUTS
from minillama.kernels.reference.quantize_iq4 import quantize_row_iq4_nl_ref
from tests.unit.kernels import quantize_inputs as inputs
from tests.unit.kernels.kernel_inputs import generator

ORDINARY = ("normal", "zero", "constant")


def results() -> dict[str, np.ndarray]:
    """Packed bytes by type, kind of input and kind of importance."""
    found = {}
    for type_, importance_kind in inputs.CASES:
        n = max(32, LAYOUTS[type_].block_size)
        for kind in inputs.WEIGHT_INPUTS:
            if importance_kind != "none" and kind not in ORDINARY:
                continue
            rng = generator("plain", type_.name, kind, importance_kind)
            x = inputs.weight_values(kind, 1, n, rng)
            importance = inputs.importances(importance_kind, n, rng)
            # The other kinds overflow on purpose; numpy's scalars would warn where compiled code does not.
            with np.errstate(all="raise" if kind in ORDINARY and importance_kind != "extreme" else "ignore"):
                found[f"{type_.name} {kind} {importance_kind}"] = inputs.quantize_weights(type_, x, importance)
    row = inputs.weight_values("normal", 1, 64, generator("plain"))[0]
    found["IQ4_NL ref"] = np.empty(36, np.uint8)
    quantize_row_iq4_nl_ref(row, found["IQ4_NL ref"])
    return found


if __name__ == "__main__":
    np.savez(sys.argv[1], **results())
