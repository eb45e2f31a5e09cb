"""Memory for the results of a plan: a result's place is used again once the forward pass has dropped the array."""

from __future__ import annotations

import ctypes
import weakref
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from minillama.runtime.plan import aligned

_Memory = Any  # a ctypes array of ctypes.c_char
# A result smaller than this may take the place of any result up to this size.
_SMALL = 4096


class Arena:
    """Hands out arrays while a plan is recorded, and takes their memory back when they are garbage.

    Recording runs the forward pass once; an array that nothing refers to any more is read by no later operation, so a
    later result may lie in its place. The memory lives as long as the arena, whatever becomes of the arrays.
    """

    def __init__(self) -> None:
        self._all: dict[int, _Memory] = {}
        self._free: list[_Memory] = []

    @property
    def nbytes(self) -> int:
        """Bytes of all results."""
        return sum(map(ctypes.sizeof, self._all.values()))

    def empty(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """An array that nobody else uses; its contents are whatever they were."""
        memory = self._take(np.dtype(dtype).itemsize * prod(shape))
        array: npt.NDArray[Any] = np.ndarray(shape, dtype, buffer=memory)
        weakref.finalize(array, self._free.append, memory).atexit = False
        return array

    def owns(self, array: npt.NDArray[Any]) -> bool:
        """Whether an array lies in the arena."""
        base = array.base if isinstance(array.base, np.ndarray) else array
        return id(base.base) in self._all

    def alias(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Another array over the same memory, which does not keep it from being used again.

        Parameters
        ----------
        array
            As returned by :meth:`empty`.
        """
        memory: Any = array.base
        return np.ndarray(array.shape, array.dtype, buffer=memory)

    def _take(self, size: int) -> _Memory:
        fitting = [memory for memory in self._free if size <= ctypes.sizeof(memory) <= max(2 * size, _SMALL)]
        if not fitting:
            # The base of an array is then no array, so that views refer to the array itself and keep it in use.
            memory: Any = aligned(max(size, 1))
            held: _Memory = (ctypes.c_char * max(size, 1)).from_buffer(memory)
            self._all[id(held)] = held
            return held
        best = min(fitting, key=ctypes.sizeof)
        self._free.remove(best)
        return best
