"""The matrix products of the cpu backend, by type of the weight."""

from __future__ import annotations

from minillama.gguf.constants import GGMLType
from minillama.kernels.jit import Kernel, jit
from minillama.kernels.layouts import LAYOUTS
from minillama.kernels.reference import dot
from minillama.kernels.scratch import DOT_BYTES
from minillama.kernels.simd import activations, blocks_32, blocks_256, blocks_iq4_xs, unquantized
from minillama.kernels.types import F32, U8

_PACK = {GGMLType.Q8_0: activations.pack_q8_0, GGMLType.Q8_K: activations.pack_q8_k}


def _make_with_reference_dot(type_: GGMLType) -> Kernel:
    """Products of a type without a kernel of its own: the converted row as ggml packs it, then the reference's dot."""
    reference_dot, pack = dot.DOT[type_], _PACK[LAYOUTS[type_].activation]  # type: ignore[index]

    @jit(name=f"simd_mul_mat_{type_.name}")
    def mul_mat(weight: U8, activation: U8, n: int, out: F32, scratch: U8, start: int, stop: int) -> None:
        working, packed = scratch[:DOT_BYTES], scratch[DOT_BYTES:]
        for t in range(activation.shape[0]):
            pack(activation[t], n, packed)
            for r in range(start, stop):
                out[t, r] = reference_dot(weight[r], packed, n, working)

    return mul_mat


# mul_mat as in kernels.reference.dot, but of activations laid out as in simd.activations.
MUL_MAT: dict[GGMLType, Kernel] = unquantized.MUL_MAT | blocks_32.MUL_MAT | blocks_256.MUL_MAT | blocks_iq4_xs.MUL_MAT
_OWN = frozenset(MUL_MAT)
MUL_MAT |= {type_: _make_with_reference_dot(type_) for type_ in dot.DOT if type_ not in MUL_MAT}


def mul_mat_scratch(type_: GGMLType, n: int, n_tokens: int) -> int:
    """Bytes of scratch that one thread's part of a product needs."""
    if type_ in unquantized.MUL_MAT:
        return unquantized.mul_mat_scratch(n_tokens)
    if type_ in blocks_32.MUL_MAT:
        return blocks_32.mul_mat_scratch(n, n_tokens)
    if type_ in blocks_256.MUL_MAT:
        return blocks_256.mul_mat_scratch(n, n_tokens)
    if type_ in blocks_iq4_xs.MUL_MAT:
        return blocks_iq4_xs.mul_mat_scratch(n, n_tokens)
    activation = LAYOUTS[type_].activation
    assert activation is not None
    return DOT_BYTES + LAYOUTS[activation].row_bytes(n)


def mul_mat_rows(type_: GGMLType) -> int:
    """Ranges of rows are best cut at multiples of this."""
    return 16 if type_ in _OWN else 1
