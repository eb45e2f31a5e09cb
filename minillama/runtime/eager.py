"""The eager driver: every operation of the forward pass runs when it is called and returns its result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from minillama.kernels.registry import KernelSet
from minillama.kernels.types import F32
from minillama.runtime.batch import Batch
from minillama.runtime.operations import Operations, Watcher
from minillama.runtime.plan import Operation
from minillama.runtime.threads import ThreadTeam

Forward = Callable[[Operations, Batch], F32]


class Eager(Operations):
    """Runs operations one by one, each shared out over a team of threads.

    Parameters
    ----------
    kernels
        The backend's kernels.
    team
        Threads to run them on.
    watch
        Called as ``watch(name, value)`` with each named result; it must not keep or change the array.
    """

    def __init__(self, kernels: KernelSet, team: ThreadTeam, watch: Watcher | None = None) -> None:
        super().__init__(kernels)
        self.team = team
        self._watch = watch

    def run(self, forward: Forward, batch: Batch, watch: Watcher | None = None) -> F32:
        """Run a forward pass, with a watcher if there is one."""
        return forward(self if watch is None else Eager(self.kernels, self.team, watch), batch)

    def _empty(self, shape: tuple[int, ...], dtype: npt.DTypeLike = np.float32) -> npt.NDArray[Any]:
        return np.empty(shape, dtype)

    def _do(self, operation: Operation) -> None:
        self.team.run_operation(operation)

    def _result(self, name: str, value: F32) -> F32:
        if self._watch is not None:
            self._watch(name, value)
        return value
