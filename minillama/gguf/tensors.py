"""The tensor directory: names, shapes, types, and where each tensor's bytes are."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from minillama.errors import UnsupportedError
from minillama.gguf.constants import BLOCK_SIZE, MAX_DIMS, TYPE_SIZE, GGMLType
from minillama.gguf.cursor import Cursor, quoted
from minillama.gguf.storage import Storage

Bytes: TypeAlias = npt.NDArray[np.uint8]

MIN_TENSOR_ENTRY = 24  # bytes: 8 name length, 4 dimension count, 4 type, 8 offset
_MAX_ELEMENTS = (1 << 63) - 1  # what ggml can count
_TYPES = {int(kind): kind for kind in GGMLType}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor of a file: what it is and where its bytes are.

    Attributes
    ----------
    name
        The tensor's name.
    shape
        Sizes, rows before columns as in numpy: the reverse of the order in the file.
    type
        Type of the elements, None when minillama does not know it.
    type_id
        The type's number in the file.
    offset
        Where the bytes begin, counted from the beginning of the file.
    nbytes
        How many bytes there are, None when the type is not known.
    path
        The file that holds the bytes; of a split model, the shard.
    """

    name: str
    shape: tuple[int, ...]
    type: GGMLType | None
    type_id: int
    offset: int
    nbytes: int | None
    path: Path
    _storage: Storage = field(repr=False, compare=False)

    @property
    def type_name(self) -> str:
        """The type as ggml spells it, for example ``Q4_K``."""
        return self.type.name if self.type is not None else f"unknown type {self.type_id}"

    @property
    def n_elements(self) -> int:
        """How many elements the tensor has."""
        return math.prod(self.shape)

    @property
    def data(self) -> Bytes:
        """The bytes, ``[rows, bytes of a row]``: a read-only view of the file, all axes but the last taken as rows.

        Raises
        ------
        UnsupportedError
            The type's layout is not known.
        GGUFError
            The file changed while it was mapped.
        """
        if self.type is None or self.nbytes is None:
            known = ", ".join(kind.name for kind in GGMLType)
            raise UnsupportedError(
                f"{self.path}: tensor {quoted(self.name)} has {self.type_name}, whose layout is not known;"
                f" known are {known}"
            )
        self._storage.check()
        rows = math.prod(self.shape[:-1])
        row_bytes = (self.shape[-1] if self.shape else 1) // BLOCK_SIZE[self.type] * TYPE_SIZE[self.type]
        flat = np.frombuffer(self._storage.data[self.offset : self.offset + self.nbytes], np.uint8)
        return flat.reshape(rows, row_bytes)


def read_tensors(cursor: Cursor, n_tensors: int, alignment: int, storage: Storage) -> tuple[dict[str, TensorInfo], int]:
    """Read the tensor directory and check that every tensor is where ggml wants it and wholly inside the file.

    Parameters
    ----------
    cursor
        Where the directory begins.
    n_tensors, alignment
        As the header says.
    storage
        What the tensors' bytes are taken from.

    Returns
    -------
    tensors
        In file order, by name.
    end
        Where the last tensor's bytes end.
    """
    entries: dict[str, _Entry] = {}
    for i in range(n_tensors):
        cursor.context = f"tensor {i}"
        start = cursor.pos
        entry = _read_entry(cursor)
        if entry.name in entries:
            raise cursor.error("the tensor is there twice", start)
        entries[entry.name] = entry
    return _place(cursor, entries, alignment, storage)


@dataclass(slots=True)
class _Entry:
    name: str
    shape: tuple[int, ...]
    type_id: int
    offset: int  # from the beginning of the data
    at: int  # where the entry's offset field is, for errors


def _read_entry(cursor: Cursor) -> _Entry:
    name = cursor.name("tensor name")
    cursor.context = f"tensor {quoted(name)}"
    start = cursor.pos
    n_dims = cursor.u32("number of dimensions")
    if n_dims > MAX_DIMS:
        raise cursor.error(f"{n_dims} dimensions found, at most {MAX_DIMS} wanted", start)
    shape = tuple(cursor.u64("dimension") for _ in range(n_dims))[::-1]
    # Each dimension too: a zero elsewhere must not hide one that ggml cannot hold.
    if max(shape, default=1) > _MAX_ELEMENTS or math.prod(shape) > _MAX_ELEMENTS:
        raise cursor.error(f"shape {shape} has more than 2^63 - 1 elements", start)
    type_id = cursor.u32("type")
    kind = _TYPES.get(type_id)
    columns = shape[-1] if shape else 1
    if kind is not None and columns % BLOCK_SIZE[kind]:
        raise cursor.error(f"rows of {columns} elements found, {kind.name} wants a multiple of {BLOCK_SIZE[kind]}")
    return _Entry(name, shape, type_id, offset=cursor.u64("offset"), at=cursor.pos - 8)


def _place(
    cursor: Cursor, entries: dict[str, _Entry], alignment: int, storage: Storage
) -> tuple[dict[str, TensorInfo], int]:
    """Turn offsets into places in the file. Like ggml, want each tensor right after the one before it, aligned."""
    base = padded(cursor.pos, alignment) if entries else cursor.pos
    size, path = len(cursor.data), Path(cursor.path)
    tensors: dict[str, TensorInfo] = {}
    expected, exact, end = 0, True, base
    for entry in entries.values():
        cursor.context = f"tensor {quoted(entry.name)}"
        if entry.offset % alignment:
            raise cursor.error(f"offset {entry.offset} is not a multiple of the alignment {alignment}", entry.at)
        if entry.offset < expected or (exact and entry.offset > expected):
            raise cursor.error(f"offset {entry.offset} found, {expected} wanted", entry.at)
        kind = _TYPES.get(entry.type_id)
        n_elements = math.prod(entry.shape)
        nbytes = None if kind is None else n_elements // BLOCK_SIZE[kind] * TYPE_SIZE[kind]
        begin = base + entry.offset
        end = begin + (nbytes or 0)
        if end > size:
            raise cursor.error(f"the file is incomplete: at least {end} bytes wanted, {size} found", begin)
        tensors[entry.name] = TensorInfo(entry.name, entry.shape, kind, entry.type_id, begin, nbytes, path, storage)
        # How far a tensor of unknown type reaches is not known: the next one may begin anywhere after it.
        expected, exact = padded(entry.offset + (nbytes or 0), alignment), kind is not None
    return tensors, end


def padded(position: int, alignment: int) -> int:
    """Return the next multiple of the alignment, the position itself if it is one."""
    return -(-position // alignment) * alignment
