"""Matrix products by type: bytes of weights a second for one token, multiply-adds a second for a prompt.

    python -m benchmarks.kernels [--types Q4_1 Q4_K ...] [--values 1536] [--tokens 256]

On random blocks with 1 and 2 threads, beside what the machine can read and multiply. Nothing else must be running.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Callable

import numpy as np

from minillama.gguf.constants import GGMLType
from minillama.kernels.jit import jit
from minillama.kernels.layouts import LAYOUTS
from minillama.kernels.registry import KernelSet, kernel_set
from minillama.kernels.simd.dots import dot_bytes, zeros_i32x16
from minillama.kernels.simd.lanes import load_i8x64, load_u8x64
from minillama.kernels.simd.vectors import add, lane_sum, load_i32x16
from minillama.kernels.types import U8

DEFAULT_TYPES = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")
DECODE_BYTES, PROMPT_ROWS = 400_000_000, 512
SECONDS = 0.4


@jit
def read(data: U8, start: int, stop: int) -> int:
    """Sum 64-byte lines."""
    a, b = zeros_i32x16(), zeros_i32x16()
    for line in range(start, stop, 2):
        a = add(a, load_i32x16(data, 64 * line))
        b = add(b, load_i32x16(data, 64 * line + 64))
    return lane_sum(add(a, b))


@jit
def multiply_adds(data: U8, start: int, stop: int) -> int:
    """Eight byte dots an item, whose sums do not wait for each other."""
    x, z = load_u8x64(data, 0), zeros_i32x16()
    s0, s1, s2, s3, s4, s5, s6, s7 = z, z, z, z, z, z, z, z
    for i in range(start, stop):
        y = load_i8x64(data, 64 * (i % 8))
        s0, s1, s2, s3 = dot_bytes(s0, x, y), dot_bytes(s1, x, y), dot_bytes(s2, x, y), dot_bytes(s3, x, y)
        s4, s5, s6, s7 = dot_bytes(s4, x, y), dot_bytes(s5, x, y), dot_bytes(s6, x, y), dot_bytes(s7, x, y)
    return lane_sum(add(add(add(s0, s1), add(s2, s3)), add(add(s4, s5), add(s6, s7))))


def rate(call: Callable[[int, int], object], n_items: int, work: float, n_threads: int) -> float:
    """The best rate, in 10^9 units of work a second, of calls over all items shared out over the threads."""
    bounds = [n_items * i // n_threads for i in range(n_threads + 1)]
    best, deadline = 0.0, time.perf_counter() + SECONDS
    while time.perf_counter() < deadline:
        threads = [threading.Thread(target=call, args=bounds[i : i + 2]) for i in range(1, n_threads)]
        start = time.perf_counter()
        for thread in threads:
            thread.start()
        call(*bounds[:2])
        for thread in threads:
            thread.join()
        best = max(best, work / (time.perf_counter() - start) / 1e9)
    return best


def random_rows(type_: GGMLType, n_rows: int, n: int) -> U8:
    """Packed rows of random bytes; scales that are not finite do not matter for speed."""
    row_bytes = LAYOUTS[type_].row_bytes(n)
    block = np.random.default_rng(0).integers(0, 0x3C, (64, row_bytes), np.uint8)
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
    data = np.ones(DECODE_BYTES // 128 * 128, np.uint8)
    read(data, 0, 2), multiply_adds(data, 0, 1)
    reading = [rate(lambda a, b: read(data, a // 2 * 2, b // 2 * 2), len(data) // 64, len(data), t) for t in (1, 2)]
    dots = [rate(lambda a, b: multiply_adds(data, a, b), 1_000_000, 8 * 64e6, t) for t in (1, 2)]
    print(f"machine, 1 and 2 threads: {reading[0]:.1f} {reading[1]:.1f} GB/s read, {dots[0]:.0f} {dots[1]:.0f} GMAC/s")
    print(f"{'type':6} decode GB/s 1, 2 threads   GMAC/s of {options.tokens} tokens: 1, 2 threads")
    for type_ in (GGMLType[name] for name in options.types):
        row_bytes = LAYOUTS[type_].row_bytes(n)
        n_rows = DECODE_BYTES // row_bytes
        decode = product(kernels, type_, random_rows(type_, n_rows, n), n, 1)
        figures = [rate(decode, n_rows, n_rows * row_bytes, t) for t in (1, 2)]
        line = f"{type_.name:6} {figures[0]:6.1f} {figures[1]:6.1f}      "
        for n_tokens in options.tokens:
            prompt = product(kernels, type_, random_rows(type_, PROMPT_ROWS, n), n, n_tokens)
            work = float(PROMPT_ROWS) * n * n_tokens
            line += " ".join(f"{rate(prompt, PROMPT_ROWS, work, t):7.1f}" for t in (1, 2)) + "    "
        print(line, flush=True)


if __name__ == "__main__":
    main()
