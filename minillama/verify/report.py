"""What a verification found: one result per level, each with a verdict, printable and serialisable."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class TensorResult:
    """One tensor decoded by us and by ggml.

    Attributes
    ----------
    name, type
        The tensor and its type.
    n_values, n_different
        Values compared, and those whose bits differ.
    n_nonfinite, first_nonfinite
        Values that are NaN or infinite, and the first block that has one.
    first_different
        Row, index, our value and ggml's, of the first that differs.
    skipped
        Why the tensor was not compared, if it was not.
    """

    name: str
    type: str
    n_values: int
    n_different: int = 0
    n_nonfinite: int = 0
    first_nonfinite: str | None = None
    first_different: str | None = None
    skipped: str | None = None


@dataclass(frozen=True)
class TokenDifference:
    """A text whose ids differ."""

    text: str
    ours: list[int]
    theirs: list[int]


@dataclass(frozen=True)
class PointDifference:
    """The first named value, in graph order, that differs: where, both values, and what usually causes it."""

    point: str
    tensor: str
    n_different: int
    n_values: int
    row: int
    index: int
    ours: float
    theirs: float
    ulps: int
    likely_causes: str


@dataclass(frozen=True)
class Distance:
    """How far two sets of logits are apart.

    Attributes
    ----------
    n_positions, n_equal
        Positions compared, and those whose logits are equal bit for bit.
    largest
        Largest absolute difference of a logit.
    n_argmax
        Positions whose likeliest token differs.
    mean_kl, max_kl
        Kullback-Leibler divergence of the next-token distribution (theirs from ours), in nats, over positions.
    """

    n_positions: int
    n_equal: int
    largest: float
    n_argmax: int
    mean_kl: float
    max_kl: float


@dataclass
class Level:
    """One level of a verification.

    Attributes
    ----------
    name
        ``"tensors"``, ``"tokens"`` or ``"logits"``.
    against
        What was compared with.
    passed
        True, False, or None if there is no verdict: the level did not run, or only distances were measured.
    summary
        One line.
    missing
        What is needed to run the level, and how to install it.
    """

    name: str
    against: str = ""
    passed: bool | None = None
    summary: str = ""
    missing: str | None = None
    tensors: list[TensorResult] = field(default_factory=list)
    tokens: list[TokenDifference] = field(default_factory=list)
    first_point: PointDifference | None = None
    n_points: int = 0
    distance: Distance | None = None
    own_distance: Distance | None = None
    greedy: str = ""


@dataclass
class Report:
    """All levels of a verification of one model."""

    model: str
    levels: list[Level] = field(default_factory=list)

    @property
    def passed(self) -> bool | None:
        """Whether every level with a verdict passed; None if there was no verdict, so that nothing is verified."""
        verdicts = [level.passed for level in self.levels if level.passed is not None]
        return all(verdicts) if verdicts else None

    @property
    def verdict(self) -> str:
        """One line: what was found, and which levels could not run."""
        found = {
            True: "verified: everything that was compared is equal",
            False: "NOT verified: see the differences above",
            None: "nothing was verified: no level could be compared bit for bit",
        }[self.passed]
        missing = ", ".join(level.name for level in self.levels if level.missing is not None)
        return f"{found}; not compared: {missing}" if missing else found

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**dataclasses.asdict(self), "passed": self.passed, "verdict": self.verdict}
