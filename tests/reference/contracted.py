"""What contraction would change in quantizing: ggml's searches compiled with fused multiply-adds.

    python -m tests.reference.contracted path/to/llama.cpp     # an unpacked source; rewrites a table of exactness.md

Builds for x86-64 do not have this: quantizing is in ``libggml-base``, which is compiled for the baseline. A search
takes whatever has the smallest error, so that one ulp there decides between blocks.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from minillama.gguf.constants import GGMLType
from minillama.kernels.layouts import LAYOUTS
from tests.reference.build_llama_cpp import ensure
from tests.reference.document import write_table
from tests.reference.ggml import c_name
from tests.unit.kernels import quantize_inputs as inputs
from tests.unit.kernels.kernel_inputs import generator

HEAD = ("type", "blocks", "other when contracted", "blocks with importances", "other when contracted")
_FLAGS = ("-O3", "-mavx2", "-mfma", "-ffp-contract=fast", "-fPIC", "-shared", "-D_GNU_SOURCE")
_N_ROWS = 100


def compile_contracted(source: Path, folder: Path) -> ctypes.CDLL:
    """``ggml-quants.c`` compiled with FMA, the rest of ggml from the baseline build."""
    ggml, library = source / "ggml", folder / "contracted.so"
    base = ensure("baseline") / "llama_cpp" / "lib"
    includes = [f"-I{ggml / 'include'}", f"-I{ggml / 'src'}"]
    link = [f"-L{base}", "-lggml-base", f"-Wl,-rpath,{base}", "-lm"]
    command = ["cc", *_FLAGS, *includes, str(ggml / "src" / "ggml-quants.c"), "-o", str(library), *link]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(library))


def differing(library: ctypes.CDLL, type_: GGMLType, importances: tuple[str, ...]) -> tuple[int, int]:
    """Blocks quantized, and how many of them are others than ours."""
    function = getattr(library, f"quantize_{c_name(type_)}")
    function.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_int64] * 2 + [ctypes.c_void_p]
    blocks = other = 0
    for importance_kind in importances:
        for kind in ("normal", "heavy"):
            rng = generator("contracted", type_.name, kind, importance_kind)
            x = inputs.weight_values(kind, _N_ROWS, 2304, rng)
            importance = inputs.importances(importance_kind, x.shape[1], rng)
            theirs = np.zeros((len(x), LAYOUTS[type_].row_bytes(x.shape[1])), np.uint8)
            of_columns = None if importance is None else importance.ctypes.data
            function(x.ctypes.data, theirs.ctypes.data, *x.shape, of_columns)
            unequal = inputs.quantize_weights(type_, x, importance) != theirs
            by_block = unequal.reshape(-1, LAYOUTS[type_].type_size).any(axis=1)
            blocks, other = blocks + by_block.size, other + int(by_block.sum())
    return blocks, other


def measure(source: Path) -> Iterator[list[str]]:
    """A row per type that ggml searches for."""
    with tempfile.TemporaryDirectory() as folder:
        library = compile_contracted(source, Path(folder))
        for type_ in inputs.SEARCHED:
            figures = (*differing(library, type_, ("none",)), *differing(library, type_, ("uniform",)))
            yield [type_.name, *(f"{figure:,}" for figure in figures)]


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m tests.reference.contracted path/to/llama.cpp")
    write_table("contraction", HEAD, list(measure(Path(sys.argv[1]))))
