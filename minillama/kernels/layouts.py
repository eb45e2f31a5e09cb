"""The byte layout of every block type that the kernels read, written once.

A quantized row is a sequence of blocks; a block holds ``block_size`` values in ``type_size`` bytes, made of the fields
below in this order. Source of the formats: ggml's ``ggml-common.h``. ``activation`` is the type a row of the other
operand is converted to before a dot product (ggml's ``vec_dot_type``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from minillama.errors import UnsupportedError
from minillama.gguf.constants import GGMLType


@dataclass(frozen=True)
class BlockLayout:
    """Fields of one block type.

    Parameters
    ----------
    type
        The tensor type.
    block_size
        Values per block.
    fields
        ``(name, bytes)`` of each field, in order.
    activation
        Type of the other operand of a dot product; None for types that are only ever an operand.
    """

    type: GGMLType
    block_size: int
    fields: tuple[tuple[str, int], ...]
    activation: GGMLType | None

    @property
    def type_size(self) -> int:
        """Bytes per block."""
        return sum(size for _, size in self.fields)

    def offset(self, field: str) -> int:
        """Byte offset of a field in the block."""
        position = 0
        for name, size in self.fields:
            if name == field:
                return position
            position += size
        raise KeyError(field)

    def row_bytes(self, n_values: int) -> int:
        """Bytes of a row of ``n_values`` values, which must be a multiple of the block size."""
        return n_values // self.block_size * self.type_size


# d: scale (half); m, dmin: minimum or its scale (half); qs, ql: low bits of the quants; qh, hmask: their high bits;
# scales: 4-, 6- or 8-bit scales (and minimums) of the sub-blocks; s: d times the sum of the quants; bsums: sums of 16.
F32 = BlockLayout(GGMLType.F32, 1, (("value", 4),), GGMLType.F32)
F16 = BlockLayout(GGMLType.F16, 1, (("value", 2),), GGMLType.F16)
BF16 = BlockLayout(GGMLType.BF16, 1, (("value", 2),), GGMLType.BF16)
Q4_0 = BlockLayout(GGMLType.Q4_0, 32, (("d", 2), ("qs", 16)), GGMLType.Q8_0)
Q4_1 = BlockLayout(GGMLType.Q4_1, 32, (("d", 2), ("m", 2), ("qs", 16)), GGMLType.Q8_1)
Q5_0 = BlockLayout(GGMLType.Q5_0, 32, (("d", 2), ("qh", 4), ("qs", 16)), GGMLType.Q8_0)
Q5_1 = BlockLayout(GGMLType.Q5_1, 32, (("d", 2), ("m", 2), ("qh", 4), ("qs", 16)), GGMLType.Q8_1)
Q8_0 = BlockLayout(GGMLType.Q8_0, 32, (("d", 2), ("qs", 32)), GGMLType.Q8_0)
Q8_1 = BlockLayout(GGMLType.Q8_1, 32, (("d", 2), ("s", 2), ("qs", 32)), None)
Q2_K = BlockLayout(GGMLType.Q2_K, 256, (("scales", 16), ("qs", 64), ("d", 2), ("dmin", 2)), GGMLType.Q8_K)
Q3_K = BlockLayout(GGMLType.Q3_K, 256, (("hmask", 32), ("qs", 64), ("scales", 12), ("d", 2)), GGMLType.Q8_K)
Q4_K = BlockLayout(GGMLType.Q4_K, 256, (("d", 2), ("dmin", 2), ("scales", 12), ("qs", 128)), GGMLType.Q8_K)
Q5_K = BlockLayout(GGMLType.Q5_K, 256, (("d", 2), ("dmin", 2), ("scales", 12), ("qh", 32), ("qs", 128)), GGMLType.Q8_K)
Q6_K = BlockLayout(GGMLType.Q6_K, 256, (("ql", 128), ("qh", 64), ("scales", 16), ("d", 2)), GGMLType.Q8_K)
Q8_K = BlockLayout(GGMLType.Q8_K, 256, (("d", 4), ("qs", 256), ("bsums", 32)), None)

LAYOUTS: Mapping[GGMLType, BlockLayout] = {
    layout.type: layout
    for layout in (F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q8_1, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, Q8_K)
}
WEIGHT_TYPES = tuple(layout.type for layout in LAYOUTS.values() if layout.activation is not None)


def weight_layout(type_: GGMLType | None, name: str) -> BlockLayout:
    """Layout of a type that weights may have.

    Raises
    ------
    UnsupportedError
        No kernel reads the type; the message names the tensor and lists the types that are read.
    """
    if type_ not in WEIGHT_TYPES:
        known = ", ".join(t.name for t in WEIGHT_TYPES)
        found = "an unknown type" if type_ is None else type_.name
        raise UnsupportedError(f"tensor {name!r} has type {found}, supported are {known}")
    return LAYOUTS[type_]
