"""Low-rank updates of weights (LoRA): what adapters give the operations, and which rows of a batch they are for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from minillama.runtime.packed import PackedExperts, PackedMatrix


@dataclass(frozen=True)
class LowRank:
    """An update of a weight: ``scale * (x @ a.T) @ b.T`` is added to ``x @ weight.T``.

    Attributes
    ----------
    a, b
        Packed matrices, or matrices of all experts: (rank, values of a row) and (rows, rank). Those of the embedding
        are (n_vocab, rank) and (n_embd, rank): a's rows are looked up.
    scale
        What the product is multiplied by.
    """

    a: Any
    b: Any
    scale: np.float32


class Adapter(Protocol):
    """Low-rank updates of some weights of a model."""

    @property
    def identity(self) -> str:
        """What tells it from other adapters."""

    def update(self, weight: str, scale: float) -> LowRank | None:
        """The update of the weight of this name, if there is one, for a scale that the user chose."""

    def check(self) -> None:
        """Raise a GGUFError if the mapped file was cut short or written to."""


Scaled = tuple[Adapter, float]


@dataclass(frozen=True)
class Stretch:
    """Neighbouring sequences of a batch that have the same adapters.

    Attributes
    ----------
    tokens, outputs
        Their rows among all tokens, and among the tokens whose logits are wanted.
    adapters
        The adapters and their scales, in the order in which they were asked for.
    """

    tokens: slice
    outputs: slice
    adapters: tuple[Scaled, ...]

    def updates(self, weight: PackedMatrix | PackedExperts) -> list[LowRank]:
        """The updates of a weight, in the order in which they are added: the last adapter's first, as in llama.cpp.

        There adapters are in a hash map, which hands out the last that came first. (Of three and more it depends on
        their addresses.)
        """
        found = (adapter.update(weight.name, scale) for adapter, scale in reversed(self.adapters))
        return [update for update in found if update is not None]
