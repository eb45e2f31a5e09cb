"""What a benchmark found."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from minillama.bench.profiling import Profile


@dataclass(frozen=True)
class Spread:
    """Rates of several runs: the middle one, and how far they lie apart."""

    median: float
    lowest: float
    highest: float

    @classmethod
    def of(cls, rates: Sequence[float]) -> Spread:
        """The spread of at least one rate."""
        return cls(statistics.median(rates), min(rates), max(rates))


@dataclass(frozen=True)
class Machine:
    """What the machine can do with the threads of a benchmark, a second.

    Attributes
    ----------
    bytes_read, multiply_adds
        Bytes of memory read, and multiply-adds of bytes done.
    tier
        The vector instructions that kernels use.
    """

    bytes_read: float
    multiply_adds: float
    tier: str


@dataclass(frozen=True)
class Measurement:
    """Rates of one kind of run, in tokens a second.

    Attributes
    ----------
    kind
        ``"prompt"`` or ``"decode"``.
    n_tokens, at
        Tokens computed, after so many positions.
    ours, theirs
        Rates; None: llama.cpp did not take part.
    of_machine
        What part of the machine's limit ours is: of its multiply-adds for prompts (products of weights only), of the
        bytes it can read for decoding (weights only).
    """

    kind: str
    n_tokens: int
    at: int
    ours: Spread
    theirs: Spread | None
    of_machine: float

    @property
    def ratio(self) -> float | None:
        """Our median rate over llama.cpp's."""
        return None if self.theirs is None else self.ours.median / self.theirs.median


@dataclass(frozen=True)
class Process:
    """What a side takes besides its rates.

    Attributes
    ----------
    load_seconds
        To open the model.
    first_token_seconds
        From the start of the process to the logits of a short prompt; everything on this machine already.
    private_bytes
        Memory allocated, the cache of keys and values not counted; None where the system does not tell.
    peak_bytes
        The most that was ever resident, the mapped file included.
    """

    load_seconds: float
    first_token_seconds: float
    private_bytes: int | None
    peak_bytes: int | None


@dataclass
class Bench:
    """A model with so many threads.

    Attributes
    ----------
    model, n_threads, rounds, kv_type
        What was measured, and how often; how we store keys and values.
    llama_cpp
        Which llama.cpp took part, or None.
    machine
        The machine's limits with so many threads.
    tests
        Rates.
    ours, theirs
        Time to start, and memory.
    profiles
        Where our time goes, if that was asked for.
    """

    model: str
    n_threads: int
    rounds: int
    kv_type: str
    llama_cpp: str | None
    machine: Machine
    tests: list[Measurement]
    ours: Process
    theirs: Process | None
    profiles: list[Profile] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        found = dataclasses.asdict(self)
        for test, described in zip(self.tests, found["tests"], strict=True):
            described["ratio"] = test.ratio
        return found
