"""Operations against one-operation graphs: the baseline build's bits, a measured distance to the packaged build.

The packaged build has AVX2 and fused multiply-add. ``python -m tests.reference.operations`` prints a table.
"""

from __future__ import annotations

import platform
import sys
from itertools import islice

import numpy as np
import pytest

from tests.reference import ggml
from tests.reference.operations import OPERATIONS, Comparison
from tests.unit.kernels.kernel_inputs import assert_same_bits

HAS_WHEELS = sys.platform == "linux" and platform.machine() == "x86_64"
EVERY_OPERATION = pytest.mark.parametrize("name", OPERATIONS)
STRIDE = 5  # of the cases against the packaged build; no divisor of the number of sizes, so that all are met


def label(name, arguments):
    shown = [f"{a.dtype}{list(a.shape)}" if isinstance(a, np.ndarray) else str(a) for a in arguments]
    return f"{name}({', '.join(shown)})"


@pytest.mark.llama_cpp
@EVERY_OPERATION
def test_bits_of_the_baseline_build(name):
    operation = OPERATIONS[name]
    for arguments in operation.cases():
        want = operation.ggml(ggml.baseline(), *arguments)
        assert_same_bits(operation.ours(*arguments), want, label(name, arguments))


@pytest.mark.skipif(not HAS_WHEELS, reason="libggml-python has wheels for Linux on x86-64 only")
@EVERY_OPERATION
def test_distance_to_the_packaged_build(name):
    operation, comparison = OPERATIONS[name], Comparison()
    for arguments in islice(operation.cases(), 0, None, STRIDE):
        if operation.bound == 0:
            want = operation.ggml(ggml.packaged(), *arguments)
            assert_same_bits(operation.ours(*arguments), want, label(name, arguments))
        else:
            comparison.add(operation, arguments, ggml.packaged())
    assert comparison.distance <= operation.bound, f"{comparison}; expected to differ because {operation.reason}"
