"""Rotary angles of a model's layers: its base, its scaling (linear, YaRN, LongRoPE), its frequency factors."""

from __future__ import annotations

import numpy as np

from minillama.kernels.reference.libm import logf
from minillama.kernels.reference.rope import yarn_range
from minillama.kernels.types import F32
from minillama.model.config import ModelConfig
from minillama.model.weights import Binder
from minillama.runtime.rotary import Rotary, Yarn

# Turns over the original context from which an angle is kept, and up to which it is interpolated: llama.cpp's defaults.
_BETA_FAST, _BETA_SLOW = np.float32(32), np.float32(1)
_ZERO, _ONE, _TENTH = np.float32(0), np.float32(1), np.float32(0.1)


def frequency_factors(binder: Binder, config: ModelConfig, n_ctx: int) -> F32:
    """What each pair's angle is divided by: the file's factors, if it has any, for contexts of ``n_ctx``."""
    size = config.n_rot // 2
    # All are looked up, so that none counts as unused.
    found = {
        name: binder.optional_vector(f"{name}.weight", size)
        for name in ("rope_freqs", "rope_factors_long", "rope_factors_short")
    }
    by_length = found["rope_factors_long" if n_ctx > config.n_ctx_orig else "rope_factors_short"]
    factors = by_length if found["rope_freqs"] is None else found["rope_freqs"]
    return np.ones(size, np.float32) if factors is None else factors


def rotary(config: ModelConfig, factors: F32) -> Rotary:
    """Angles of layers that see everything."""
    return Rotary(
        config.rope_theta_scale, np.float32(config.rope_freq_scale), factors, _yarn(config, config.rope_freq_base)
    )


def rotary_swa(config: ModelConfig, factors: F32) -> Rotary:
    """Angles of layers with a sliding window, which have a base and a scale of their own."""
    base = config.rope_freq_base_swa
    return Rotary(config.theta_scale(base), np.float32(config.rope_freq_scale_swa), factors, _yarn(config, base))


def rotary_plain(config: ModelConfig, factors: F32) -> Rotary:
    """Angles as they were before any scaling."""
    return Rotary(config.rope_theta_scale, _ONE, factors)


def _yarn(config: ModelConfig, base: float) -> Yarn | None:
    attn_factor = np.float32(config.rope_attn_factor)
    if config.rope_scaling != "yarn":
        return None if attn_factor == 1 else Yarn(_ZERO, attn_factor, _ZERO, _ZERO)
    # ggml multiplies by 1 + 0.1 ln(factor); llama.cpp takes that back, rounding, and puts its own in its place.
    log = np.float32(logf(np.float32(_ONE / np.float32(config.rope_freq_scale))))
    size = _ONE if config.rope_freq_scale >= 1 else np.float32(np.float32(_TENTH * log) + _ONE)
    size = np.float32(size * np.float32(_ONE / np.float32(_ONE + np.float32(_TENTH * log))))
    first, last = yarn_range(config.n_rot, config.n_ctx_orig, np.float32(base), _BETA_FAST, _BETA_SLOW)
    return Yarn(_ONE, np.float32(size * attn_factor), np.float32(first), np.float32(last))
