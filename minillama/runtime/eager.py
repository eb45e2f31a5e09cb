"""The eager driver: every operation of the forward pass runs when it is called and returns its result."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from minillama.errors import InvalidInputError
from minillama.gguf.constants import GGMLType
from minillama.kernels.layouts import LAYOUTS
from minillama.kernels.registry import KernelSet, kernel_set
from minillama.kernels.types import F32, U8
from minillama.runtime.batch import Batch
from minillama.runtime.operations import Operations
from minillama.runtime.plan import Operation
from minillama.runtime.probe import PACKED_TYPES, Probe, packed_name
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
    probe
        Is shown the named results it wants, and may replace them.
    """

    def __init__(self, kernels: KernelSet, team: ThreadTeam, probe: Probe | None = None) -> None:
        super().__init__(kernels)
        self.team = team
        self._probe = probe
        self._names: dict[int, tuple[weakref.ref[F32], str]] = {}
        self._shown: set[str] = set()

    def run(self, forward: Forward, batch: Batch, probe: Probe | None = None) -> F32:
        """Run a forward pass, with a probe if there is one."""
        return forward(self if probe is None else Eager(self.kernels, self.team, probe), batch)

    def _empty(self, shape: tuple[int, ...], dtype: npt.DTypeLike = np.float32) -> npt.NDArray[Any]:
        return np.empty(shape, dtype)

    def _do(self, operation: Operation) -> None:
        self.team.run_operation(operation)

    def _wants(self, name: str) -> bool:
        return self._probe is not None and self._probe.wants(name)

    def _result(self, name: str, value: F32) -> F32:
        if self._probe is None:
            return value
        if self._probe.wants(name):
            replacement = self._probe.take(name, value)
            value = value if replacement is None else replacement
        self._names[id(value)] = weakref.ref(value), name
        return value

    def _activation(self, x: F32, type_: GGMLType, name: str) -> U8:
        made = super()._activation(x, type_, name)
        if self._probe is not None and type_ in PACKED_TYPES:
            self._show_packed(self._probe, x, type_)
        return made

    def _show_packed(self, probe: Probe, x: F32, type_: GGMLType) -> None:
        """Show rows in ggml's own blocks; how the backend lays them out for its products is its own affair."""
        of, name = self._names.get(id(x), (None, ""))
        packed = packed_name(name, type_)
        if of is None or of() is not x or packed in self._shown or not probe.wants(packed):
            return
        self._shown.add(packed)
        blocks = np.empty((len(x), LAYOUTS[type_].row_bytes(x.shape[1])), np.uint8)
        self.team.run(kernel_set("reference").quantize[type_], len(x), x, blocks)
        if probe.take(packed, blocks) is not None:
            raise InvalidInputError(f"{packed} can be recorded, not replaced; replace {name} instead")
