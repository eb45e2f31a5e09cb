"""Packed blocks of weights, field by field and unpacked: what a debugger shows of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from minillama.errors import InvalidInputError
from minillama.kernels.layouts import LAYOUTS
from minillama.kernels.reference.blocks import GROUP_SCALES, UNPACK
from minillama.kernels.reference.iq import FACTOR
from minillama.kernels.scratch import BLOCK_BYTES, unpacked_block
from minillama.kernels.types import F32, I8, I32
from minillama.model.weights import Weight

GROUP = 16  # values that share a scale, in types with scales of groups


@dataclass(frozen=True)
class Unpacked:
    """The numbers in a block, bit fields taken apart: what they decode to is ``formula``.

    Attributes
    ----------
    quants
        An integer for each value, int8; of codebook types the entries that the indices stand for.
    scale, minimum
        The block's own, as float32; the minimum is -0.0 if the type has none.
    factor
        A power of two that the scale is multiplied with, for some types.
    scales, mins
        Integers for each 16 values, int32; None if the type has no scales of groups.
    """

    quants: I8
    scale: np.float32
    minimum: np.float32
    factor: np.float32
    scales: I32 | None
    mins: I32 | None

    @property
    def has_minimum(self) -> bool:
        """Whether the type subtracts, or adds, a minimum."""
        return bool(self.minimum != 0) and (self.mins is None or bool(self.mins.any()))

    @property
    def formula(self) -> str:
        """How a value follows from the others; j is its number in the block."""
        scale = f"{self.scale:.9g}" + (f" * {self.factor:g}" if self.factor != 1 else "")
        if self.scales is None:
            return f"value[j] = {scale} * quants[j]" + (f" + {self.minimum:.9g}" if self.has_minimum else "")
        group = f"value[j] = {scale} * scales[j // {GROUP}] * quants[j]"
        return group + (f" - {self.minimum:.9g} * mins[j // {GROUP}]" if self.has_minimum else "")


@dataclass(frozen=True)
class Block:
    """One packed block of a weight.

    Attributes
    ----------
    weight, type
        The tensor and its type.
    row, index
        Which row, and which block of it.
    fields
        Bytes of each field, and what they mean where that is one number: ``(name, bytes, number or None)``.
    unpacked
        The numbers that the fields hold; None for floats, which need no unpacking.
    values
        What the block decodes to, float32 [values of a block].
    """

    weight: str
    type: str
    row: int
    index: int
    fields: tuple[tuple[str, bytes, float | None], ...]
    unpacked: Unpacked | None
    values: F32

    def __str__(self) -> str:
        lines = [f"{self.type} block [{self.row}, {self.index}] of {self.weight}"]
        for name, raw, number in self.fields:
            lines.append(_labelled(name, raw.hex(" ", 4)) + ("" if number is None else f" = {number:.9g}"))
        numbers = self.unpacked
        if numbers is not None:
            lines += [f"  {numbers.formula}"]
            if numbers.scales is not None:
                lines.append(_labelled("scales", _listed(numbers.scales)))
            if numbers.mins is not None and numbers.has_minimum:
                lines.append(_labelled("mins", _listed(numbers.mins)))
            lines.append(_labelled("quants", _listed(numbers.quants)))
        return "\n".join([*lines, _labelled("values", _listed(self.values))])


def _labelled(name: str, text: str) -> str:
    return f"  {name:8} " + text.replace("\n", "\n" + " " * 11)


def _listed(array: npt.NDArray[Any]) -> str:
    return np.array2string(array, precision=5, max_line_width=68, separator=" ")


def block_of(weight: Weight, row: int, index: int) -> Block:
    """Take a block apart.

    Raises
    ------
    InvalidInputError
        The weight has no such block.
    """
    layout = LAYOUTS[weight.type]
    n_blocks = weight.packed.shape[1] // layout.type_size
    if not (0 <= row < len(weight.packed) and 0 <= index < n_blocks):
        raise InvalidInputError(
            f"{weight.name} has {len(weight.packed)} rows of {n_blocks} blocks, not [{row}, {index}]"
        )
    packed = weight.packed[row, index * layout.type_size : (index + 1) * layout.type_size].copy()
    raw = packed.tobytes()
    fields = []
    for name, size in layout.fields:
        part = raw[layout.offset(name) : layout.offset(name) + size]
        fields.append((name, part, _number(name, part)))
    decoded = weight[row] if weight.ndim == 2 else weight
    values = decoded.dequantize().reshape(-1)[index * layout.block_size : (index + 1) * layout.block_size]
    return Block(weight.name, weight.quant, row, index, tuple(fields), _unpacked(weight, packed), values)


def _unpacked(weight: Weight, packed: npt.NDArray[np.uint8]) -> Unpacked | None:
    """The block as the reference kernels take it apart."""
    if weight.type not in UNPACK:
        return None
    quants, scales, mins = unpacked_block(np.zeros(BLOCK_BYTES, np.uint8))
    scale, minimum = UNPACK[weight.type](packed, 0, quants, scales, mins)
    size = LAYOUTS[weight.type].block_size
    groups = (scales[: size // GROUP], mins[: size // GROUP]) if weight.type in GROUP_SCALES else (None, None)
    factor = np.float32(FACTOR.get(weight.type, 1))
    return Unpacked(quants[:size], np.float32(scale), np.float32(minimum), factor, *groups)


def _number(name: str, raw: bytes) -> float | None:
    """A field that is one number: halves, or a float."""
    if name not in ("d", "dmin", "m", "s"):
        return None
    kind: Any = {2: np.float16, 4: np.float32}.get(len(raw))
    return None if kind is None else float(np.frombuffer(raw, kind)[0])


def nonfinite_blocks(weight: Weight) -> list[tuple[int, int]]:
    """Row and number of each block that decodes to NaN or infinity."""
    size = LAYOUTS[weight.type].block_size
    rows, columns = np.nonzero(~np.isfinite(np.atleast_2d(weight.dequantize())))
    return sorted({(int(row), int(column) // size) for row, column in zip(rows, columns, strict=True)})
