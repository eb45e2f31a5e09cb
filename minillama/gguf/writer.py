"""Writing GGUF files."""

from __future__ import annotations

import math
import os
import secrets
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from minillama.errors import InvalidInputError
from minillama.gguf.constants import (
    ALIGNMENT_KEY,
    BLOCK_SIZE,
    DEFAULT_ALIGNMENT,
    MAGIC,
    MAX_ALIGNMENT,
    MAX_DIMS,
    MAX_NAME_BYTES,
    READABLE_VERSIONS,
    TYPE_SIZE,
    GGMLType,
    ValueType,
)
from minillama.gguf.cursor import quoted
from minillama.gguf.encode import encode_string, encode_value
from minillama.gguf.tensors import padded

_PLAIN_TYPES: dict[np.dtype[Any], GGMLType] = {
    np.dtype(np.float32): GGMLType.F32,
    np.dtype(np.float16): GGMLType.F16,
    np.dtype(np.float64): GGMLType.F64,
    np.dtype(np.int8): GGMLType.I8,
    np.dtype(np.int16): GGMLType.I16,
    np.dtype(np.int32): GGMLType.I32,
    np.dtype(np.int64): GGMLType.I64,
}


Bytes: TypeAlias = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class _Tensor:
    name: str
    shape: tuple[int, ...]
    type: GGMLType
    nbytes: int
    make: Callable[[], Iterable[Bytes]]  # the bytes in pieces, [n] each


