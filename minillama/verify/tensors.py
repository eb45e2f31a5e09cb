"""Level 1: every tensor of the file, decoded by us and by ggml, bit for bit."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from minillama.errors import MissingDependencyError, UnsupportedError
from minillama.gguf import BLOCK_SIZE, GGUFFile, TensorInfo
from minillama.model.weights import Weight
from minillama.runtime.eager import Eager
from minillama.verify.ggml import Ggml, installed_ggml
from minillama.verify.report import Level, TensorResult

_VALUES_AT_ONCE = 1 << 22


def verify_tensors(
    file: GGUFFile, driver: Eager, progress: Callable[[int, int, str], None] | None = None, ggml: Ggml | None = None
) -> Level:
    """Compare every tensor; NaNs and infinities are counted and the first block that has one is named."""
    level = Level("tensors")
    try:
        ggml = installed_ggml() if ggml is None else ggml
    except MissingDependencyError as error:
        level.missing = str(error)
        return level
    level.against = f"ggml ({ggml.folder.parent.name})"
    for i, tensor in enumerate(file.tensors.values()):
        if progress is not None:
            progress(i, len(file.tensors), tensor.name)
        level.tensors.append(_verify_tensor(tensor, driver, ggml))
    compared = [result for result in level.tensors if result.skipped is None]
    different = [result.name for result in compared if result.n_different]
    level.passed = bool(compared) and not different
    n_values = sum(result.n_values for result in compared)
    level.summary = f"{len(compared) - len(different)} of {len(compared)} tensors bit-equal, {n_values:,} values"
    skipped = len(level.tensors) - len(compared)
    if skipped:
        level.summary += f", {skipped} not compared"
    return level


def _verify_tensor(tensor: TensorInfo, driver: Eager, ggml: Ggml) -> TensorResult:
    try:
        weight = Weight.of(tensor, driver)
    except UnsupportedError as error:
        return TensorResult(tensor.name, tensor.type_name, tensor.n_elements, skipped=str(error))
    n = tensor.shape[-1]
    different = nonfinite = 0
    first_different = first_nonfinite = None
    step = max(1, _VALUES_AT_ONCE // n)
    for start in range(0, len(weight.packed), step):
        rows = weight.packed[start : start + step]
        ours = Weight(tensor.name, (len(rows), n), weight.type, rows, driver).dequantize()
        theirs = ggml.dequantize(weight.type, rows, n)
        unequal = ours.view(np.uint32) != theirs.view(np.uint32)
        strange = ~np.isfinite(ours)
        if first_different is None and unequal.any():
            row, index = (int(i) for i in np.argwhere(unequal)[0])
            values = f"{ours[row, index]!r} against {theirs[row, index]!r}"
            first_different = f"row {start + row}, index {index}: {values}"
        if first_nonfinite is None and strange.any():
            row, index = (int(i) for i in np.argwhere(strange)[0])
            first_nonfinite = f"row {start + row}, block {index // BLOCK_SIZE[weight.type]}"
        different += int(unequal.sum())
        nonfinite += int(strange.sum())
    return TensorResult(
        tensor.name, weight.quant, tensor.n_elements, different, nonfinite, first_nonfinite, first_different
    )
