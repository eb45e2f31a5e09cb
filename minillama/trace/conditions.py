"""Where to stop a pass: conditions for :meth:`Stepper.until`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from minillama.runtime.probe import SCORES
from minillama.trace.differences import difference
from minillama.trace.recording import Values
from minillama.trace.stepper import Condition


def not_finite(name: str, value: Values) -> bool:
    """A NaN or an infinity, the -inf of attention's masked places aside."""
    broken = ~np.isfinite(value.astype(np.float32))
    if name.endswith(f".{SCORES}"):
        broken &= ~np.isneginf(value)
    return bool(broken.any())


def above(limit: float) -> Condition:
    """An absolute value over a limit; masked places and NaNs aside."""
    return lambda _name, value: bool((np.abs(value[np.isfinite(value)]) > limit).any())


def differs_from(other: Mapping[str, Values]) -> Condition:
    """Any bit that is not that of another run; points that the other run does not have are passed over."""
    return lambda name, value: name in other and not difference(name, value, other[name]).equal
