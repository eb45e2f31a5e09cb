"""Rotary position embedding in ggml's arithmetic (``ggml_compute_forward_rope``)."""

from __future__ import annotations

import numpy as np

from minillama.kernels.jit import Kernel, jit
from minillama.kernels.reference.libm import cosf, logf, sinf
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


@jit
def _yarn_pair(n_rot: int, n_ctx_orig: int, base: np.float32, turns: np.float32) -> np.float32:
    """The pair that makes ``turns`` turns over the original context."""
    per_turn = np.float32(np.float32(turns * np.float32(2)) * np.float32(np.pi))
    length = logf(np.float32(np.float32(n_ctx_orig) / per_turn))
    return np.float32(np.float32(np.float32(n_rot) * length) / np.float32(np.float32(2) * logf(base)))


@jit
def yarn_range(
    n_rot: int, n_ctx_orig: int, base: np.float32, beta_fast: np.float32, beta_slow: np.float32
) -> tuple[np.float32, np.float32]:
    """``ggml_rope_yarn_corr_dims``: pairs up to the first keep their angle, from the second it is interpolated."""
    first = np.floor(_yarn_pair(n_rot, n_ctx_orig, base, beta_fast))
    last = np.ceil(_yarn_pair(n_rot, n_ctx_orig, base, beta_slow))
    return np.float32(max(np.float32(0), first)), np.float32(min(np.float32(n_rot - 1), last))


@jit
def rope_table_yarn(
    positions: I64, theta_scale: np.float32, freq_scale: np.float32, factors: F32, ext_factor: np.float32,
    attn_factor: np.float32, first: np.float32, last: np.float32, out: F32, start: int, stop: int,
) -> None:  # fmt: skip
    """``ggml_rope_cache_init``: as :func:`rope_table`, and YaRN unless ``ext_factor`` is 0.

    Between the pairs ``first`` and ``last`` (:func:`yarn_range`) the scaled angle goes over from the unscaled one.
    Cosine and sine are multiplied by ``attn_factor``, with YaRN also by ``1 + 0.1 ln(1 / freq_scale)``.
    """
    one = np.float32(1)
    size = attn_factor
    if ext_factor != 0:
        size = np.float32(size * np.float32(one + np.float32(np.float32(0.1) * logf(np.float32(one / freq_scale)))))
    width = max(np.float32(0.001), np.float32(last - first))
    for t in range(start, stop):
        theta = np.float32(positions[t])
        for pair in range(out.shape[1]):
            plain = np.float32(theta / factors[pair])
            angle = np.float32(freq_scale * plain)
            if ext_factor != 0:
                along = np.float32(np.float32(np.float32(pair) - first) / width)
                mix = np.float32(np.float32(one - min(one, max(np.float32(0), along))) * ext_factor)
                angle = np.float32(np.float32(angle * np.float32(one - mix)) + np.float32(plain * mix))
            out[t, pair, 0] = cosf(angle) * size
            out[t, pair, 1] = sinf(angle) * size
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
