"""Edits that are often wanted: ablation, steering, values of another run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from minillama.errors import InvalidInputError
from minillama.kernels.types import F32
from minillama.trace.recording import Recording, Values
from minillama.trace.trace import Edit, Site


@dataclass(frozen=True)
class _OfRows:
    """An edit of the rows at some positions only; elsewhere it does not fire."""

    change: Edit
    positions: tuple[int, ...] | None

    def applies(self, site: Site) -> bool:
        return self.positions is None or bool(np.isin(site.positions, self.positions).any())

    def __call__(self, value: Values, site: Site) -> None:
        chosen = np.isin(site.positions, self.positions) if self.positions is not None else slice(None)
        part = Site(site.point, site.step, site.positions[chosen], site.sequences[chosen])
        rows = value[chosen]
        returned = self.change(rows, part)
        value[chosen] = rows if returned is None else returned


def _of_rows(change: Edit, positions: int | Sequence[int] | None) -> Edit:
    listed = None if positions is None else tuple(int(p) for p in np.atleast_1d(positions))
    return _OfRows(change, listed)


def zero(*, positions: int | Sequence[int] | None = None, heads: Sequence[int] = (), n_head: int = 0) -> Edit:
    """Zeros: at some positions of the text or all, of some of the ``n_head`` heads that lie side by side or all."""
    if heads and (n_head < 1 or not all(0 <= head < n_head for head in heads)):
        raise InvalidInputError(f"heads {list(heads)} of n_head={n_head}: wanted heads from 0 to n_head - 1")

    def change(value: Values, _site: Site) -> None:
        part = value.reshape(len(value), n_head, -1) if heads else value
        part[:, list(heads) if heads else slice(None)] = 0

    return _of_rows(change, positions)


def mean(of: Recording, *, positions: int | Sequence[int] | None = None) -> Edit:
    """The mean over a recording's positions, in place of every row (mean ablation)."""
    return _of_rows(lambda value, site: np.broadcast_to(of[site.name].mean(axis=0), value.shape), positions)


def add(vector: npt.ArrayLike, scale: float = 1.0, *, positions: int | Sequence[int] | None = None) -> Edit:
    """Add ``scale * vector`` to every row (steering)."""
    added: F32 = np.asarray(vector, np.float32) * np.float32(scale)
    return _of_rows(lambda value, _site: value + added, positions)


def patch(source: Recording, *, positions: int | Sequence[int] | None = None) -> Edit:
    """The rows that another run had at the same positions.

    Parameters
    ----------
    source
        Recording that has the edited points.
    positions
        Positions to patch; None: all that come.

    Raises
    ------
    InvalidInputError
        When it is applied: the other run has no row for a position.
    """

    def change(value: Values, site: Site) -> Values:
        known = {int(position): row for row, position in enumerate(source.positions(site.name))}
        missing = [int(position) for position in site.positions if int(position) not in known]
        if missing:
            raise InvalidInputError(f"the source has no {site.name} of position {missing[0]}")
        taken: Values = source[site.name][[known[int(position)] for position in site.positions]]
        return taken

    return _of_rows(change, positions)
