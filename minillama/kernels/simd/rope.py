"""Rotary position embedding on 16 pairs at a time: the results of ``reference.rope``."""

from __future__ import annotations

import numpy as np

from minillama.kernels.jit import Kernel, jit
from minillama.kernels.simd.floats import even_lanes, odd_lanes
from minillama.kernels.simd.vectors import add, load_f32x16, make_shuffle, multiply, store, subtract
from minillama.kernels.types import F32

LANES = 16
_low_pairs = make_shuffle([lane for i in range(8) for lane in (i, 16 + i)])
_high_pairs = make_shuffle([lane for i in range(8, 16) for lane in (i, 16 + i)])


@jit
def _load_apart(x: F32, at: int) -> tuple[object, object]:
    """The first and the second of 16 pairs that lie side by side."""
    low, high = load_f32x16(x, 4 * at), load_f32x16(x, 4 * (at + LANES))
    return even_lanes(low, high), odd_lanes(low, high)


@jit
def _load_norm(x: F32, base: int, pair: int, _n_pairs: int) -> tuple[object, object]:
    return _load_apart(x, base + 2 * pair)


@jit
def _load_neox(x: F32, base: int, pair: int, n_pairs: int) -> tuple[object, object]:
    return load_f32x16(x, 4 * (base + pair)), load_f32x16(x, 4 * (base + n_pairs + pair))


@jit
def _store_norm(out: F32, base: int, pair: int, _n_pairs: int, first: object, second: object) -> None:
    store(out, 4 * (base + 2 * pair), _low_pairs(first, second))
    store(out, 4 * (base + 2 * pair + LANES), _high_pairs(first, second))


@jit
def _store_neox(out: F32, base: int, pair: int, n_pairs: int, first: object, second: object) -> None:
    store(out, 4 * (base + pair), first)
    store(out, 4 * (base + n_pairs + pair), second)


def _make_rope(name: str, *, neox: bool) -> Kernel:
    """Rotate pairs (2i, 2i + 1), or with ``neox`` (i, i + n_rot / 2); values past n_rot are copied."""
    load_pairs, store_pairs = (_load_neox, _store_neox) if neox else (_load_norm, _store_norm)

    @jit(name=f"{name}_pair")
    def rotate_pair(x: F32, table: F32, angle: int, base: int, pair: int, n_pairs: int, out: F32) -> None:
        first = base + pair if neox else base + 2 * pair
        second = first + n_pairs if neox else first + 1
        cos, sin, x0, x1 = table[angle], table[angle + 1], x[first], x[second]
        out[first] = np.float32(x0 * cos) - np.float32(x1 * sin)
        out[second] = np.float32(x0 * sin) + np.float32(x1 * cos)

    @jit(name=name)
    def rope(x: F32, table: F32, n_head: int, out: F32, start: int, stop: int) -> None:
        """``ggml_compute_forward_rope``; every product and sum is rounded to float32."""
        head_dim, n_pairs = x.shape[1] // n_head, table.shape[1]
        in_lanes = n_pairs - n_pairs % LANES
        flat, angles, result = x.reshape(-1), table.reshape(-1), out.reshape(-1)
        for head in range(start * n_head, stop * n_head):
            base, angle = head * head_dim, head // n_head * 2 * n_pairs
            for pair in range(0, in_lanes, LANES):
                cos, sin = _load_apart(angles, angle + 2 * pair)
                x0, x1 = load_pairs(flat, base, pair, n_pairs)
                first = subtract(multiply(x0, cos), multiply(x1, sin))
                store_pairs(result, base, pair, n_pairs, first, add(multiply(x0, sin), multiply(x1, cos)))
            for pair in range(in_lanes, n_pairs):
                rotate_pair(flat, angles, angle + 2 * pair, base, pair, n_pairs, result)
            for k in range(base + 2 * n_pairs, base + head_dim):
                result[k] = flat[k]

    return rope


rope_norm = _make_rope("simd_rope_norm", neox=False)
rope_neox = _make_rope("simd_rope_neox", neox=True)
