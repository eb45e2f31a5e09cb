"""Where the time of a pass goes: its operations, those of all layers together, by the clock after each of them."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from minillama.generate import LanguageModel
from minillama.kernels.types import I64
from minillama.model.model import CHUNK
from minillama.runtime.plan import Call

_LAYER = re.compile(r"^blk\.\d+\.")
_ATTENTION = "kqv"
_RUNS = 5


@dataclass(frozen=True)
class Row:
    """Operations of one name.

    Attributes
    ----------
    name
        Their name, without the layer.
    calls, seconds
        How many there are, and the time of all.
    multiply_adds, bytes_read
        Their work a pass; None where it is not products that take the time, or no weights that are read. Attention
        counts every token with every position, those that a token does not see included.
    """

    name: str
    calls: int
    seconds: float
    multiply_adds: int | None
    bytes_read: int | None


@dataclass(frozen=True)
class Profile:
    """A pass of ``n_tokens`` tokens after ``at`` positions: rows in order of time, and the time of the whole."""

    n_tokens: int
    at: int
    seconds: float
    rows: Sequence[Row]


def profile(model: LanguageModel, n_tokens: int, at: int) -> Profile:
    """Run a pass some times and tell the time of its operations; of the runs, the fastest counts.

    Parameters
    ----------
    model
        A model with the captured driver.
    n_tokens
        Tokens of the pass, no more than a prompt's chunk.
    at
        Positions before them.
    """
    n_tokens = min(n_tokens, CHUNK)
    cache = model.new_cache()
    if at:
        model.forward(np.arange(at) % model.config.n_vocab, cache, logits=None)
    recorded, batch = model.recorded_pass(np.arange(n_tokens) % model.config.n_vocab, cache)
    calls = recorded.plan.calls
    times = np.zeros((len(calls), 2), np.int64)
    # What runs before the first operation's clock is that operation's and the hand-over to the threads.
    best = min((_durations(lambda: recorded.run(batch, times), times) for _ in range(1 + _RUNS)), key=np.sum)
    return Profile(n_tokens, at, float(best.sum()), rows_of(calls, best))


def _durations(run: Callable[[], object], times: I64) -> npt.NDArray[np.float64]:
    start = time.clock_gettime(time.CLOCK_MONOTONIC)
    run()
    return np.diff(times @ np.array([1.0, 1e-9]), prepend=start)


def rows_of(calls: Sequence[Call], seconds: npt.NDArray[np.float64]) -> list[Row]:
    """Operations by name, those that take most time first."""
    groups: dict[str, list[int]] = {}
    for i, call in enumerate(calls):
        groups.setdefault(_LAYER.sub("", call.name), []).append(i)
    rows = []
    for name, members in groups.items():
        n_bytes = sum(calls[i].n_bytes for i in members)
        counts_work = n_bytes > 0 or name == _ATTENTION
        work = sum(calls[i].work for i in members) if counts_work else None
        rows.append(Row(name, len(members), float(seconds[members].sum()), work, n_bytes or None))
    return sorted(rows, key=lambda row: -row.seconds)
