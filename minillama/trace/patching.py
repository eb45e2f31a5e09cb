"""Activation patching: which values of a run, put into another, bring its answer along."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from minillama.errors import InvalidInputError
from minillama.kernels.types import F32
from minillama.model.model import Model
from minillama.runtime.kv_cache import KVCache
from minillama.trace.points import Points
from minillama.trace.recording import Values
from minillama.trace.trace import Site, Trace

Metric = Callable[[F32], float]
# Tokens of one pass: bounds its memory, as for prompts.
_MOST_TOKENS = 512


@dataclass(frozen=True)
class PatchGrid:
    """What patching each layer and position does.

    Attributes
    ----------
    values
        The metric with that one value patched, float64 [n_layers, n_positions].
    layers, positions
        What the axes are.
    clean, corrupted
        The metric of the two runs.
    ids
        Token ids of the corrupted text.
    """

    values: npt.NDArray[np.float64]
    layers: tuple[int, ...]
    positions: tuple[int, ...]
    clean: float
    corrupted: float
    ids: tuple[int, ...]

    @property
    def recovered(self) -> npt.NDArray[np.float64]:
        """The share of the difference between the runs that each patch brings back: 0 none, 1 all."""
        whole = self.clean - self.corrupted
        if whole == 0:
            raise InvalidInputError("the metric is the same in both runs, so there is nothing to recover")
        return (self.values - self.corrupted) / whole


def logit_difference(token: int, other: int) -> Metric:
    """The metric of a choice between two tokens: how much higher the first one's logit is."""
    return lambda logits: float(logits[token]) - float(logits[other])


def patch_grid(
    model: Model,
    clean: Sequence[int],
    corrupted: Sequence[int],
    metric: Metric,
    *,
    point: str = "l_out",
    layers: Sequence[int] | None = None,
    positions: Sequence[int] | None = None,
) -> PatchGrid:
    """Run a corrupted text again and again, each time with one value of a clean run in its place.

    What a patch cannot reach is not computed again: a patch of layer L at position p starts from the corrupted run's
    values in front of L, and from its cache up to p. All positions of a layer are one batch. The numbers are those of
    whole passes with an edit, in bits.

    Parameters
    ----------
    model
        The model.
    clean, corrupted
        Token ids of the two texts, equally many.
    metric
        ``f(logits)`` of the last position.
    point
        Which value of each layer: what comes after ``blk.N.``.
    layers, positions
        Which layers and positions; None: all.

    Raises
    ------
    InvalidInputError
        The texts have different lengths.
    """
    model.check_makes_text()
    if len(clean) != len(corrupted):
        raise InvalidInputError(f"the texts have {len(clean)} and {len(corrupted)} tokens, equally many are wanted")
    chosen_layers = tuple(range(model.config.n_layer) if layers is None else layers)
    chosen = tuple(range(len(clean)) if positions is None else (int(p) % len(clean) for p in positions))
    patched = [f"blk.{layer}.{point}" for layer in chosen_layers]
    points = Points(model)
    starts = [
        name if point == "l_out" else points.block_input(i) for i, name in zip(chosen_layers, patched, strict=True)
    ]
    good = Trace(model, patched).run(clean, model, model.new_cache())
    cache = model.new_cache()
    bad = Trace(model, starts).run(corrupted, model, cache)
    assert good.logits is not None  # neither stops early
    assert bad.logits is not None
    caches = {position: _up_to(cache, position) for position in chosen}
    rows = [
        _patched_layer(model, start, name, bad[start], good[name], caches, metric)
        for start, name in zip(starts, patched, strict=True)
    ]
    ends = metric(good.logits[-1]), metric(bad.logits[-1])
    return PatchGrid(np.array(rows), chosen_layers, chosen, *ends, tuple(int(i) for i in corrupted))


def _up_to(cache: KVCache, position: int) -> KVCache:
    twin = cache.fork()
    twin.truncate(position)
    return twin


def _patched_layer(
    model: Model, start: str, name: str, bad: Values, good: Values, caches: dict[int, KVCache], metric: Metric
) -> list[float]:
    """The metric for each position whose row of a point is patched."""
    results: list[float] = []
    for positions in _groups(list(caches), len(bad)):
        lengths = [len(bad) - position for position in positions]

        def patch(value: Values, site: Site, positions: list[int] = positions) -> None:
            first = site.positions == np.array(positions)[site.sequences]
            value[first] = good[positions]

        trace = Trace(model, edits={name: patch})
        values = {start: np.concatenate([bad[position:] for position in positions])}
        logits = model.resume(values, [caches[position] for position in positions], lengths, watch=trace)
        results += [metric(rows[-1]) for rows in logits]
    return results


def _groups(positions: list[int], length: int) -> Iterator[list[int]]:
    """Positions whose remaining texts together are no longer than a pass."""
    group: list[int] = []
    for position in positions:
        if group and sum(length - p for p in (*group, position)) > _MOST_TOKENS:
            yield group
            group = []
        group.append(position)
    yield group