class Writer:
    """Collects metadata and tensors, then writes them to a file in one go.

    The file appears, or replaces an older one, only when it is complete. As a context manager the writer writes at the
    end of the block, unless the block raised. Tensors are held by reference until then, not copied, or made only then.

    Parameters
    ----------
    path
        The file to make.
    architecture
        Value of ``general.architecture``; None to add none.
    alignment
        Tensor offsets are multiples of this power of two; other than 32 it is recorded in the metadata.
    version
        Version of the format, 2 or 3.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        architecture: str | None = None,
        *,
        alignment: int = DEFAULT_ALIGNMENT,
        version: int = READABLE_VERSIONS[-1],
    ) -> None:
        if not 0 < alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
            raise InvalidInputError(f"alignment: {alignment} found, a power of two up to {MAX_ALIGNMENT} wanted")
        if version not in READABLE_VERSIONS:
            raise InvalidInputError(f"version: {version} found, one of {READABLE_VERSIONS} wanted")
        self.path = Path(path)
        self._alignment = alignment
        self._version = version
        self._pairs: dict[str, bytes] = {}
        self._tensors: dict[str, _Tensor] = {}
        if architecture is not None:
            self.add("general.architecture", architecture)
        if alignment != DEFAULT_ALIGNMENT:
            self._pairs[ALIGNMENT_KEY] = encode_value(ALIGNMENT_KEY, alignment, ValueType.UINT32)

    def add(self, key: str, value: Any, value_type: ValueType | None = None) -> None:
        """Add a metadata value.

        Parameters
        ----------
        key
            The key; a key can be added once.
        value
            A bool, int, float, str, bytes (text given as bytes), numpy scalar or array, or a sequence of these; a
            sequence of sequences becomes an array of arrays.
        value_type
            Type in the file; of a sequence, the type of its elements. By default a bool is BOOL, a float FLOAT32, text
            STRING, numpy data what its dtype says, an int the first of UINT32, INT32, UINT64, INT64 that holds it, and
            a sequence of ints the first of INT32, UINT32, INT64, UINT64 that holds all.
        """
        if not key:
            raise InvalidInputError("the key is empty")
        _check_name(f"key {quoted(key)}", key)
        if key == ALIGNMENT_KEY:
            raise InvalidInputError(f"key {quoted(key)}: give the alignment to the Writer, which has to obey it")
        if key in self._pairs:
            raise InvalidInputError(f"key {quoted(key)} was added before")
        self._pairs[key] = encode_value(key, value, value_type)

    def add_tensor(
        self,
        name: str,
        data: npt.NDArray[Any] | bytes | bytearray | memoryview,
        type: GGMLType | None = None,
        shape: Sequence[int] | None = None,
    ) -> None:
        """Add a tensor.

        Parameters
        ----------
        name
            The tensor's name; a name can be added once.
        data
            A float or signed integer array, written as it is; or packed bytes with their ``type`` and ``shape``: a
            uint8 array of any shape, or a bytes-like object.
        type
            Type of the elements of packed bytes; for other arrays it must be the dtype's or None.
        shape
            Shape of packed bytes in elements, rows before columns.
        """
        self._check_new(name)
        array = np.frombuffer(data, np.uint8) if isinstance(data, bytes | bytearray | memoryview) else np.asarray(data)
        if shape is not None and array.dtype != np.uint8 and tuple(shape) != array.shape:
            raise InvalidInputError(
                f"tensor {quoted(name)}: shape {tuple(shape)} given, but the array has {array.shape}"
            )
        if array.dtype != np.uint8:
            self._tensors[name] = _plain_tensor(name, array, type)
        elif type is not None and shape is not None:
            self._tensors[name] = _packed_tensor(name, array, GGMLType(type), tuple(map(int, shape)))
        else:
            raise InvalidInputError(f"tensor {quoted(name)}: packed bytes found, a type and a shape wanted with them")

    def add_tensor_later(
        self, name: str, type: GGMLType, shape: Sequence[int], make: Callable[[], Iterable[Bytes]]
    ) -> None:
        """Add a tensor whose bytes are made while the file is written, so that they need not be in memory together.

        Parameters
        ----------
        name
            The tensor's name; a name can be added once.
        type
            Type of the elements.
        shape
            Shape in elements, rows before columns.
        make
            Called once, in the order of the tensors; gives contiguous uint8 arrays that together are the bytes.
        """
        self._check_new(name)
        kind, sizes = GGMLType(type), tuple(map(int, shape))
        self._tensors[name] = _tensor(name, sizes, kind, _packed_bytes(name, kind, sizes), make)

    def _check_new(self, name: str) -> None:
        if name in self._tensors:
            raise InvalidInputError(f"tensor {quoted(name)} was added before")
        _check_name(f"tensor {quoted(name)}", name)

    def write(self) -> Path:
        """Write the file and return its path."""
        temporary = self.path.with_name(f".{self.path.name}.{secrets.token_hex(4)}.part")
        try:
            with temporary.open("xb") as file:
                for chunk in self._chunks():
                    file.write(chunk)
            temporary.replace(self.path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        return self.path

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.write()

    def _chunks(self) -> Iterator[bytes | memoryview]:
        header = self._header()
        yield header
        if self._tensors:
            yield bytes(padded(len(header), self._alignment) - len(header))
        for tensor in self._tensors.values():
            made = 0
            for piece in tensor.make():
                made += piece.nbytes
                yield piece.data
            if made != tensor.nbytes:
                raise InvalidInputError(f"tensor {quoted(tensor.name)}: {made} bytes made, {tensor.nbytes} wanted")
            yield bytes(padded(made, self._alignment) - made)

    def _header(self) -> bytes:
        pieces = [MAGIC, struct.pack("<IQQ", self._version, len(self._tensors), len(self._pairs))]
        for key, encoded in self._pairs.items():
            pieces += (encode_string("key", key), encoded)
        offset = 0
        for tensor in self._tensors.values():
            n_dims = len(tensor.shape)
            pieces += (
                encode_string("tensor name", tensor.name),
                struct.pack(f"<I{n_dims}QIQ", n_dims, *tensor.shape[::-1], tensor.type, offset),
            )
            offset = padded(offset + tensor.nbytes, self._alignment)
        return b"".join(pieces)


def _check_name(what: str, name: str) -> None:
    try:
        size = len(name.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise InvalidInputError(f"{what}: the name has no UTF-8 form: {error.reason}") from None
    if size > MAX_NAME_BYTES:
        raise InvalidInputError(f"{what}: {size} bytes found, at most {MAX_NAME_BYTES} wanted")


def _plain_tensor(name: str, array: npt.NDArray[Any], wanted: GGMLType | None) -> _Tensor:
    kind = _PLAIN_TYPES.get(array.dtype.newbyteorder("="))
    if kind is None:
        known = ", ".join(dtype.name for dtype in _PLAIN_TYPES)
        raise InvalidInputError(f"tensor {quoted(name)}: {array.dtype} found, {known} or packed uint8 wanted")
    if wanted not in (None, kind):
        message = f"{array.dtype} found, packed uint8 with a shape wanted for {GGMLType(wanted).name}"
        raise InvalidInputError(f"tensor {quoted(name)}: {message}")
    little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return _array_tensor(name, array.shape, kind, little)


def _packed_tensor(name: str, array: npt.NDArray[Any], kind: GGMLType, shape: tuple[int, ...]) -> _Tensor:
    wanted = _packed_bytes(name, kind, shape)
    if array.nbytes != wanted:
        message = f"{array.nbytes} bytes found, {wanted} wanted for {kind.name} {shape}"
        raise InvalidInputError(f"tensor {quoted(name)}: {message}")
    return _array_tensor(name, shape, kind, np.ascontiguousarray(array))


def _packed_bytes(name: str, kind: GGMLType, shape: tuple[int, ...]) -> int:
    """How many bytes a packed tensor has; its rows must be whole blocks."""
    columns = shape[-1] if shape else 1
    if min(shape, default=1) < 0 or columns % BLOCK_SIZE[kind]:
        wanted = f"sizes of at least 0 and rows of a multiple of {BLOCK_SIZE[kind]} elements wanted for {kind.name}"
        raise InvalidInputError(f"tensor {quoted(name)}: shape {shape} found, {wanted}")
    return math.prod(shape) // BLOCK_SIZE[kind] * TYPE_SIZE[kind]


def _array_tensor(name: str, shape: tuple[int, ...], kind: GGMLType, array: npt.NDArray[Any]) -> _Tensor:
    data = array.reshape(-1).view(np.uint8)
    return _tensor(name, shape, kind, data.nbytes, lambda: (data,))


def _tensor(
    name: str, shape: tuple[int, ...], kind: GGMLType, nbytes: int, make: Callable[[], Iterable[Bytes]]
) -> _Tensor:
    if len(shape) > MAX_DIMS:
        raise InvalidInputError(f"tensor {quoted(name)}: {len(shape)} dimensions found, at most {MAX_DIMS} wanted")
    return _Tensor(name, shape, kind, nbytes, make)
