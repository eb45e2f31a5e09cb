"""What a layer's rotary angles are computed from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from minillama.kernels.types import F32


@dataclass(frozen=True)
class Yarn:
    """How angles are interpolated and their cosine and sine scaled (``ggml_rope_cache_init``).

    Attributes
    ----------
    ext_factor
        How much of the interpolation is used; 0: none.
    attn_factor
        What cosine and sine are multiplied by.
    first, last
        Pairs between which the interpolation sets in.
    """

    ext_factor: np.float32
    attn_factor: np.float32
    first: np.float32
    last: np.float32


@dataclass(frozen=True)
class Rotary:
    """Rotary angles.

    Attributes
    ----------
    theta_scale
        Ratio of the angles of neighbouring pairs.
    freq_scale
        What every angle is multiplied by.
    factors
        What the angle of each pair is divided by, float32 [n_rot / 2].
    yarn
        Interpolation, if there is any.
    """

    theta_scale: np.float32
    freq_scale: np.float32
    factors: F32
    yarn: Yarn | None = None
