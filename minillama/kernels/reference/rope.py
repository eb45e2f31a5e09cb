"""Rotary position embedding in ggml's arithmetic (``ggml_compute_forward_rope``)."""

from __future__ import annotations

import numpy as np

from minillama.kernels.jit import Kernel, jit
from minillama.kernels.reference.libm import cosf, sinf
from minillama.kernels.types import F32, I64


@jit
def rope_table(
    positions: I64, theta_scale: np.float32, freq_scale: np.float32, factors: F32, out: F32, start: int, stop: int
) -> None:
    """``ggml_rope_cache_init`` without YaRN: cosine and sine of every angle.

    ``out`` is float32 [n_tokens, n_rot / 2, 2]. The angle starts at the position and is multiplied by ``theta_scale``
    from pair to pair, rounded to float32 each time; it is divided by the pair's frequency factor and multiplied by
    ``freq_scale`` (linear scaling) before the cosine is taken.
    """
    for t in range(start, stop):
        theta = np.float32(positions[t])
        for pair in range(out.shape[1]):
            angle = np.float32(freq_scale * np.float32(theta / factors[pair]))
            out[t, pair, 0] = cosf(angle)
            out[t, pair, 1] = sinf(angle)
            theta = np.float32(theta * theta_scale)


def _make_rope(name: str, *, neox: bool) -> Kernel:
    """Rotate pairs (2i, 2i + 1), or with ``neox`` (i, i + n_rot / 2); values past n_rot are copied."""

    @jit(name=name)
    def rope(x: F32, table: F32, n_head: int, out: F32, start: int, stop: int) -> None:
        head_dim = x.shape[1] // n_head
        n_pairs = table.shape[1]
        for t in range(start, stop):
            for head in range(n_head):
                base = head * head_dim
                for pair in range(n_pairs):
                    first = base + pair if neox else base + 2 * pair
                    second = first + n_pairs if neox else first + 1
                    cos, sin = table[t, pair, 0], table[t, pair, 1]
                    x0, x1 = x[t, first], x[t, second]
                    out[t, first] = np.float32(x0 * cos) - np.float32(x1 * sin)
                    out[t, second] = np.float32(x0 * sin) + np.float32(x1 * cos)
                for k in range(base + 2 * n_pairs, base + head_dim):
                    out[t, k] = x[t, k]

    return rope


# rope(x: float32 [n_tokens, n_head * head_dim], table: float32 [n_tokens, n_rot / 2, 2], n_head, out, start, stop)
rope_norm = _make_rope("rope_norm", neox=False)
rope_neox = _make_rope("rope_neox", neox=True)
