"""The points of one model: their sizes, and names, patterns and aliases resolved to them."""

from __future__ import annotations

import difflib
import fnmatch
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from minillama.errors import UnknownPointError
from minillama.kernels.layouts import LAYOUTS
from minillama.model.model import Model
from minillama.runtime.probe import is_attention, is_on_demand, packed_name
from minillama.trace.registry import by_alias, kind_of


@dataclass(frozen=True)
class Point:
    """One named value of a model's pass.

    Attributes
    ----------
    name
        Its name.
    shape
        Axes after the first, which is the token; None stands for the positions that a token sees.
    dtype
        ``"float32"``, or ``"uint8"`` for packed blocks.
    meaning
        What it is.
    on_demand
        Whether it is computed only when it is asked for.
    """

    name: str
    shape: tuple[int | None, ...]
    dtype: str
    meaning: str
    on_demand: bool


class Points(Mapping[str, Point]):
    """All points of a model by name, in the order in which a pass makes them.

    Parameters
    ----------
    model
        Its pass is laid out once (:attr:`Model.values`), and not run.
    """

    def __init__(self, model: Model) -> None:
        self.n_layer = model.config.n_layer
        self._points: dict[str, Point] = {}
        for value in model.values:
            shape = (*value.axes[:-1], None) if is_attention(value.name) else value.axes
            self._add(value.name, shape, "float32")
            for type_ in value.packed:
                self._add(packed_name(value.name, type_), (LAYOUTS[type_].row_bytes(value.axes[-1]),), "uint8")

    def _add(self, name: str, shape: tuple[int | None, ...], dtype: str) -> None:
        kind = kind_of(name)
        self._points[name] = Point(name, shape, dtype, "" if kind is None else kind.meaning, is_on_demand(name))

    def __getitem__(self, name: str) -> Point:
        return self._points[self.find(name)]

    def __iter__(self) -> Iterator[str]:
        return iter(self._points)

    def __len__(self) -> int:
        return len(self._points)

    def __contains__(self, name: object) -> bool:
        return name in self._points

    def find(self, name: str) -> str:
        """The one point that a name or an alias means.

        Raises
        ------
        UnknownPointError
            There is none, or it is a pattern that matches several.
        """
        found = self.resolve(name)
        if len(found) > 1:
            raise UnknownPointError(f"{name!r} matches {len(found)} points, one is wanted: {', '.join(found[:3])}, ...")
        return found[0]

    def resolve(self, patterns: str | Iterable[str]) -> list[str]:
        """Names of all points that match any of some names, patterns or aliases, in the order of the pass.

        Raises
        ------
        UnknownPointError
            Something matches no point; the message has the nearest names.
        """
        listed = [patterns] if isinstance(patterns, str) else list(patterns)
        found = {name for pattern in listed for name in self._matches(pattern)}
        return [name for name in self._points if name in found]

    def block_input(self, layer: int) -> str:
        """The point that enters a layer: the residual stream before it."""
        if layer:
            return f"blk.{layer - 1}.l_out"
        before = itertools.takewhile(lambda name: not name.startswith("blk."), self._points)
        return [name for name in before if not is_on_demand(name)][-1]

    def _matches(self, pattern: str) -> list[str]:
        if pattern in self._points:
            return [pattern]
        pre = re.fullmatch(r"blocks\.(\d+|\*)\.hook_resid_pre", pattern)
        if pre:
            layers = range(self.n_layer) if pre[1] == "*" else [int(pre[1])]
            return [self.block_input(layer) for layer in layers if layer < self.n_layer] or self._fail(pattern)
        for candidate in (pattern, *reversed(by_alias(pattern))):
            matches = [name for name in self._points if _match(name, candidate)]
            if matches:
                return matches
        return self._fail(pattern)

    def _fail(self, pattern: str) -> list[str]:
        kind = kind_of(pattern)
        layer = re.match(r"(?:blk|blocks)\.(\d+)\.", pattern)
        if layer and int(layer[1]) >= self.n_layer:
            raise UnknownPointError(f"no point {pattern!r}: the model has layers 0 to {self.n_layer - 1}")
        if kind is not None and kind.only:
            raise UnknownPointError(f"this model has no point {pattern!r} ({kind.meaning}); {kind.only} have it")
        nearest = difflib.get_close_matches(pattern, self._points, 3, 0.5) or list(self._points)[:3]
        raise UnknownPointError(f"no point {pattern!r}, the nearest are {', '.join(nearest)}")


def _match(name: str, pattern: str) -> bool:
    # A wildcard reaches what is computed on demand only with its last part spelled out.
    if is_on_demand(name) and pattern.rpartition(".")[2] != name.rpartition(".")[2]:
        return False
    return fnmatch.fnmatchcase(name, pattern)
