"""Recording and replacing values while a model runs."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from minillama.errors import InvalidInputError, TraceBudgetError
from minillama.kernels.types import F32, I64
from minillama.model.model import Model
from minillama.runtime.batch import Batch
from minillama.runtime.kv_cache import KVCache
from minillama.runtime.probe import Probe
from minillama.trace.points import Point, Points
from minillama.trace.recording import Recording, Rows, Values

DEFAULT_BUDGET = 1 << 30

Positions = int | slice | Sequence[int] | None


@dataclass(frozen=True)
class Site:
    """Where an edit is called.

    Attributes
    ----------
    point
        The point, with its name and shape.
    step
        Number of the call: 0 is the prompt, then one for each generated token.
    positions
        Position of each row in its text, int64 [n].
    sequences
        Sequence of each row, int64 [n].
    """

    point: Point
    step: int
    positions: I64
    sequences: I64

    @property
    def name(self) -> str:
        """The point's name."""
        return self.point.name

    @property
    def layer(self) -> int | None:
        """The point's layer, if it belongs to one."""
        return int(self.name.split(".")[1]) if self.name.startswith("blk.") else None


Edit = Callable[[Values, Site], Values | None]
Edits = Mapping[str, "Edit | npt.ArrayLike"]


class Stopped(Exception):  # noqa: N818 - not an error
    """The value after which a pass was to stop is there."""


