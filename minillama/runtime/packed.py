"""Weights as operations see them."""

from __future__ import annotations

from typing import Protocol

from minillama.gguf.constants import GGMLType
from minillama.kernels.types import U8


class PackedMatrix(Protocol):
    """A weight as the operations see it: packed rows, their type and their true shape."""

    @property
    def name(self) -> str:
        """The tensor's name."""

    @property
    def packed(self) -> U8:
        """Packed rows, uint8 [n_rows, row_bytes]."""

    @property
    def type(self) -> GGMLType:
        """Type of the blocks."""

    @property
    def shape(self) -> tuple[int, int]:
        """``(n_rows, n_values)``."""


class PackedExperts(Protocol):
    """The weights of all experts of a layer, as the operations see them."""

    @property
    def name(self) -> str:
        """The tensor's name."""

    @property
    def packed(self) -> U8:
        """Packed rows, uint8 [n_expert, n_rows, row_bytes]."""

    @property
    def type(self) -> GGMLType:
        """Type of the blocks."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """``(n_expert, n_rows, n_values)``."""
