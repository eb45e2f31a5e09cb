"""How keys and values lie in the blocks of a cache, and how to get at those of a position.

The kernels' layout (``kernels.reference.attention``): a block of a layer holds, for every kv head, the keys value by
value with the block's positions side by side, and the values position by position.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from minillama.errors import InvalidInputError
from minillama.gguf.constants import GGMLType
from minillama.kernels.layouts import LAYOUTS
from minillama.kernels.reference.attention import BLOCK
from minillama.kernels.scratch import BLOCK_BYTES
from minillama.kernels.types import F32

if TYPE_CHECKING:
    from minillama.kernels.reference.kv_kinds import Kind

Blocks = npt.NDArray[Any]


KV_TYPES: Mapping[str, GGMLType] = {
    type_.name.lower(): type_ for type_ in (GGMLType.F32, GGMLType.F16, GGMLType.BF16, GGMLType.Q8_0, GGMLType.Q4_0)
}
_DTYPES: Mapping[GGMLType, np.dtype[Any]] = {
    GGMLType.F32: np.dtype(np.float32),
    GGMLType.F16: np.dtype(np.uint16),
    GGMLType.BF16: np.dtype(np.uint16),
}
_FLAT = 64  # llama.cpp rotates heads before it quantizes them if they are multiples of so many values


def kv_types(kv_type: str | tuple[str, str]) -> tuple[str, str]:
    """Types of keys and of values: ``"f16"``, ``"q8_0,f16"`` or ``("q8_0", "f16")``.

    Raises
    ------
    InvalidInputError
        There is no such type.
    """
    named = kv_type.split(",") if isinstance(kv_type, str) else kv_type
    if len(named) not in (1, 2) or not set(named) <= set(KV_TYPES):
        raise InvalidInputError(f"kv_type is {kv_type!r}, there are {', '.join(KV_TYPES)}, and pairs such as q8_0,f16")
    return named[0], named[-1]


def bytes_per_value(kv_type: str | tuple[str, str]) -> float:
    """What a key or a value takes, on average."""
    found = [LAYOUTS[KV_TYPES[name]] for name in kv_types(kv_type)]
    return sum(layout.type_size / layout.block_size for layout in found) / 2


@dataclass(frozen=True)
class KVFormat:
    """How one of the two, keys or values, is stored.

    Attributes
    ----------
    type
        Type of the stored values.
    is_keys
        Whether it is keys, which lie value by value unless they are packed.
    """

    type: GGMLType
    is_keys: bool

    @property
    def is_packed(self) -> bool:
        """Whether values are in quantized blocks."""
        return self.type not in _DTYPES

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the arrays that hold them."""
        return _DTYPES.get(self.type, np.dtype(np.uint8))

    @property
    def kind(self) -> Kind:
        """What kernels know it as."""
        return self.type if self.type is GGMLType.BF16 or self.is_packed else self.dtype

    @property
    def slot_axis(self) -> int:
        """Axis of an array of blocks that a position's slot in its block is."""
        return 3 if self.is_keys and not self.is_packed else 2

    def shape(self, n_head_kv: int, dim: int) -> tuple[int, int, int]:
        """Shape of a block of a layer with heads of ``dim`` values.

        Raises
        ------
        InvalidInputError
            Heads are not whole blocks of the type.
        """
        layout = LAYOUTS[self.type]
        if dim % layout.block_size:
            raise InvalidInputError(
                f"kv_type is {self.type.name.lower()!r}, which takes heads of a multiple of {layout.block_size} "
                f"values; the model's have {dim}"
            )
        width = layout.row_bytes(dim) // self.dtype.itemsize
        return (n_head_kv, width, BLOCK) if self.slot_axis == 3 else (n_head_kv, BLOCK, width)

    def rotation(self, dim: int) -> int:
        """How many values of a head are rotated together before they are packed, as llama.cpp does it; 0: none."""
        if not self.is_packed or dim % _FLAT:
            return 0
        return dim & -dim if self.is_keys else _FLAT

    def rows(self, blocks: Blocks) -> Blocks:
        """What blocks hold, position by position: [n_blocks * BLOCK, n_head_kv, ...]."""
        by_slot = np.moveaxis(blocks, self.slot_axis, 1)
        return by_slot.reshape(-1, *by_slot.shape[2:])

    def blocks(self, rows: Blocks) -> Blocks:
        """Blocks that hold these positions; the rest of the last one is zero."""
        padded = np.zeros((-(-len(rows) // BLOCK) * BLOCK, *rows.shape[1:]), rows.dtype)
        padded[: len(rows)] = rows
        return np.moveaxis(padded.reshape(-1, BLOCK, *rows.shape[1:]), 1, self.slot_axis)

    def decode(self, rows: Blocks) -> F32:
        """Rows as numbers: float32 [n, n_head_kv, dim]."""
        from minillama.kernels.reference.dequantize import GET_ROWS

        packed = self._as_bytes(rows)
        layout = LAYOUTS[self.type]
        out = np.empty((len(packed), packed.shape[1] // layout.type_size * layout.block_size), np.float32)
        GET_ROWS[self.type](packed, np.arange(len(packed)), out, np.empty(BLOCK_BYTES, np.uint8), 0, len(packed))
        return out.reshape(*rows.shape[:2], -1)

    def encode(self, values: F32) -> Blocks:
        """Numbers as rows, as they are stored."""
        from minillama.kernels.reference.quantize_weights import QUANTIZE_WEIGHTS

        flat = np.ascontiguousarray(values).reshape(-1, values.shape[-1])
        packed = np.empty((len(flat), LAYOUTS[self.type].row_bytes(flat.shape[1])), np.uint8)
        QUANTIZE_WEIGHTS[self.type](flat, np.empty(0, np.float32), packed, 0, len(flat))
        return packed.view(self.dtype).reshape(*values.shape[:2], -1)

    def _as_bytes(self, rows: Blocks) -> npt.NDArray[np.uint8]:
        return np.ascontiguousarray(rows).reshape(-1, rows.shape[-1]).view(np.uint8)
