"""How keys and values lie in the blocks of a cache, and how to get at those of a position.

The kernels' layout (``kernels.reference.attention``): a block of a layer holds, for every kv head, the keys value by
value with the block's positions side by side, and the values position by position.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from minillama.gguf.constants import GGMLType
from minillama.kernels.layouts import LAYOUTS
from minillama.kernels.reference.attention import BLOCK
from minillama.kernels.scratch import BLOCK_BYTES
from minillama.kernels.types import F32

Blocks = npt.NDArray[Any]


@dataclass(frozen=True)
class KVFormat:
    """How one of the two, keys or values, is stored.

    Attributes
    ----------
    type
        Type of the stored values.
    dtype
        Type of the arrays that hold them.
    slot_axis
        Axis of an array of blocks that a position's slot in its block is.
    """

    type: GGMLType
    dtype: np.dtype[Any]
    slot_axis: int

    def shape(self, n_head_kv: int, dim: int) -> tuple[int, int, int]:
        """Shape of a block of a layer with heads of ``dim`` values."""
        return (n_head_kv, dim, BLOCK) if self.slot_axis == 3 else (n_head_kv, BLOCK, dim)

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
