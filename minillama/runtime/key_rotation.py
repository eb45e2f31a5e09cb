"""How the keys of each layer are rotated, found out from the forward pass itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from minillama.errors import UnsupportedError
from minillama.kernels.registry import KernelSet
from minillama.kernels.types import F32, I64
from minillama.runtime.batch import Batch
from minillama.runtime.deferred import Deferred
from minillama.runtime.eager import Forward
from minillama.runtime.packed import PackedMatrix
from minillama.runtime.rotary import Rotary


@dataclass(frozen=True)
class KeyRotation:
    """What a layer does to its keys; ``pairing`` is that of ``Operations.rope``."""

    rotary: Rotary
    pairing: str


class KeyRotations(Deferred):
    """Runs nothing, and notes what was done to the keys that attention is given.

    Attributes
    ----------
    found
        By layer; layers whose keys are not rotated are absent.
    """

    def __init__(self, kernels: KernelSet) -> None:
        super().__init__(kernels)
        self.found: dict[int, KeyRotation] = {}
        self._tables: dict[int, Rotary] = {}
        self._rotated: dict[int, KeyRotation] = {}
        self._positions: I64 | None = None

    def find(self, forward: Forward, batch: Batch) -> dict[int, KeyRotation]:
        """Lay out a pass and return what was found.

        Raises
        ------
        UnsupportedError
            The pass adds a learned embedding of its position to each token.
        """
        self._positions = batch.position
        forward(self, batch)
        return self.found

    def get_rows(self, weight: PackedMatrix, ids: I64, *, name: str) -> F32:
        """A row picked by its position is part of the token; no rotation moves it elsewhere."""
        if ids is self._positions:
            raise UnsupportedError("the model's positions are learned embeddings: its cache cannot be shifted")
        return super().get_rows(weight, ids, name=name)

    def rope_table(self, position: I64, rotary: Rotary) -> F32:
        """Note what the table is made from; every array is kept, so that none has the address of another."""
        table = super().rope_table(position, rotary)
        self._tables[id(table)] = rotary
        return table

    def rope(self, x: F32, table: F32, n_head: int, pairing: str, *, name: str) -> F32:
        """Note what the result was rotated by."""
        out = super().rope(x, table, n_head, pairing, name=name)
        self._rotated[id(out)] = KeyRotation(self._tables[id(table)], pairing)
        return out

    def attention(self, q: F32, k: F32, v: F32, batch: Batch, layer: int, *args: Any, **options: Any) -> F32:
        """Note what the layer's keys were rotated by."""
        if id(k) in self._rotated:
            self.found[layer] = self._rotated[id(k)]
        return super().attention(q, k, v, batch, layer, *args, **options)
