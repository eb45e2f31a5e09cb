"""Every tensor type beside ggml's: decoding, quantizing, dots; how many cases, how many of them bit-equal, how far.

    python -m tests.reference.exactness                # measures, rewrites the tables of docs/exactness.md

A case is a value decoded, a block quantized or the dot of two rows. Inputs are those of the kernels' tests, so that a
difference found here can be looked at there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from minillama.gguf.constants import GGMLType
from minillama.kernels.layouts import LAYOUTS, WEIGHT_TYPES
from minillama.kernels.reference.dot import DOT, DOT_FUSED
from minillama.kernels.registry import kernel_set
from tests.reference import ggml
from tests.reference.document import write_table
from tests.unit.kernels import kernel_inputs as inputs
from tests.unit.kernels import quantize_inputs

KERNELS = kernel_set("reference")
HEAD = ("type", "dequantize", "quantize", "quantize with importances", "dot")
FULL = 60  # rows of each kind of input
_LENGTHS = (3, 1, 8, 2049)  # blocks of the rows of a dot; a sample takes the first
_NOT_IN_CHUNK = (GGMLType.Q8_1, GGMLType.Q8_K)
_VECTORS = (GGMLType.F32, GGMLType.F16, GGMLType.BF16)


@dataclass
class Count:
    """Cases compared, those whose bits are equal, and the largest distance; blocks have no distance."""

    cases: int = 0
    equal: int = 0
    ulps: int | None = None

    def add_values(self, got: np.ndarray, want: np.ndarray) -> None:
        """Count float32 values."""
        same = inputs.same_bits(got, want)
        self.cases, self.equal = self.cases + same.size, self.equal + int(same.sum())
        distances = inputs.ulps(got, want)[~same]
        self.ulps = max(self.ulps or 0, int(distances.max(initial=0)))

    def add_blocks(self, type_: GGMLType, got: np.ndarray, want: np.ndarray) -> None:
        """Count packed blocks."""
        size = LAYOUTS[type_].type_size
        same = (got.reshape(-1, size) == want.reshape(-1, size)).all(axis=1)
        self.cases, self.equal = self.cases + same.size, self.equal + int(same.sum())

    def __str__(self) -> str:
        distance = "" if self.ulps is None else f", {self.ulps} ulp"
        return f"{self.equal:,} of {self.cases:,}{distance}"


Measure = Callable[[ggml.Ggml, GGMLType, int], Count | str]


def dequantize(build: ggml.Ggml, type_: GGMLType, n_rows: int) -> Count | str:
    """Values of packed rows of every kind, three blocks or more each."""
    if type_ is GGMLType.F32:
        return "stored as it is"
    if type_ is GGMLType.Q8_1:
        return "ggml has none"
    count, n = Count(), 3 * max(32, LAYOUTS[type_].block_size)
    for kind in inputs.WEIGHT_KINDS if type_ in WEIGHT_TYPES else ("random",):
        rng = inputs.generator("exactness", type_.name, kind)
        if type_ in WEIGHT_TYPES:
            packed = inputs.packed_rows(type_, 10 * n_rows, n, rng, kind)
        else:
            packed = inputs.raw_activation(type_, 10 * n_rows, n, rng)
        want = np.stack([build.dequantize(type_, row, n) for row in packed])
        count.add_values(inputs.get_rows(KERNELS, type_, packed, n), want)
    return count


def _weights(key: str, type_: GGMLType, n_rows: int) -> Iterator[tuple[np.ndarray, np.random.Generator]]:
    for kind in quantize_inputs.WEIGHT_INPUTS:
        rng = inputs.generator("exactness", key, type_.name, kind)
        yield quantize_inputs.weight_values(kind, n_rows, 768, rng), rng


def quantize(build: ggml.Ggml, type_: GGMLType, n_rows: int) -> Count | str:
    """Blocks by ``ggml_quantize_chunk`` without importances, or ``quantize_row_*_ref`` for activation formats."""
    if type_ not in quantize_inputs.QUANTIZE_WEIGHTS:
        return "decode and dot only"
    count = Count()
    for x, _ in _weights("quantize", type_, n_rows):
        want = build.quantize_rows(type_, x) if type_ in _NOT_IN_CHUNK else build.quantize_chunk(type_, x, None)
        count.add_blocks(type_, quantize_inputs.quantize_weights(type_, x), want)
    return count


def quantize_with_importances(build: ggml.Ggml, type_: GGMLType, n_rows: int) -> Count | str:
    """Blocks by ``ggml_quantize_chunk``, with importances of every kind."""
    if type_ not in quantize_inputs.QUANTIZE_WEIGHTS:
        return "decode and dot only"
    if type_ in _NOT_IN_CHUNK:
        return "activations only"
    if type_ not in quantize_inputs.SEARCHED:
        return "no search"
    count = Count()
    for importance_kind in quantize_inputs.IMPORTANCES[1:]:
        for x, rng in _weights(importance_kind, type_, n_rows):
            importance = quantize_inputs.importances(importance_kind, x.shape[1], rng)
            want = build.quantize_chunk(type_, x, importance)
            count.add_blocks(type_, quantize_inputs.quantize_weights(type_, x, importance), want)
    return count


def dot(build: ggml.Ggml, type_: GGMLType, n_rows: int) -> Count | str:
    """Dots of weights of every kind with converted rows of every kind and with random bytes."""
    activation_type = LAYOUTS[type_].activation
    if activation_type is None:
        return "activations only"
    if build.fuses and type_ in _VECTORS:
        return "summed in vectors"
    count, table = Count(), DOT_FUSED if build.fuses else DOT
    for n_blocks in _LENGTHS if n_rows >= FULL else _LENGTHS[:1]:
        n, few = n_blocks * max(32, LAYOUTS[type_].block_size), 2 if n_blocks > 8 else -(-n_rows // 6)
        for kind in (*inputs.INPUT_KINDS, "any bytes"):
            rng = inputs.generator("exactness dot", type_.name, kind, n_blocks)
            if kind == "any bytes":
                activation = inputs.raw_activation(activation_type, 3, n, rng)
            else:
                activation = inputs.quantize(KERNELS, activation_type, inputs.input_rows(kind, 3, n, rng))
            for weights in inputs.WEIGHT_KINDS:
                packed = inputs.packed_rows(type_, few, n, rng, weights)
                want = np.array([[build.dot(type_, row, a, n) for row in packed] for a in activation])
                count.add_values(inputs.dots(table, type_, packed, activation, n), want)
    return count


MEASURES: dict[str, Measure] = {
    "dequantize": dequantize,
    "quantize": quantize,
    "quantize with importances": quantize_with_importances,
    "dot": dot,
}
BUILDS: dict[str, Callable[[], ggml.Ggml]] = {"baseline": ggml.baseline, "packaged": ggml.packaged}
TYPES = tuple(LAYOUTS)


def cells(build: str, type_: GGMLType, n_rows: int) -> list[str]:
    """One row of a table, by a number of rows for each kind of input."""
    return [type_.name, *(str(measure(BUILDS[build](), type_, n_rows)) for measure in MEASURES.values())]


def main() -> None:
    """Measure every type against both builds and rewrite the tables."""
    for build in BUILDS:
        rows = []
        for type_ in TYPES:
            rows.append(cells(build, type_, FULL))
            print(f"{build}: {' | '.join(rows[-1])}", flush=True)
        write_table(f"types, {build}", HEAD, rows)


if __name__ == "__main__":
    main()
