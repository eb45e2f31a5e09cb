"""The deferred driver: the forward pass is run once to list its operations, which are then run one by one, by hand.

Unlike a plan's, every result has memory of its own, so that earlier values are still there and operations can be run
again from any earlier one.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import numpy.typing as npt

from minillama.gguf.constants import GGMLType
from minillama.kernels.registry import KernelSet
from minillama.kernels.types import F32, U8
from minillama.runtime.operations import Operations
from minillama.runtime.plan import Operation
from minillama.runtime.probe import PACKED_TYPES

_HERE = str(Path(__file__).parent)


@dataclass(frozen=True)
class Line:
    """A line of a model's file."""

    file: str
    number: int
    function: str


@dataclass(frozen=True)
class DeferredValue:
    """A named result of a pass.

    Attributes
    ----------
    name
        Its name in the forward pass.
    made_by
        Index of the operation after which it is there; -1 if there is none before it.
    array
        Where it is, or will be.
    line
        The line of the forward pass that asks for it.
    """

    name: str
    made_by: int
    array: npt.NDArray[Any]
    line: Line


@dataclass(frozen=True)
class ValueInfo:
    """What is known of a named value without computing it.

    Attributes
    ----------
    name
        Its name in the forward pass.
    axes
        Its shape without the first axis, which is the token's.
    packed
        Types of the blocks that products take its rows as.
    """

    name: str
    axes: tuple[int, ...]
    packed: tuple[GGMLType, ...]


class Deferred(Operations):
    """Lists operations and named values, and those of which products take packed rows; nothing is computed yet.

    Parameters
    ----------
    kernels
        The backend's kernels.
    parts
        Whether attention is done in parts, with its products and weights as values.
    """

    def __init__(self, kernels: KernelSet, *, parts: bool = False) -> None:
        super().__init__(kernels)
        self._parts = parts
        self.operations: list[Operation] = []
        self.values: list[DeferredValue] = []
        self.packed: dict[str, list[GGMLType]] = {}

    def _empty(self, shape: tuple[int, ...], dtype: npt.DTypeLike = np.float32) -> npt.NDArray[Any]:
        return np.empty(shape, dtype)

    def _do(self, operation: Operation) -> None:
        self.operations.append(operation)

    def _activation(self, x: F32, type_: GGMLType, name: str) -> U8:
        # All values are kept, so that none can have the address of another.
        names = [value.name for value in self.values if value.array is x]
        if names and type_ in PACKED_TYPES and type_ not in self.packed.setdefault(names[-1], []):
            self.packed[names[-1]].append(type_)
        return super()._activation(x, type_, name)

    def _wants(self, name: str) -> bool:
        return self._parts

    def _result(self, name: str, value: F32) -> F32:
        self.values.append(DeferredValue(name, len(self.operations) - 1, value, _line(sys._getframe(1))))
        return value


def outline(driver: Deferred) -> tuple[ValueInfo, ...]:
    """The named values of a pass that was laid out."""
    packed = {name: tuple(types) for name, types in driver.packed.items()}
    return tuple(ValueInfo(v.name, v.array.shape[1:], packed.get(v.name, ())) for v in driver.values)


def _line(frame: FrameType) -> Line:
    """The line outside this package from which an operation was called."""
    caller: FrameType | None = frame
    while caller is not None and caller.f_code.co_filename.startswith(_HERE):
        caller = caller.f_back
    found = frame if caller is None else caller
    return Line(found.f_code.co_filename, found.f_lineno, found.f_code.co_name)
