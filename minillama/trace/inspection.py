"""Values in words: what a debugger shows of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from minillama.trace.recording import Values

_BARS = "▁▂▃▄▅▆▇█"
_BINS = 16


@dataclass(frozen=True)
class Summary:
    """A value in a few numbers; NaNs, infinities and masked places (-inf) take no part in the first five.

    Attributes
    ----------
    shape, dtype
        Of the array.
    low, high, mean, deviation, norm
        Smallest, largest, mean, standard deviation and length.
    n_nan, n_inf
        How many are NaN, and infinite.
    histogram
        A bar for each of 16 equal parts from the smallest to the largest.
    """

    shape: tuple[int, ...]
    dtype: str
    low: float
    high: float
    mean: float
    deviation: float
    norm: float
    n_nan: int
    n_inf: int
    histogram: str

    @property
    def kind(self) -> str:
        """Type and shape."""
        return f"{self.dtype} {list(self.shape)}"

    @property
    def numbers(self) -> str:
        """All but type and shape."""
        if 0 in self.shape:
            return "empty"
        odd = "".join(f", {n} {what}" for n, what in ((self.n_nan, "NaN"), (self.n_inf, "infinite")) if n)
        return (
            f"min {self.low:.4g}  max {self.high:.4g}  mean {self.mean:.4g}  std {self.deviation:.4g}  "
            f"norm {self.norm:.4g}{odd}  {self.histogram}"
        )

    def __str__(self) -> str:
        return f"{self.kind}  {self.numbers}"


def summary(value: Values) -> Summary:
    """Summarize an array."""
    wide = value.astype(np.float64)
    finite = wide[np.isfinite(wide)]
    n_nan, n_inf = int(np.isnan(wide).sum()), int(np.isinf(wide).sum())
    if not len(finite):
        nan = float("nan")
        return Summary(value.shape, str(value.dtype), nan, nan, nan, nan, nan, n_nan, n_inf, "")
    counts, _ = np.histogram(finite, _BINS)
    heights = np.ceil(counts / counts.max() * (len(_BARS) - 1)).astype(int)
    return Summary(
        shape=value.shape,
        dtype=str(value.dtype),
        low=float(finite.min()),
        high=float(finite.max()),
        mean=float(finite.mean()),
        deviation=float(finite.std()),
        norm=float(np.sqrt((finite**2).sum())),
        n_nan=n_nan,
        n_inf=n_inf,
        histogram="".join(_BARS[height] for height in heights),
    )
