"""How far two values are apart."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from minillama.errors import InvalidInputError
from minillama.trace.recording import Values


@dataclass(frozen=True)
class Difference:
    """How far two values of one point are apart.

    Attributes
    ----------
    name
        The point.
    n_different, n_values
        Values whose bits differ, of how many.
    first
        Index of the first that does; None if all are equal.
    cosine
        Cosine of the two, taken as vectors; 1 where both are zero.
    relative
        Length of the difference, divided by the length of the second.
    largest
        Largest absolute difference.
    """

    name: str
    n_different: int
    n_values: int
    first: tuple[int, ...] | None
    cosine: float
    relative: float
    largest: float

    @property
    def equal(self) -> bool:
        """Whether every bit is the same."""
        return self.n_different == 0

    def __str__(self) -> str:
        if self.equal:
            return f"{self.name}: all {self.n_values} values equal"
        return (
            f"{self.name}: {self.n_different} of {self.n_values} values differ, first at {self.first}, largest "
            f"difference {self.largest:.4g}, cosine {self.cosine:.6f}, relative error {self.relative:.3g}"
        )


def difference(name: str, ours: Values, theirs: Values) -> Difference:
    """Compare two values; masked places (-inf in both) count as equal.

    Raises
    ------
    InvalidInputError
        They have different shapes.
    """
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        raise InvalidInputError(
            f"{name}: {ours.dtype} {ours.shape} and {theirs.dtype} {theirs.shape} cannot be compared"
        )
    a, b = np.ascontiguousarray(ours), np.ascontiguousarray(theirs)
    unequal = a.view(f"u{a.itemsize}") != b.view(f"u{b.itemsize}")
    first = tuple(int(i) for i in np.argwhere(unequal)[0]) if unequal.any() else None
    masked = np.isinf(a) & (a == b)
    x, y = (np.where(masked, 0, part.astype(np.float64)) for part in (a, b))
    with np.errstate(invalid="ignore", over="ignore"):
        delta = x - y
        return Difference(
            name, int(unequal.sum()), a.size, first, _cosine(x, y), _ratio(_norm(delta), _norm(y)),
            float(np.abs(delta).max(initial=0)),
        )  # fmt: skip


def kl_divergence(logits: Values, of: Values) -> npt.NDArray[np.float64]:
    """Kullback-Leibler divergence of each row's probabilities from those of ``of``: sum of p log(p / q)."""
    log_q, log_p = log_softmax(logits), log_softmax(of)
    divergence: npt.NDArray[np.float64] = np.maximum((np.exp(log_p) * (log_p - log_q)).sum(axis=-1), 0)
    return divergence


def log_softmax(logits: Values) -> npt.NDArray[np.float64]:
    """Log probabilities of each row, in double precision."""
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    result: npt.NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return result


def _cosine(x: npt.NDArray[np.float64], y: npt.NDArray[np.float64]) -> float:
    lengths = _norm(x) * _norm(y)
    if lengths == 0:
        return 1.0 if _norm(x) == _norm(y) else 0.0
    return float((x * y).sum() / lengths)


def _norm(x: npt.NDArray[np.float64]) -> float:
    return float(np.sqrt((x * x).sum()))


def _ratio(a: float, b: float) -> float:
    return a / b if b else (0.0 if a == 0 else float("inf"))
