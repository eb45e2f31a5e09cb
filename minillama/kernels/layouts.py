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


# d: scale (half; Q8_K: float; NVFP4: four 8-bit floats); e: the scale's exponent; m, dmin: minimum or its scale (half);
# qs, ql: low bits of the quants or of indices into a codebook; qh, hmask: their high bits; signs: a bit per value;
# scales: packed scales of the sub-blocks (and minimums, or signs); s: d times the sum of the quants; bsums: sums of 16.
F32 = BlockLayout(GGMLType.F32, 1, (("value", 4),), GGMLType.F32)
F16 = BlockLayout(GGMLType.F16, 1, (("value", 2),), GGMLType.F16)
BF16 = BlockLayout(GGMLType.BF16, 1, (("value", 2),), GGMLType.BF16)
Q1_0 = BlockLayout(GGMLType.Q1_0, 128, (("d", 2), ("qs", 16)), GGMLType.Q8_0)
Q2_0 = BlockLayout(GGMLType.Q2_0, 64, (("d", 2), ("qs", 16)), GGMLType.Q8_0)
Q4_0 = BlockLayout(GGMLType.Q4_0, 32, (("d", 2), ("qs", 16)), GGMLType.Q8_0)
Q4_1 = BlockLayout(GGMLType.Q4_1, 32, (("d", 2), ("m", 2), ("qs", 16)), GGMLType.Q8_1)
Q5_0 = BlockLayout(GGMLType.Q5_0, 32, (("d", 2), ("qh", 4), ("qs", 16)), GGMLType.Q8_0)
Q5_1 = BlockLayout(GGMLType.Q5_1, 32, (("d", 2), ("m", 2), ("qh", 4), ("qs", 16)), GGMLType.Q8_1)
Q8_0 = BlockLayout(GGMLType.Q8_0, 32, (("d", 2), ("qs", 32)), GGMLType.Q8_0)
Q8_1 = BlockLayout(GGMLType.Q8_1, 32, (("d", 2), ("s", 2), ("qs", 32)), None)
IQ4_NL = BlockLayout(GGMLType.IQ4_NL, 32, (("d", 2), ("qs", 16)), GGMLType.Q8_0)
MXFP4 = BlockLayout(GGMLType.MXFP4, 32, (("e", 1), ("qs", 16)), GGMLType.Q8_0)
NVFP4 = BlockLayout(GGMLType.NVFP4, 64, (("d", 4), ("qs", 32)), GGMLType.Q8_0)
TQ1_0 = BlockLayout(GGMLType.TQ1_0, 256, (("qs", 48), ("qh", 4), ("d", 2)), GGMLType.Q8_K)
TQ2_0 = BlockLayout(GGMLType.TQ2_0, 256, (("qs", 64), ("d", 2)), GGMLType.Q8_K)
Q2_K = BlockLayout(GGMLType.Q2_K, 256, (("scales", 16), ("qs", 64), ("d", 2), ("dmin", 2)), GGMLType.Q8_K)
Q3_K = BlockLayout(GGMLType.Q3_K, 256, (("hmask", 32), ("qs", 64), ("scales", 12), ("d", 2)), GGMLType.Q8_K)
Q4_K = BlockLayout(GGMLType.Q4_K, 256, (("d", 2), ("dmin", 2), ("scales", 12), ("qs", 128)), GGMLType.Q8_K)
Q5_K = BlockLayout(GGMLType.Q5_K, 256, (("d", 2), ("dmin", 2), ("scales", 12), ("qh", 32), ("qs", 128)), GGMLType.Q8_K)
Q6_K = BlockLayout(GGMLType.Q6_K, 256, (("ql", 128), ("qh", 64), ("scales", 16), ("d", 2)), GGMLType.Q8_K)
Q8_K = BlockLayout(GGMLType.Q8_K, 256, (("d", 4), ("qs", 256), ("bsums", 32)), None)
IQ1_S = BlockLayout(GGMLType.IQ1_S, 256, (("d", 2), ("qs", 32), ("qh", 16)), GGMLType.Q8_K)
IQ1_M = BlockLayout(GGMLType.IQ1_M, 256, (("qs", 32), ("qh", 16), ("scales", 8)), GGMLType.Q8_K)
IQ2_XXS = BlockLayout(GGMLType.IQ2_XXS, 256, (("d", 2), ("qs", 64)), GGMLType.Q8_K)
IQ2_XS = BlockLayout(GGMLType.IQ2_XS, 256, (("d", 2), ("qs", 64), ("scales", 8)), GGMLType.Q8_K)
IQ2_S = BlockLayout(GGMLType.IQ2_S, 256, (("d", 2), ("qs", 32), ("signs", 32), ("qh", 8), ("scales", 8)), GGMLType.Q8_K)
IQ3_XXS = BlockLayout(GGMLType.IQ3_XXS, 256, (("d", 2), ("qs", 64), ("scales", 32)), GGMLType.Q8_K)
IQ3_S = BlockLayout(GGMLType.IQ3_S, 256, (("d", 2), ("qs", 64), ("qh", 8), ("signs", 32), ("scales", 4)), GGMLType.Q8_K)
IQ4_XS = BlockLayout(GGMLType.IQ4_XS, 256, (("d", 2), ("scales_h", 2), ("scales_l", 4), ("qs", 128)), GGMLType.Q8_K)

_FLOATS = (F32, F16, BF16)
_SMALL = (Q1_0, Q2_0, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q8_1, IQ4_NL, MXFP4, NVFP4)
_LARGE = (TQ1_0, TQ2_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, Q8_K)
_CODEBOOK = (IQ1_S, IQ1_M, IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S, IQ4_XS)

LAYOUTS: Mapping[GGMLType, BlockLayout] = {layout.type: layout for layout in (*_FLOATS, *_SMALL, *_LARGE, *_CODEBOOK)}
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
