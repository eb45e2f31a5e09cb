"""Going on with a pass from given values: operations are skipped until what they need is known.

The pass is one function and always runs from its start. The token ids are unknown, and so is what depends on them: an
operation with an unknown argument is not run. A named value that is given becomes known, and from there on operations
run. Nothing can be computed from an unknown value by accident.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from minillama.errors import InvalidInputError
from minillama.kernels.registry import KernelSet
from minillama.kernels.types import F32
from minillama.runtime.batch import Batch
from minillama.runtime.eager import Eager, Forward
from minillama.runtime.plan import Operation
from minillama.runtime.probe import STORE, Probe
from minillama.runtime.threads import ThreadTeam


class Resumed(Eager):
    """Runs only operations whose arguments are known.

    Parameters
    ----------
    kernels, team, probe
        As for :class:`Eager`. The probe is shown values that are known.
    given
        Values of the pass by name.
    """

    def __init__(self, kernels: KernelSet, team: ThreadTeam, given: Mapping[str, F32], probe: Probe | None) -> None:
        super().__init__(kernels, team, probe)
        self._given = dict(given)
        # Arrays that hold no value. They are kept, so that no known array can get the address of one.
        self._unknown: dict[int, npt.NDArray[Any]] = {}
        self._unknown_names: dict[int, str] = {}
        self._fresh: list[npt.NDArray[Any]] = []
        self._missing = "nothing follows from them"

    def finish(self, forward: Forward, batch: Batch) -> F32:
        """Run the pass over a batch whose ids are not known.

        Raises
        ------
        InvalidInputError
            The given values do not determine the result, or one of them has another shape.
        """
        self._forget(batch.ids, "the token ids")
        result = forward(self, batch)
        if self._given:
            raise InvalidInputError(f"the pass never came to {', '.join(self._given)}")
        if self._is_unknown(result):
            raise InvalidInputError(f"the values given do not determine the result: {self._missing}")
        return result

    def _empty(self, shape: tuple[int, ...], dtype: npt.DTypeLike = np.float32) -> npt.NDArray[Any]:
        made = super()._empty(shape, dtype)
        self._fresh.append(made)
        return made

    def _do(self, operation: Operation) -> None:
        arrays = [argument for argument in operation.arguments if isinstance(argument, np.ndarray)]
        written = [array for array in self._fresh if any(_base(array) is _base(other) for other in arrays)]
        if any(map(self._is_unknown, arrays)):
            self._note_missing(operation, arrays)
            for array in written:
                self._forget(array)
            if operation.name.endswith(STORE):  # what was not stored is as unknown as a result
                for array in arrays[-2:]:
                    self._forget(array, f"{self._prefix}k and {self._prefix}v")
        else:
            super()._do(operation)
        self._fresh = []

    def _result(self, name: str, value: F32) -> F32:
        if name in self._given:
            value = self._take_given(name, value)
        if self._is_unknown(value):
            self._unknown_names[id(_base(value))] = name
            return value
        return super()._result(name, value)

    def _take_given(self, name: str, value: F32) -> F32:
        given = self._given.pop(name)
        if given.shape != value.shape or given.dtype != value.dtype:
            raise InvalidInputError(f"{name}: found {given.dtype} {given.shape}, wanted {value.dtype} {value.shape}")
        return np.ascontiguousarray(given)

    def _is_unknown(self, array: npt.NDArray[Any]) -> bool:
        return id(_base(array)) in self._unknown

    def _forget(self, array: npt.NDArray[Any], name: str = "") -> None:
        base = _base(array)
        self._unknown[id(base)] = base
        if name:
            self._unknown_names[id(base)] = name

    def _note_missing(self, operation: Operation, arrays: list[npt.NDArray[Any]]) -> None:
        """Keep the first operation after the given values that could not be run for want of another."""
        names = [self._unknown_names[id(_base(array))] for array in arrays if id(_base(array)) in self._unknown_names]
        if not self._given and names and self._missing.startswith("nothing"):
            self._missing = f"{operation.name} needs {', '.join(names)} too"


def _base(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array
