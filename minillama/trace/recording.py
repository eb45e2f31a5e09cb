"""Recorded values: by point, and if need be by step and sequence."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from minillama.errors import InvalidInputError, UnknownPointError
from minillama.kernels.types import I64
from minillama.runtime.probe import SCORES
from minillama.trace.registry import by_alias

Values = npt.NDArray[Any]


@dataclass(frozen=True)
class Rows:
    """Rows of one value from one pass.

    Attributes
    ----------
    step, sequence
        Where they belong: the number of the call, and of the sequence in its batch.
    positions
        Position of each row in its text, int64 [n].
    values
        The rows, [n, ...].
    """

    step: int
    sequence: int
    positions: I64
    values: Values


class Recording(Mapping[str, Values]):
    """Values by point: ``recording["blk.3.l_out"]`` is an array with a row for each recorded position, in order.

    It is always one array, however many passes there were. :meth:`step` and :meth:`sequence` narrow it down; of several
    sequences one has to be chosen first. Aliases work as everywhere (docs/points.md).

    Parameters
    ----------
    rows
        Rows by point, in the order in which they were made.
    tokens
        Ids that were computed, of each sequence.
    """

    def __init__(
        self, rows: Mapping[str, Sequence[Rows]] | None = None, tokens: Mapping[int, Sequence[int]] | None = None
    ) -> None:
        self._rows: dict[str, list[Rows]] = {name: list(parts) for name, parts in (rows or {}).items()}
        self._tokens: dict[int, list[int]] = {sequence: list(ids) for sequence, ids in (tokens or {}).items()}

    # Two recordings are the same only if they are one object; see :func:`minillama.trace.compare` for what they hold.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        n = len(self._rows)
        return f"<{type(self).__name__} {n} points, {self.n_steps} steps, {self.nbytes / 1e6:.1f} MB>"

    def __getitem__(self, name: str) -> Values:
        rows = self.rows(name)
        return rows[0].values if len(rows) == 1 else _joined([part.values for part in rows], _masked_with(name))

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, name: object) -> bool:
        return name in self._rows

    @property
    def nbytes(self) -> int:
        """Bytes of all values."""
        return sum(part.values.nbytes for parts in self._rows.values() for part in parts)

    @property
    def n_steps(self) -> int:
        """Calls that were recorded: 1 for a prompt, one more for each generated token."""
        return 1 + max((part.step for parts in self._rows.values() for part in parts), default=-1)

    @property
    def sequences(self) -> list[int]:
        """Numbers of the sequences."""
        return sorted({part.sequence for parts in self._rows.values() for part in parts} | set(self._tokens))

    @property
    def tokens(self) -> list[int]:
        """Ids that were computed while this was recorded."""
        return list(self._tokens.get(self._only_sequence(), []))

    def rows(self, name: str) -> list[Rows]:
        """Rows of a point with all that is known of them."""
        self._only_sequence()
        return list(self._rows[self._find(name)])

    def positions(self, name: str) -> I64:
        """Position in the text of each row of a point, int64 [n]."""
        return np.concatenate([part.positions for part in self.rows(name)])

    def step(self, number: int) -> Recording:
        """What one call computed: 0 is the prompt, 1 the first generated token, -1 the last.

        Raises
        ------
        InvalidInputError
            There is no such step.
        """
        n = self.n_steps
        if not -n <= number < n:
            raise InvalidInputError(f"no step {number}: {n} were recorded")
        return self._where(lambda part: part.step == number % n, self._tokens)

    def sequence(self, number: int) -> Recording:
        """What belongs to one sequence of a batch.

        Raises
        ------
        InvalidInputError
            There is no such sequence.
        """
        if number not in self.sequences:
            raise InvalidInputError(f"no sequence {number}, recorded are {self.sequences}")
        return self._where(lambda part: part.sequence == number, {number: self._tokens.get(number, [])})

    def save(self, path: str | Path) -> Path:
        """Write a file that :meth:`load` reads: ``.npz`` or ``.safetensors``, by its ending."""
        from minillama.trace.files import save

        return save(self, Path(path))

    @classmethod
    def load(cls, path: str | Path) -> Recording:
        """Read a file that :meth:`save` has written.

        Raises
        ------
        InvalidInputError
            It is not such a file.
        """
        from minillama.trace.files import load

        return load(Path(path))

    def parts(self) -> Iterator[tuple[str, Rows]]:
        """All rows with the names of their points."""
        return ((name, part) for name, parts in self._rows.items() for part in parts)

    def tokens_by_sequence(self) -> dict[int, list[int]]:
        """Ids that were computed, of each sequence."""
        return {sequence: list(ids) for sequence, ids in self._tokens.items()}

    def _where(self, keep: Callable[[Rows], bool], tokens: Mapping[int, Sequence[int]]) -> Recording:
        kept = {name: [part for part in parts if keep(part)] for name, parts in self._rows.items()}
        return Recording({name: parts for name, parts in kept.items() if parts}, tokens)

    def _only_sequence(self) -> int:
        sequences = self.sequences or [0]
        if len(sequences) > 1:
            raise InvalidInputError(f"{len(sequences)} sequences were recorded: choose one with .sequence(number)")
        return sequences[0]

    def _find(self, name: str) -> str:
        for candidate in (name, *reversed(by_alias(name))):
            if candidate in self._rows:
                return candidate
        if not self._rows:
            raise UnknownPointError(f"{name!r} was not recorded: nothing was")
        nearest = difflib.get_close_matches(name, self._rows, 3, 0.3) or list(self._rows)[:3]
        raise UnknownPointError(f"{name!r} was not recorded; recorded are {', '.join(nearest)} and the like")


def _masked_with(name: str) -> float:
    """What stands where a token does not see a position."""
    return -np.inf if name.endswith(f".{SCORES}") else 0.0


def _joined(parts: Sequence[Values], fill: float) -> Values:
    """Rows one after the other; attention of fewer positions is filled up."""
    width = max(part.shape[-1] for part in parts)
    padded = [
        part
        if part.shape[-1] == width
        else np.pad(part, [(0, 0)] * (part.ndim - 1) + [(0, width - part.shape[-1])], constant_values=fill)
        for part in parts
    ]
    return np.concatenate(padded)
