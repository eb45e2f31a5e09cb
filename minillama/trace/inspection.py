"""Values and packed blocks in words: what a debugger shows of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from minillama.errors import InvalidInputError
from minillama.kernels.layouts import LAYOUTS
from minillama.model.weights import Weight
from minillama.trace.recording import Values

_BARS = "▁▂▃▄▅▆▇█"
_BINS = 24


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
        A bar for each of 24 equal parts from the smallest to the largest.
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

    def __str__(self) -> str:
        odd = "".join(f", {n} {what}" for n, what in ((self.n_nan, "NaN"), (self.n_inf, "infinite")) if n)
        return (
            f"{self.dtype} {list(self.shape)}  min {self.low:.4g}  max {self.high:.4g}  mean {self.mean:.4g}  "
            f"std {self.deviation:.4g}  norm {self.norm:.4g}{odd}  {self.histogram}"
        )


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


@dataclass(frozen=True)
class Block:
    """One packed block of a weight, field by field.

    Attributes
    ----------
    weight, type
        The tensor and its type.
    row, index
        Which row, and which block of it.
    fields
        Bytes of each field, and what they mean where that is one number: ``(name, bytes, number or None)``.
    values
        What the block decodes to, float32 [values of a block].
    """

    weight: str
    type: str
    row: int
    index: int
    fields: tuple[tuple[str, bytes, float | None], ...]
    values: npt.NDArray[np.float32]


def block_of(weight: Weight, row: int, index: int) -> Block:
    """Take a block apart.

    Raises
    ------
    InvalidInputError
        The weight has no such block.
    """
    layout = LAYOUTS[weight.type]
    n_blocks = weight.packed.shape[1] // layout.type_size
    if not (0 <= row < len(weight.packed) and 0 <= index < n_blocks):
        raise InvalidInputError(
            f"{weight.name} has {len(weight.packed)} rows of {n_blocks} blocks, not [{row}, {index}]"
        )
    packed = weight.packed[row, index * layout.type_size : (index + 1) * layout.type_size].tobytes()
    fields = []
    for name, size in layout.fields:
        raw = packed[layout.offset(name) : layout.offset(name) + size]
        fields.append((name, raw, _number(name, raw)))
    decoded = weight[row] if weight.ndim == 2 else weight
    values = decoded.dequantize().reshape(-1)[index * layout.block_size : (index + 1) * layout.block_size]
    return Block(weight.name, weight.quant, row, index, tuple(fields), values)


def _number(name: str, raw: bytes) -> float | None:
    """A field that is one number: halves, or a float."""
    if name == "value" or name not in ("d", "dmin", "m", "s"):
        return None
    kind: Any = {2: np.float16, 4: np.float32}.get(len(raw))
    return None if kind is None else float(np.frombuffer(raw, kind)[0])


def nonfinite_blocks(weight: Weight) -> list[tuple[int, int]]:
    """Row and number of each block that decodes to NaN or infinity."""
    size = LAYOUTS[weight.type].block_size
    rows, columns = np.nonzero(~np.isfinite(np.atleast_2d(weight.dequantize())))
    return sorted({(int(row), int(column) // size) for row, column in zip(rows, columns, strict=True)})
