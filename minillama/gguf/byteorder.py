"""Big-endian files: their tensors' bytes put into the order that everything else here works in.

The metadata is read in its own order. Of a tensor's blocks, the fields of several bytes are swapped.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from minillama.errors import UnsupportedError
from minillama.gguf.constants import TYPE_SIZE, GGMLType
from minillama.gguf.cursor import quoted
from minillama.gguf.tensors import TensorInfo

_NONE: tuple[tuple[int, str], ...] = ()
_HALF_FIRST = ((0, "u2"),)
_TWO_HALVES_FIRST = ((0, "(2,)u2"),)

# type -> offset and numpy format of each field of several bytes. Missing are types some of whose bytes ggml reads as
# wider words (Q5_0's qh, say): whether a big-endian file has those swapped depends on who wrote it.
_FIELDS: dict[GGMLType, tuple[tuple[int, str], ...]] = {
    **dict.fromkeys((GGMLType.I8, GGMLType.MXFP4, GGMLType.NVFP4), _NONE),
    **dict.fromkeys((GGMLType.F16, GGMLType.BF16, GGMLType.I16), _HALF_FIRST),
    **dict.fromkeys((GGMLType.F32, GGMLType.I32), ((0, "u4"),)),
    **dict.fromkeys((GGMLType.F64, GGMLType.I64), ((0, "u8"),)),
    **dict.fromkeys((GGMLType.Q4_0, GGMLType.Q8_0, GGMLType.IQ4_NL, GGMLType.Q1_0, GGMLType.Q2_0), _HALF_FIRST),
    **dict.fromkeys((GGMLType.IQ2_S, GGMLType.IQ3_S), _HALF_FIRST),
    **dict.fromkeys((GGMLType.Q4_1, GGMLType.Q8_1, GGMLType.Q4_K, GGMLType.Q5_K, GGMLType.IQ4_XS), _TWO_HALVES_FIRST),
    GGMLType.Q2_K: ((80, "(2,)u2"),),
    GGMLType.Q3_K: ((108, "u2"),),
    GGMLType.Q6_K: ((208, "u2"),),
    GGMLType.Q8_K: ((0, "u4"), (260, "(16,)u2")),
    GGMLType.IQ1_S: ((0, "u2"), (34, "(8,)u2")),
    GGMLType.IQ2_XS: ((0, "(33,)u2"),),
    GGMLType.TQ1_0: ((52, "u2"),),
    GGMLType.TQ2_0: ((64, "u2"),),
}


def swap_tensors(memory: memoryview, tensors: Iterable[TensorInfo]) -> None:
    """Swap the bytes of all tensors of a big-endian file, in place.

    Raises
    ------
    UnsupportedError
        A tensor has a type whose order of bytes is not settled; the message names it.
    """
    for tensor in tensors:
        if tensor.type not in _FIELDS or tensor.nbytes is None:
            known = ", ".join(kind.name for kind in _FIELDS)
            raise UnsupportedError(
                f"{tensor.path}: tensor {quoted(tensor.name)} has {tensor.type_name}, which is not read from big-endian"
                f" files; read are {known}"
            )
        fields = _FIELDS[tensor.type]
        block = np.dtype({
            "names": [str(offset) for offset, _ in fields],
            "formats": [kind for _, kind in fields],
            "offsets": [offset for offset, _ in fields],
            "itemsize": TYPE_SIZE[tensor.type],
        })  # fmt: skip
        blocks = np.frombuffer(memory[tensor.offset : tensor.offset + tensor.nbytes], block)
        for name in block.names or ():
            blocks[name].byteswap(inplace=True)
