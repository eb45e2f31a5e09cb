"""Matrix products by type: bytes of weights a second for one token, multiply-adds a second for a prompt.

    python -m benchmarks.kernels [--types Q4_1 Q4_K ...] [--values 1536] [--tokens 256]

On random blocks with 1 and 2 threads, beside what the machine can read and multiply. Nothing else must be running.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np

from minillama.bench.machine import best_rate, multiply_add_rate, read_bandwidth
from minillama.gguf.constants import GGMLType
from minillama.kernels.layouts import LAYOUTS, WEIGHT_TYPES
from minillama.kernels.registry import KernelSet, kernel_set
from minillama.kernels.types import U8

DEFAULT_TYPES = [type_.name for type_ in WEIGHT_TYPES]
DECODE_BYTES, PROMPT_ROWS = 400_000_000, 512


def random_rows(type_: GGMLType, n_rows: int, n: int) -> U8:
    """Packed rows of random bytes; scales that are not finite do not matter for speed.

    Floats, and exponents of MXFP4, are those of ordinary numbers: subnormal products take a hundred cycles.
    """
    row_bytes, rng = LAYOUTS[type_].row_bytes(n), np.random.default_rng(0)
    block = rng.integers(0, 0x3C, (64, row_bytes), np.uint8)
    if LAYOUTS[type_].block_size == 1:
        size = LAYOUTS[type_].type_size
        block.reshape(64, -1, size)[:, :, size - 1] = rng.choice(np.array([0x3C, 0xBC], np.uint8), (64, n))
    if type_ is GGMLType.MXFP4:
        block.reshape(64, -1, LAYOUTS[type_].type_size)[:, :, 0] = 120
    rows = np.ascontiguousarray(np.resize(block, (n_rows, row_bytes)))
    rows.flags.writeable = False
    return rows


def product(kernels: KernelSet, type_: GGMLType, weight: U8, n: int, n_tokens: int) -> Callable[[int, int], None]:
    """A call of the product of some rows with activations converted beforehand."""
    activation_type = LAYOUTS[type_].activation
    assert activation_type is not None
    x = np.random.default_rng(1).standard_normal((n_tokens, n)).astype(np.float32)
    activation = np.zeros((n_tokens, kernels.activation_bytes(activation_type, n)), np.uint8)
    kernels.quantize[activation_type](x, activation, 0, n_tokens)
    out = np.zeros((n_tokens, len(weight)), np.float32)
    scratch_bytes = kernels.mul_mat_scratch(type_, n, n_tokens)

    def call(start: int, stop: int) -> None:
        kernels.mul_mat[type_](weight, activation, n, out, np.empty(scratch_bytes, np.uint8), start, stop)

    call(0, 1)
    return call


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--types", nargs="+", default=DEFAULT_TYPES)
    parser.add_argument("--values", type=int, default=1536)
    parser.add_argument("--tokens", type=int, nargs="+", default=[256])
    options = parser.parse_args()
    kernels, n = kernel_set("cpu"), options.values
    reading = [read_bandwidth(t) / 1e9 for t in (1, 2)]
    dots = [multiply_add_rate(t) / 1e9 for t in (1, 2)]
    print(f"machine, 1 and 2 threads: {reading[0]:.1f} {reading[1]:.1f} GB/s read, {dots[0]:.0f} {dots[1]:.0f} GMAC/s")
    print(f"{'type':7} decode GB/s 1, 2 threads   GMAC/s of {options.tokens} tokens: 1, 2 threads")
    for type_ in (GGMLType[name] for name in options.types):
        row_bytes = LAYOUTS[type_].row_bytes(n)
        n_rows = DECODE_BYTES // row_bytes
        decode = product(kernels, type_, random_rows(type_, n_rows, n), n, 1)
        figures = [best_rate(decode, n_rows, n_rows * row_bytes / 1e9, t) for t in (1, 2)]
        line = f"{type_.name:7} {figures[0]:6.1f} {figures[1]:6.1f}      "
        for n_tokens in options.tokens:
            prompt = product(kernels, type_, random_rows(type_, PROMPT_ROWS, n), n, n_tokens)
            work = float(PROMPT_ROWS) * n * n_tokens
            line += " ".join(f"{best_rate(prompt, PROMPT_ROWS, work / 1e9, t):7.1f}" for t in (1, 2)) + "    "
        print(line, flush=True)


if __name__ == "__main__":
    main()
