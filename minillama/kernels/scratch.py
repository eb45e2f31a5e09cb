"""Working memory of kernels: a byte array that the caller owns, one per thread, divided here."""

from __future__ import annotations

import numpy as np

from minillama.kernels.jit import jit
from minillama.kernels.types import I8, I32, U8

# An unpacked block: 256 quants, 16 scales, 16 minimums; then eight integer and eight float lanes.
BLOCK_BYTES = 256 + 4 * 16 + 4 * 16
LANES_BYTES = 4 * 8 + 4 * 8
DOT_BYTES = BLOCK_BYTES + LANES_BYTES


@jit(allocates=True)
def unpacked_block(scratch: U8) -> tuple[I8, I32, I32]:
    """Arrays for the quants (int8 [256]), scales and minimums (int32 [16]) of one block."""
    return scratch[:256].view(np.int8), scratch[256:320].view(np.int32), scratch[320:384].view(np.int32)


@jit
def copy_bytes(source: U8, first: int, n: int, target: U8, at: int) -> None:
    """Copy ``n`` bytes; an assignment of slices does the same, and takes numba a second or two to compile."""
    for i in range(n):
        target[at + i] = source[first + i]
