"""A forward pass by hand: operation by operation, forwards and backwards."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import linecache
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from minillama.errors import InvalidInputError
from minillama.kernels.types import F32
from minillama.model.model import Model
from minillama.runtime.deferred import DeferredValue
from minillama.runtime.kv_cache import KVCache
from minillama.runtime.plan import Operation
from minillama.trace.differences import Difference, difference
from minillama.trace.points import Points
from minillama.trace.recording import Values

Condition = Callable[[str, Values], bool]


class Stepper:
    """A pass that stands between two operations.

    Attention is done in parts, so that its products and weights can be stopped at. Every value has memory of its own:
    earlier ones stay there, and going back costs nothing. The cache counts the new tokens only after :meth:`finish`.
    With ``backend="reference"`` and ``NUMBA_DISABLE_JIT=1`` a debugger goes on into the kernels from :meth:`next`.

    Parameters
    ----------
    model
        The model.
    ids
        New token ids.
    cache
        The text before them. Do not use it elsewhere until the pass is finished or aborted.
    """

    def __init__(self, model: Model, ids: Sequence[int] | npt.ArrayLike, cache: KVCache) -> None:
        self.ids = [int(token) for token in np.asarray(ids)]
        self.points = Points(model)
        self._model, self._cache = model, cache
        self._pass, self._batch = model.deferred_pass(ids, cache, parts=True)
        self._index = {value.name: i for i, value in enumerate(self._pass.values)}
        self._done = 0  # operations
        self._at = -1  # values
        self._open = True
        self._replaced = False

    def __repr__(self) -> str:
        at = "before the first operation" if self._at < 0 else f"at {self.name}"
        return f"<Stepper {at}, {self._done} of {len(self.operations)} operations done>"

    @property
    def operations(self) -> list[Operation]:
        """All operations of the pass."""
        return self._pass.operations

    @property
    def names(self) -> list[str]:
        """Names of all values of the pass, in order."""
        return list(self._index)

    @property
    def name(self) -> str:
        """Name of the last value that is there."""
        return self._current().name

    @property
    def value(self) -> Values:
        """The last value that is there, read-only; :meth:`replace` changes it."""
        return _read_only(self._current().array)

    @property
    def operation(self) -> Operation:
        """The operation that made it."""
        return self.operations[max(0, self._current().made_by)]

    @property
    def done(self) -> bool:
        """Whether the last value is there."""
        return self._at == len(self._pass.values) - 1

    def __getitem__(self, name: str) -> Values:
        """A value that is there already, read-only.

        Raises
        ------
        InvalidInputError
            It is not there yet.
        """
        found = self.points.find(name)
        if found not in self._index or self._index[found] > self._at:
            raise InvalidInputError(f"{found} is not there yet, the pass is {self!r}")
        return _read_only(self._pass.values[self._index[found]].array)

    def next(self, call: Callable[..., Any] | None = None) -> str:
        """Run up to the next named value and return its name.

        Parameters
        ----------
        call
            Called as ``call(kernel, *arguments)`` in place of each kernel: ``pdb.runcall`` goes into it. For kernels
            that are not compiled.

        Raises
        ------
        InvalidInputError
            The pass is at its end, or over; or kernels are compiled, so that they cannot be called like this.
        """
        self._check_open()
        if self.done:
            raise InvalidInputError(f"the pass is at its end, {self.name}")
        value = self._pass.values[self._at + 1]
        for operation in self.operations[self._done : value.made_by + 1]:
            self._model.team.run_operation(operation if call is None else _called(operation, call))
        self._done, self._at = value.made_by + 1, self._at + 1
        return value.name

    def until(self, point: str | None = None, *, condition: Condition | None = None) -> str | None:
        """Run to the next value of a name, pattern or alias that meets a condition, and return its name.

        Parameters
        ----------
        point
            Where to stop; None: anywhere.
        condition
            ``f(name, value)``, asked at each such value.

        Returns
        -------
        str or None
            None if the pass came to its end without.
        """
        wanted = None if point is None else set(self.points.resolve(point))
        while not self.done:
            name = self.next()
            if (wanted is None or name in wanted) and (condition is None or condition(name, self.value)):
                return name
        return None

    def back(self, point: str | None = None) -> str | None:
        """Return to an earlier value, as if the pass had just come there; None: to the one before.

        What follows is computed again. Replacements of values up to that one stay.

        Raises
        ------
        InvalidInputError
            The value is not an earlier one.
        """
        self._check_open()
        target = self._at - 1 if point is None else self._index[self.points.find(point)]
        if not -1 <= target <= self._at:
            raise InvalidInputError(f"cannot go back to {point or 'before the start'}, the pass is {self!r}")
        self._at = target
        self._done = 0 if target < 0 else self._pass.values[target].made_by + 1
        return None if target < 0 else self.name

    def replace(self, value: npt.ArrayLike) -> None:
        """Go on with another value in place of the current one.

        Raises
        ------
        InvalidInputError
            The array has another shape or type.
        """
        self._check_open()
        given, array = np.asarray(value), self._current().array
        if given.shape != array.shape or given.dtype != array.dtype:
            raise InvalidInputError(
                f"{self.name}: found {given.dtype} {given.shape}, wanted {array.dtype} {array.shape}"
            )
        array[...] = given
        self._replaced = True

    def inputs(self) -> dict[str, Values]:
        """Arrays that the current value was made from, by the names of the kernel's arguments, read-only.

        Rows that a product takes in packed form are under their own names as well.
        """
        operation = self.operation
        names = list(inspect.signature(getattr(operation.kernel, "py_func", operation.kernel)).parameters)
        current = self._current().array
        arguments = zip(names, operation.arguments, strict=False)
        arrays = {
            name: array
            for name, array in arguments
            if isinstance(array, np.ndarray) and not np.may_share_memory(array, current)
        }
        return {name: _read_only(array) for name, array in {**arrays, **self._named_sources(operation)}.items()}

    def _named_sources(self, operation: Operation) -> dict[str, Values]:
        """Named values among an operation's arguments, and those that its packed rows were made from."""
        arrays = [argument for argument in operation.arguments if isinstance(argument, np.ndarray)]
        made_packed = [
            earlier.arguments[0]
            for earlier in self.operations[: self._done]
            if earlier.name.endswith("_quantize") and any(earlier.arguments[1] is array for array in arrays)
        ]
        return {
            value.name: value.array
            for value in self._pass.values[: self._at]
            if any(value.array is array for array in (*arrays, *made_packed))
        }

    def where(self) -> str:
        """The line of the model's file that asks for the current value: ``file:line: text``."""
        line = self._current().line
        return f"{line.file}:{line.number}: {linecache.getline(line.file, line.number).strip()}"

    def source(self) -> str:
        """The source of the kernel that made the current value."""
        kernel = self.operation.kernel
        return inspect.getsource(getattr(kernel, "py_func", kernel))

    def diff(self, other: Mapping[str, Values] | Stepper) -> Difference:
        """How far the current value is from the same one of another pass or recording."""
        return difference(self.name, self.value, other[self.name])

    def finish(self) -> F32:
        """Run to the end, let the cache have the new tokens, and return the logits, float32 [n_tokens, n_vocab]."""
        while not self.done:
            self.next()
        self._check_open()
        self._cache.advance(self.ids, altered=self._replaced)
        self._open = False
        return self.value.copy()

    def abort(self) -> None:
        """End the pass; the cache is as it was before."""
        if self._open:
            self._cache.abandon()
            self._open = False

    def _current(self) -> DeferredValue:
        if self._at < 0:
            raise InvalidInputError("the pass has not begun: nothing is there yet, go on with next()")
        return self._pass.values[self._at]

    def _check_open(self) -> None:
        if not self._open:
            raise InvalidInputError("the pass is over")


def _called(operation: Operation, call: Callable[..., Any]) -> Operation:
    if hasattr(operation.kernel, "py_func"):
        raise InvalidInputError(
            "kernels are compiled, so nobody can go into them: start with NUMBA_DISABLE_JIT=1 and backend reference"
        )
    return dataclasses.replace(operation, kernel=functools.partial(call, operation.kernel))


def _read_only(array: npt.NDArray[Any]) -> Values:
    view = array.view()
    view.flags.writeable = False
    return view
