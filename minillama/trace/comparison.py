"""Two runs side by side: of two models, two quantizations, two backends, or llama.cpp's."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass

from minillama.errors import InvalidInputError
from minillama.model.model import Model
from minillama.trace.differences import Difference, difference, kl_divergence
from minillama.trace.recording import Recording, Values
from minillama.trace.trace import Stopped, Trace

_LOGITS = "result_output"


@dataclass(frozen=True)
class Comparison:
    """How far the values of two runs are apart.

    Attributes
    ----------
    points
        A difference for each point that both have, in the order of the pass.
    first_difference
        The first point that is not equal in every bit; None if all are.
    mean_kl, max_kl
        Kullback-Leibler divergence of the first run's probabilities from the second's, over positions; None if a run
        has no logits.
    n_same_top
        Positions at which both find the same token likeliest.
    n_positions
        Positions with logits.
    only_one
        Points that only one of the runs has.
    """

    points: tuple[Difference, ...]
    first_difference: str | None
    mean_kl: float | None
    max_kl: float | None
    n_same_top: int
    n_positions: int
    only_one: tuple[str, ...]

    @property
    def equal(self) -> bool:
        """Whether every bit of every common point is the same."""
        return self.first_difference is None


def compare(ours: Mapping[str, Values], theirs: Mapping[str, Values]) -> Comparison:
    """Compare two runs over the same text, point by point.

    Parameters
    ----------
    ours, theirs
        Values by point; errors are relative to the second.

    Raises
    ------
    InvalidInputError
        They are of different texts, have no point in common, or a point differs in shape.
    """
    if isinstance(ours, Recording) and isinstance(theirs, Recording) and ours.tokens != theirs.tokens:
        raise InvalidInputError(f"the runs are of different texts: {len(ours.tokens)} and {len(theirs.tokens)} tokens")
    common = [name for name in ours if name in theirs]
    if not common:
        raise InvalidInputError("the runs have no point in common")
    points = tuple(difference(name, ours[name], theirs[name]) for name in common)
    first = next((point.name for point in points if not point.equal), None)
    other = tuple(name for name in (*ours, *theirs) if name not in common)
    if _LOGITS not in common:
        return Comparison(points, first, None, None, 0, 0, other)
    a, b = ours[_LOGITS], theirs[_LOGITS]
    kl, same = kl_divergence(a, b), a.argmax(axis=1) == b.argmax(axis=1)
    return Comparison(points, first, float(kl.mean()), float(kl.max()), int(same.sum()), len(a), other)


def layer_errors(model: Model, reference: Recording) -> dict[str, float]:
    """The error that each layer of a model makes by itself: relative, against a reference of the same architecture.

    Each layer is given the reference's input and its output compared with the reference's, so that errors do not add up
    from layer to layer.

    Parameters
    ----------
    model
        The model that is looked at, for example a Q4_K_M.
    reference
        A recording of another, for example a Q8_0, with the value that enters layer 0 and all of ``blk.*.l_out``.

    Returns
    -------
    dict
        Length of the difference, divided by the length of the reference's output minus its input: what the layer
        writes to the residual stream.
    """
    errors = {}
    points = Trace(model).points
    for layer in range(model.config.n_layer):
        start, end = points.block_input(layer), f"blk.{layer}.l_out"
        given, want = reference[start], reference[end]
        trace = Trace(model, end, stop_after=end)
        with contextlib.suppress(Stopped):
            model.resume({start: given}, [model.new_cache()], [len(given)], watch=trace)
        errors[f"blk.{layer}"] = difference(end, trace[end] - given, want - given).relative
    return errors
