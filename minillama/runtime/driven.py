"""What all operations of a forward pass have in common: names of results, memory for them, and how they are run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from minillama.gguf.constants import GGMLType
from minillama.kernels.jit import Kernel
from minillama.kernels.registry import KernelSet
from minillama.kernels.types import F32, U8
from minillama.runtime.batch import Batch
from minillama.runtime.low_rank import Stretch
from minillama.runtime.plan import Operation


class Reached(Exception):  # noqa: N818 - no error: the pass has come to where it is to end
    """The value at which a pass ends has been made."""

    def __init__(self, value: F32) -> None:
        super().__init__()
        self.value = value


class Driven(ABC):
    """Operations that a driver runs, or notes down.

    Parameters
    ----------
    kernels
        The backend's kernels.
    """

    def __init__(self, kernels: KernelSet) -> None:
        self.kernels = kernels
        self._prefix = ""
        # Inside a block: the last rows in the forms that products take. Elsewhere the caller may change them in place.
        self._activated: tuple[F32, dict[GGMLType, U8]] | None = None
        self._keeps_activated = False
        # Inside a block: the last operations, if they are products of one activation: that, and their results.
        self._products: tuple[U8, list[F32]] | None = None
        self._stretches: tuple[Stretch, ...] = ()
        self._n_tokens, self._until = 0, ""

    @abstractmethod
    def _empty(self, shape: tuple[int, ...], dtype: npt.DTypeLike = np.float32) -> npt.NDArray[Any]:
        """Memory for a result."""

    @abstractmethod
    def _do(self, operation: Operation) -> None:
        """Run an operation, or note it down."""

    @abstractmethod
    def _result(self, name: str, value: F32) -> F32:
        """A value has its name."""

    def _wants(self, name: str) -> bool:
        """Whether anyone asks for a value that is otherwise not computed."""
        return False

    def _n_kv(self, batch: Batch) -> int:
        """Positions that the products and weights of attention have room for."""
        return batch.n_kv

    @contextmanager
    def block(self, index: int) -> Iterator[None]:
        """Names given inside belong to layer ``index``: ``attn_norm`` becomes ``blk.0.attn_norm``."""
        self._prefix, self._keeps_activated = f"blk.{index}.", True
        try:
            yield
        finally:
            self._prefix, self._keeps_activated, self._activated, self._products = "", False, None, None

    @contextmanager
    def working_on(self, batch: Batch) -> Iterator[None]:
        """Operations inside are a pass over this batch, with its sequences' adapters, up to its last value.

        Raises
        ------
        Reached
            That value was made; it is in the exception.
        """
        self._stretches, self._n_tokens, self._until = batch.stretches, batch.n_tokens, batch.until
        try:
            yield
        finally:
            self._stretches, self._until = (), ""

    def _named(self, name: str, value: F32) -> F32:
        value = self._result(self._prefix + name, value)
        if self._until == self._prefix + name:
            raise Reached(value)
        return value

    def _run(self, name: str, kernel: Kernel, n_items: int, *arguments: Any, **details: Any) -> None:
        self._products = None
        if n_items:
            self._do(Operation(self._prefix + name, kernel, arguments, n_items, **details))
