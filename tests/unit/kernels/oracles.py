"""What the operations mean, in float64 numpy, and how far a float32 result is from it.

The formulas are the textbook's, not ggml's order: a difference between our bits and ggml's can be attributed by the
error of each against them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

ULP = 2.0**-23


def _double(*arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    return tuple(np.asarray(a, np.float64) for a in arrays)


def error(got: np.ndarray, want: np.ndarray) -> float:
    """Largest error in ulps (2^-23) of the largest magnitude of its row, where both are finite."""
    got, want = _double(got, want)
    largest = np.max(np.abs(want), axis=-1, keepdims=True, initial=0, where=np.isfinite(want))
    scale = np.maximum(largest, np.finfo(np.float32).tiny) * ULP
    with np.errstate(invalid="ignore"):
        distance = np.abs(got - want) / scale
    return float(np.max(distance, initial=0, where=np.isfinite(want) & np.isfinite(got)))


def rms_norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    x, weight = _double(x, weight)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + float(eps)) * weight


def layer_norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    x, weight = _double(x, weight)
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred * centred).mean(-1, keepdims=True) + float(eps)) * weight


def softcap(x: np.ndarray, cap: float) -> np.ndarray:
    return float(cap) * np.tanh(x.astype(np.float64) / float(cap))


def sigmoid(x: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-x))


def erf(x: np.ndarray) -> np.ndarray:
    """The error function: by its series up to 3, by the continued fraction of its complement beyond."""
    size = np.minimum(np.abs(x), 7.0)
    total, term = size.copy(), size.copy()
    for n in range(1, 80):
        term = term * (-size * size) / n
        total = total + term / (2 * n + 1)
    fraction = size
    with np.errstate(divide="ignore"):
        for n in range(60, 0, -1):
            fraction = size + n / 2 / fraction
        tail = 1 - np.exp(-size * size) / np.sqrt(np.pi) / fraction
    return np.copysign(np.where(size < 3, 2 / np.sqrt(np.pi) * total, tail), x)


def _gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


_FUNCTIONS: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "silu": lambda x: x * sigmoid(x),
    "relu": lambda x: np.maximum(x, 0),
    "sigmoid": sigmoid,
    "tanh": np.tanh,
    "gelu": _gelu,
    "gelu_erf": lambda x: 0.5 * x * (1 + erf(x / np.sqrt(2))),
    "gelu_quick": lambda x: x * sigmoid(1.702 * x),
}
_GATES = {"swiglu": "silu", "reglu": "relu", "geglu": "gelu", "geglu_erf": "gelu_erf", "geglu_quick": "gelu_quick"}


def activation(name: str, x: np.ndarray) -> np.ndarray:
    return _FUNCTIONS[name](x.astype(np.float64))


def gated(name: str, gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    return activation(_GATES[name], gate) * up.astype(np.float64)


def swiglu_oai(gate: np.ndarray, up: np.ndarray, alpha: float, limit: float) -> np.ndarray:
    gate, up = _double(gate, up)
    gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
    return gate * sigmoid(float(alpha) * gate) * (up + 1)


def alibi_slopes(n_head: int, max_bias: float) -> np.ndarray:
    """Slopes of ALiBi: powers for the largest power of two of heads, then every other power of twice as many."""
    if max_bias <= 0:
        return np.ones(n_head)
    whole = 2 ** int(np.log2(n_head))
    first = 2.0 ** (-max_bias * np.arange(1, whole + 1) / whole)
    rest = 2.0 ** (-max_bias * np.arange(1, 2 * (n_head - whole), 2) / (2 * whole))
    return np.concatenate([first, rest])


def soft_max(
    scores: np.ndarray, mask: np.ndarray, sinks: np.ndarray, scale: float, max_bias: float = 0.0
) -> np.ndarray:
    """Of [n_head, n_tokens, n]; an empty mask or empty sinks are none."""
    x = scores.astype(np.float64) * float(scale)
    if len(mask):
        x = x + alibi_slopes(len(x), max_bias)[:, None, None] * mask.astype(np.float64)
    extra = sinks.astype(np.float64)[:, None, None] if len(sinks) else np.full((len(x), 1, 1), -np.inf)
    largest = np.maximum(x.max(-1, keepdims=True), extra)
    with np.errstate(invalid="ignore"):
        powers = np.exp(x - largest)
        return powers / (powers.sum(-1, keepdims=True) + np.exp(extra - largest))


def attention(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray, sinks: np.ndarray,
    scale: float, max_bias: float = 0.0, cap: float = 0.0,
) -> np.ndarray:  # fmt: skip
    """Of q [n_head, n_tokens, head_dim], k and v [n_head_kv, n, dim] to [n_tokens, n_head, value_dim]."""
    q, k, v = _double(q, k, v)
    group = len(q) // len(k)
    scores = q @ np.repeat(k, group, 0).transpose(0, 2, 1) * float(scale)
    if cap:
        scores = softcap(scores, cap)
    weights = soft_max(scores, mask, sinks, 1.0, max_bias)
    return (weights @ np.repeat(v, group, 0)).transpose(1, 0, 2)


def rope(
    x: np.ndarray, positions: np.ndarray, mode: str, n_rot: int, factors: np.ndarray | None, n_ctx_orig: int,
    base: float, freq_scale: float, ext: float, attn: float, beta_fast: float, beta_slow: float,
) -> np.ndarray:  # fmt: skip
    """Rotation of [n_tokens, n_head, head_dim], YaRN as in its paper."""
    pairs = np.arange(n_rot // 2)
    plain = float(base) ** (-2 * pairs / n_rot) / (1 if factors is None else factors.astype(np.float64))
    frequency, size = plain * freq_scale, attn
    if ext:
        first, last = (
            n_rot * np.log(n_ctx_orig / (turns * 2 * np.pi)) / (2 * np.log(base)) for turns in (beta_fast, beta_slow)
        )
        first, last = max(0, np.floor(first)), min(n_rot - 1, np.ceil(last))
        mix = (1 - np.clip((pairs - first) / max(0.001, last - first), 0, 1)) * ext
        frequency, size = frequency * (1 - mix) + plain * mix, attn * (1 - 0.1 * np.log(freq_scale))
    angle = positions[:, None, None] * frequency
    cos, sin = np.cos(angle) * size, np.sin(angle) * size
    at = (pairs, pairs + n_rot // 2) if mode == "neox" else (2 * pairs, 2 * pairs + 1)
    out = x.astype(np.float64)
    first, second = out[..., at[0]], out[..., at[1]]
    out[..., at[0]], out[..., at[1]] = first * cos - second * sin, first * sin + second * cos
    return out
