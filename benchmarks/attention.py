"""Time of attention and of the small kernels between matrix products, on one thread, at the shapes of real models.

Usage: ``python -m benchmarks.attention [backend]``
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from minillama.kernels.reference.attention import BLOCK
from minillama.kernels.registry import KernelSet, kernel_set
from minillama.runtime.plan import aligned


@dataclass(frozen=True)
class Shape:
    """The sizes of a model that these kernels see."""

    name: str
    n_layer: int
    n_embd: int
    n_ff: int
    n_head: int
    n_head_kv: int
    head_dim: int


SHAPES = (
    Shape("smollm2-135m", 30, 576, 1536, 9, 3, 64),
    Shape("qwen2.5-0.5b", 24, 896, 4864, 14, 2, 64),
    Shape("qwen2.5-1.5b", 28, 1536, 8960, 12, 2, 128),
)
ROUNDS = 5


def floats(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Normal float32 numbers that start at a multiple of 64 bytes."""
    array = aligned(4 * int(np.prod(shape))).view(np.float32)[: int(np.prod(shape))].reshape(shape)
    array[...] = rng.standard_normal(shape)
    return array


def seconds(call: Callable[[], object]) -> float:
    """The best of some rounds, after one that compiles."""
    call()
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return best


def time_attention(kernels: KernelSet, shape: Shape, n_tokens: int, n_kv: int, dtype: np.dtype) -> tuple[float, float]:
    """Seconds of a layer's attention for the last ``n_tokens`` of ``n_kv`` positions, and its multiply-adds."""
    rng = np.random.default_rng(1)
    n_blocks = -(-n_kv // BLOCK)
    cache = [
        floats(rng, n_blocks, shape.n_head_kv, *axes) for axes in ((shape.head_dim, BLOCK), (BLOCK, shape.head_dim))
    ]
    if dtype == np.uint16:
        cache = [part.astype(np.float16).view(np.uint16) for part in cache]
    q, out = (floats(rng, n_tokens, shape.n_head * shape.head_dim) for _ in range(2))
    position = np.arange(n_kv - n_tokens, n_kv)
    place = rng.permutation(n_blocks)[None], np.zeros(n_tokens, np.int64), position
    scratch = aligned(kernels.attention_scratch(n_kv, shape.head_dim))
    n_items, scale = kernels.attention_items(n_tokens, shape.n_head), np.float32(shape.head_dim**-0.5)
    kernel = kernels.attention[dtype]
    elapsed = seconds(lambda: kernel(q, *cache, *place, shape.n_head, scale, out, scratch, 0, n_items))
    return elapsed, 2 * shape.head_dim * shape.n_head * float((position + 1).sum())


def time_pointwise(kernels: KernelSet, shape: Shape, n_tokens: int) -> dict[str, float]:
    """Seconds of a layer's other float kernels."""
    rng = np.random.default_rng(2)
    q_dim, kv_dim = shape.n_head * shape.head_dim, shape.n_head_kv * shape.head_dim
    x, y, out = (floats(rng, n_tokens, shape.n_embd) for _ in range(3))
    gate, up, gated = (floats(rng, n_tokens, shape.n_ff) for _ in range(3))
    q, rotated, table = (
        floats(rng, n_tokens, q_dim),
        floats(rng, n_tokens, q_dim),
        floats(rng, n_tokens, shape.head_dim // 2, 2),
    )
    k, v = (floats(rng, n_tokens, kv_dim) for _ in range(2))
    n_blocks = -(-n_tokens // BLOCK)
    keys = floats(rng, n_blocks, shape.n_head_kv, shape.head_dim, BLOCK)
    values = floats(rng, n_blocks, shape.n_head_kv, BLOCK, shape.head_dim)
    place = np.arange(n_blocks)[None], np.zeros(n_tokens, np.int64), np.arange(n_tokens)
    bias = floats(rng, q_dim)
    store = kernels.store_kv[np.dtype(np.float32)]
    calls = {
        "rms_norm": lambda: kernels.rms_norm(x, x[0], np.float32(1e-5), out, 0, n_tokens),
        "add": lambda: kernels.add(x, y, out, 0, n_tokens),
        "add_bias": lambda: kernels.add_bias(q, bias, rotated, 0, n_tokens),
        "swiglu": lambda: kernels.swiglu(gate, up, gated, 0, n_tokens),
        "rope_norm": lambda: kernels.rope_norm(q, table, shape.n_head, rotated, 0, n_tokens),
        "rope_neox": lambda: kernels.rope_neox(q, table, shape.n_head, rotated, 0, n_tokens),
        "store_kv": lambda: store(k, v, *place, keys, values, 0, n_tokens),
    }
    return {name: seconds(call) for name, call in calls.items()}


def main() -> None:
    """Print a table of all shapes."""
    kernels = kernel_set(sys.argv[1] if len(sys.argv) > 1 else "cpu")
    for shape in SHAPES:
        for n_tokens, n_kv in ((256, 256), (2048, 2048), (1, 256), (1, 2048)):
            for dtype in (np.dtype(np.float32), np.dtype(np.uint16)):
                elapsed, work = time_attention(kernels, shape, n_tokens, n_kv, dtype)
                kind = "f16" if dtype == np.uint16 else "f32"
                print(
                    f"{shape.name:13} attention {kind} {n_tokens:5} tokens of {n_kv:5}: "
                    f"{work / elapsed / 1e9:6.2f} GMAC/s, {elapsed * shape.n_layer * 1e3:9.2f} ms for all layers"
                )
        for n_tokens in (256, 1):
            times = time_pointwise(kernels, shape, n_tokens)
            parts = ", ".join(f"{name} {1e6 * value:.1f}" for name, value in times.items())
            print(f"{shape.name:13} {n_tokens:5} tokens, microseconds a layer: {parts}")


if __name__ == "__main__":
    main()
