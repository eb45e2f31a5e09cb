"""Arrays to packed blocks and back, with ggml's bits: what ``minillama.quantize`` and ``minillama.dequantize`` are."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from minillama.errors import InvalidInputError, UnsupportedError
from minillama.gguf.constants import GGMLType
from minillama.kernels.layouts import LAYOUTS, BlockLayout
from minillama.kernels.reference.dequantize import GET_ROWS
from minillama.kernels.reference.quantize_weights import QUANTIZE_WEIGHTS
from minillama.kernels.scratch import BLOCK_BYTES
from minillama.kernels.types import F32, U8
from minillama.runtime.threads import ThreadTeam

_EXACT_DTYPES = (np.dtype(np.float32), np.dtype(np.float16))
_NO_IMPORTANCE = np.empty(0, np.float32)
_NO_IMPORTANCE.flags.writeable = False


def quantize(
    array: npt.ArrayLike, type: str, importance: npt.ArrayLike | None = None, *, threads: int | None = None
) -> U8:
    """Quantize an array as ``ggml_quantize_chunk`` does, bit for bit.

    Parameters
    ----------
    array
        float32 or float16 [..., n], finite, n a multiple of the type's block size.
    type
        The type as ggml spells it, in any case: ``"q4_K"``.
    importance
        Importance of each of the n columns (an importance matrix's row), finite and not negative. Types without a
        search take no notice of it, as in ggml.
    threads
        Threads to use; all the process may use by default. The result does not depend on it.

    Returns
    -------
    ndarray
        uint8 [..., bytes of a row].

    Raises
    ------
    UnsupportedError
        The type does not exist or cannot be made.
    InvalidInputError
        The array or the importance is not as described, or the values are beyond what the type's scales can hold.
    """
    layout = LAYOUTS[type_named(type, QUANTIZE_WEIGHTS, "quantizing")]
    values = np.asarray(array)
    if values.dtype not in _EXACT_DTYPES:
        raise InvalidInputError(f"the array has dtype {values.dtype}, float32 or float16 is wanted")
    n = values.shape[-1] if values.ndim else 0
    if not values.ndim or n % layout.block_size:
        blocks = f"{layout.type.name} has blocks of {layout.block_size}"
        raise InvalidInputError(f"the array has shape {values.shape}: {blocks}, rows must be a multiple of that")
    rows = np.ascontiguousarray(values, np.float32).reshape(math.prod(values.shape[:-1]), n)
    check_finite("the array", rows)
    weights = None if importance is None else checked_importance(importance, n)
    packed = quantize_rows(rows, layout, weights, ThreadTeam(threads))
    return packed.reshape(*values.shape[:-1], packed.shape[-1])


def dequantize(
    packed: npt.NDArray[np.uint8], type: str, shape: Sequence[int] | None = None, *, threads: int | None = None
) -> F32:
    """Decode packed blocks as ggml's ``dequantize_row_*`` do, bit for bit.

    Parameters
    ----------
    packed
        uint8 [..., bytes of a row].
    type
        The type as ggml spells it, in any case: ``"q4_K"``.
    shape
        Shape of the result; by default that of ``packed``, the last axis counted in values.
    threads
        Threads to use; all the process may use by default.

    Returns
    -------
    ndarray
        float32 [..., n].

    Raises
    ------
    UnsupportedError
        The type does not exist or cannot be decoded.
    InvalidInputError
        The bytes are not whole blocks, or not those of the shape.
    """
    layout = LAYOUTS[type_named(type, GET_ROWS, "decoding")]
    data = np.asarray(packed)
    if data.dtype != np.uint8 or not data.ndim:
        raise InvalidInputError(f"{data.dtype} {data.shape} found, a uint8 array with at least one axis is wanted")
    blocks, rest = divmod(data.shape[-1], layout.type_size)
    if shape is None:
        if rest:
            size = f"{layout.type.name} has blocks of {layout.type_size} bytes"
            raise InvalidInputError(f"{size}, rows of {data.shape[-1]} bytes are not whole blocks")
        shape = (*data.shape[:-1], blocks * layout.block_size)
    shape = tuple(int(size) for size in shape)
    n = shape[-1] if shape else 0
    wanted = math.prod(shape) // layout.block_size * layout.type_size
    if min(shape, default=-1) < 0 or n % layout.block_size or wanted != data.size:
        found = f"{data.size} bytes are not {layout.type.name} values of shape {shape}"
        raise InvalidInputError(f"{found}: blocks are {layout.block_size} values in {layout.type_size} bytes")
    rows = np.ascontiguousarray(data).reshape(math.prod(shape[:-1]), layout.row_bytes(n))
    return dequantize_rows(rows, layout, ThreadTeam(threads)).reshape(shape)


def type_named(name: str, supported: Iterable[GGMLType], action: str) -> GGMLType:
    """The type of a name in any case.

    Raises
    ------
    UnsupportedError
        There is no such type among those supported; the message lists them.
    """
    known = {type_.name: type_ for type_ in supported}
    type_ = known.get(name.upper()) if isinstance(name, str) else None
    if type_ is None:
        raise UnsupportedError(f"{action} type {name!r} is not supported, supported are {', '.join(known)}")
    return type_


def checked_importance(importance: npt.ArrayLike, n: int) -> F32:
    """Importances of n columns as the kernels want them, float32 [n], or InvalidInputError."""
    weights = np.ascontiguousarray(importance, np.float32)
    if weights.shape != (n,):
        raise InvalidInputError(f"the importance has shape {weights.shape}, ({n},) is wanted: one number per column")
    check_finite("the importance", weights)
    if (weights < 0).any():
        raise InvalidInputError(f"the importance has {np.count_nonzero(weights < 0)} negative numbers, none is wanted")
    return weights


def quantize_rows(rows: F32, layout: BlockLayout, importance: F32 | None, team: ThreadTeam) -> U8:
    """Contiguous rows of finite values, float32 [n_rows, n], quantized: uint8 [n_rows, row_bytes].

    Raises
    ------
    InvalidInputError
        ``ggml_validate_row_data`` would refuse the result: a scale is infinite or not a number.
    """
    packed = np.empty((len(rows), layout.row_bytes(rows.shape[1])), np.uint8)
    weights = _NO_IMPORTANCE if importance is None else _read_only(importance)
    team.run(QUANTIZE_WEIGHTS[layout.type], len(rows), _read_only(rows), weights, packed)
    bad = _bad_blocks(packed, layout)
    if bad.any():
        first = int(bad.argmax())
        place = divmod(first * layout.block_size, rows.shape[1])
        largest = np.abs(rows.reshape(-1, layout.block_size)[first]).max()
        raise InvalidInputError(
            f"{np.count_nonzero(bad)} of {bad.size} {layout.type.name} blocks would not be finite, the first at"
            f" row {place[0]}, column {place[1]}, where the largest magnitude is {largest:g}"
        )
    return packed


def dequantize_rows(packed: U8, layout: BlockLayout, team: ThreadTeam) -> F32:
    """Contiguous packed rows, uint8 [n_rows, row_bytes], decoded: float32 [n_rows, n]."""
    n = packed.shape[1] // layout.type_size * layout.block_size
    out = np.empty((len(packed), n), np.float32)
    ids = np.arange(len(packed))
    team.run(GET_ROWS[layout.type], len(packed), _read_only(packed), ids, out, scratch_bytes=BLOCK_BYTES)
    return out


def _read_only(array: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    """The array as kernels are compiled for it: views of files are read-only, and numba would compile for both."""
    view = array.view()
    view.flags.writeable = False
    return view


def check_finite(what: str, values: F32) -> None:
    """Raise InvalidInputError if a value is infinite or not a number."""
    finite = np.isfinite(values)
    if not finite.all():
        first = tuple(int(i) for i in np.argwhere(~finite)[0])
        count = f"{finite.size - np.count_nonzero(finite)} of {finite.size}"
        raise InvalidInputError(f"{what} has {count} values that are not finite, first {values[first]} at {first}")


def _bad_blocks(packed: U8, layout: BlockLayout) -> npt.NDArray[np.bool_]:
    """Which blocks ``ggml_validate_row_data`` refuses, bool [n_blocks]."""
    blocks = packed.reshape(-1, layout.type_size)
    bad = np.zeros(len(blocks), np.bool_)
    for name, size in layout.fields:
        field = blocks[:, layout.offset(name) : layout.offset(name) + size]
        if name == "e":
            bad |= field[:, 0] == 255
        elif name in ("d", "dmin", "m", "value") and layout.type is not GGMLType.NVFP4:
            top, exponent = field[:, -2:].copy().view("<u2")[:, 0], _EXPONENT[size, layout.type is GGMLType.BF16]
            bad |= (top & exponent) == exponent
    return bad


# The exponent's bits in the upper two bytes of a half, a bfloat16 and a float32, by size and being a bfloat16.
_EXPONENT = {(2, False): 0x7C00, (2, True): 0x7F80, (4, False): 0x7F80}