class Trace(Recording, Probe):
    """Records points, and replaces them, wherever it is given as ``trace=`` or ``watch=``.

    A call that asks for the last logits alone (``model.forward(..., watch=trace)``) has only the last position's rows
    behind the last layer's attention; :meth:`LanguageModel.trace` and generation compute all.

    Parameters
    ----------
    model
        The model whose points they are.
    record
        Points to keep copies of: names, patterns such as ``"blk.*.l_out"``, or aliases (docs/points.md).
    positions
        Positions of the text to record: a number, several, or a slice; negative ones count from the end of the text so
        far. None: all.
    edits
        Replacements by point: ``f(value, site)`` is given a copy of the value, [n_tokens, ...], and changes it in place
        or returns another; an array is put in the value's place.
    stop_after
        A point at which the pass ends; nothing after it is computed and the cache stays as it was.
    max_bytes
        Memory that the recorded values may take.

    Attributes
    ----------
    points
        The model's points.
    logits
        After :meth:`run`: float32 [n_tokens, n_vocab], or None if the pass stopped before them.

    Raises
    ------
    UnknownPointError
        The model has no such point; the message has the nearest names.
    """

    def __init__(
        self,
        model: Model,
        record: str | Iterable[str] = (),
        *,
        positions: Positions = None,
        edits: Edits | None = None,
        stop_after: str | None = None,
        max_bytes: int = DEFAULT_BUDGET,
    ) -> None:
        super().__init__()
        self.points = Points(model)
        self.max_bytes = max_bytes
        self.logits: F32 | None = None
        self._names = self.points.resolve(record)
        self._recorded = frozenset(self._names)
        self._positions = _checked_positions(positions)
        self._edits = {name: _as_edit(edit) for key, edit in (edits or {}).items() for name in self.points.resolve(key)}
        self._fired: set[str] = set()
        self._whole = False
        self._stop_after = None if stop_after is None else self.points.find(stop_after)
        self._step, self._size = -1, 0
        self._site: tuple[I64, I64, I64] | None = None
        self._lengths: I64 = np.zeros(0, np.int64)
        self.changes = frozenset(self._edits) | ({self._stop_after} if self._stop_after else frozenset())
        self.reads = self._recorded | self.changes
        self._row_bytes = [_row_bytes(self.points[name]) for name in self._names]

    def __enter__(self) -> Trace:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.check()

    def check(self) -> None:
        """Raise if there are edits that have not been applied.

        Raises
        ------
        InvalidInputError
            An edit never fired.
        """
        idle = [name for name in self._edits if name not in self._fired]
        if idle:
            raise InvalidInputError(f"edits that never fired: {', '.join(idle)}")

    def run(self, ids: Sequence[int] | npt.ArrayLike, model: Model, cache: KVCache) -> Trace:
        """Compute new tokens of a sequence, traced."""
        with contextlib.suppress(Stopped):
            self.logits = model.forward(ids, cache, logits="all", watch=self)
        self.check()
        return self

    def wants(self, name: str) -> bool:
        """Whether a value is recorded, replaced, or the last."""
        return name in self._recorded or name in self.changes

    def begin(self, n_tokens: Sequence[int]) -> None:
        """A step."""
        self._step += 1
        self._lengths = np.asarray(n_tokens, np.int64)
        self._seen = np.zeros(len(n_tokens), np.int64)

    def start(self, batch: Batch) -> None:
        """A pass of a step: of a long prompt there are several."""
        counts = np.bincount(batch.sequence, minlength=len(self._lengths))
        first = np.array([batch.position[batch.sequence == s][0] for s in range(len(counts))], np.int64)
        ends = first + self._lengths - self._seen
        self._seen += counts
        for sequence in range(len(counts)):
            self._tokens.setdefault(sequence, []).extend(batch.ids[batch.sequence == sequence].tolist())
        self._batch, self._wanted = batch, self._selected(batch.position, ends[batch.sequence])
        self._whole = len(counts) == 1 and bool(self._wanted.all())
        self._check_budget(batch)

    def take(self, name: str, value: Values) -> Values | None:
        """Replace, then record, then stop."""
        batch = self._batch
        rows = np.arange(batch.n_tokens) if len(value) == batch.n_tokens else batch.outputs
        replacement = None
        if name in self._edits:
            replacement = self._edited(name, value, rows)
        if name in self._recorded:
            self._record(name, value if replacement is None else replacement, rows)
        if name == self._stop_after:
            raise Stopped
        return replacement

    def _edited(self, name: str, value: Values, rows: I64) -> Values | None:
        edit = self._edits[name]
        site = Site(self.points[name], self._step, self._batch.position[rows], self._batch.sequence[rows])
        applies = getattr(edit, "applies", None)
        if applies is not None and not applies(site):
            return None
        self._fired.add(name)
        copy = value.copy()
        returned = edit(copy, site)
        if returned is None:
            return copy
        replacement = np.asarray(returned)
        if replacement.shape != value.shape or replacement.dtype != value.dtype:
            raise InvalidInputError(
                f"the edit of {name} returned {replacement.dtype} {replacement.shape}, "
                f"wanted {value.dtype} {value.shape}"
            )
        return np.array(replacement, order="C")

    def _record(self, name: str, value: Values, rows: I64) -> None:
        batch, parts = self._batch, self._rows.setdefault(name, [])
        if self._whole:  # all rows of the one sequence, most often the one row of decoding
            kept = value.copy()
            parts.append(Rows(self._step, 0, batch.position[rows], kept))
            self._size += kept.nbytes
            return
        for sequence in range(batch.n_sequences):
            chosen = self._wanted[rows] & (batch.sequence[rows] == sequence)
            if chosen.any():
                kept, positions = value[chosen], batch.position[rows][chosen]
                if value.ndim == 3 and self.points[name].shape[-1] is None:  # attention: what any of the rows sees
                    kept = np.ascontiguousarray(kept[..., : positions.max() + 1])
                parts.append(Rows(self._step, sequence, positions, kept))
                self._size += kept.nbytes

    def _selected(self, positions: I64, ends: I64) -> npt.NDArray[np.bool_]:
        """Which tokens are recorded: ``ends`` are the lengths of their texts when the step is done."""
        wanted = self._positions
        if wanted is None:
            return np.ones(len(positions), bool)
        if isinstance(wanted, slice):
            ranges = {int(end): range(int(end))[wanted] for end in np.unique(ends)}
            return np.array([int(p) in ranges[int(end)] for p, end in zip(positions, ends, strict=True)], bool)
        absolute = np.where(wanted < 0, wanted + ends[:, None], wanted)
        found: npt.NDArray[np.bool_] = (absolute == positions[:, None]).any(axis=1)
        return found

    def kept_bytes(self, batch: Batch) -> int:
        """Memory of all rows of the recorded points, whatever the positions."""
        return batch.n_tokens * self._bytes_of_row(batch.n_kv)

    def _bytes_of_row(self, n_kv: int) -> int:
        return sum(fixed + n_kv * per_position for fixed, per_position in self._row_bytes)

    def _check_budget(self, batch: Batch) -> None:
        n_rows = int(self._wanted.sum())
        size = n_rows * self._bytes_of_row(batch.n_kv)
        if self._size + size > self.max_bytes:
            raise TraceBudgetError(
                f"{len(self._names)} points of {n_rows} tokens take {size / 1e6:.1f} MB, {self._size / 1e6:.1f} MB are "
                f"recorded and {self.max_bytes / 1e6:.1f} MB allowed: record fewer points or positions, or raise "
                "max_bytes"
            )


def _row_bytes(point: Point) -> tuple[int, int]:
    """Bytes of a row: so many, and so many for each position that tokens see."""
    size = np.dtype(point.dtype).itemsize * math.prod(n for n in point.shape if n is not None)
    return (0, size) if None in point.shape else (size, 0)


def _checked_positions(positions: Positions) -> I64 | slice | None:
    if positions is None or isinstance(positions, slice):
        return positions
    wanted: npt.NDArray[Any] = np.atleast_1d(np.asarray(positions))
    if wanted.ndim != 1 or not len(wanted) or not np.issubdtype(wanted.dtype, np.integer):
        raise InvalidInputError(f"positions are {positions!r}, wanted whole numbers, a slice or None")
    return wanted.astype(np.int64)


def _as_edit(edit: Edit | npt.ArrayLike) -> Edit:
    if callable(edit):
        return edit
    array = np.asarray(edit)
    return lambda _value, _site: array
