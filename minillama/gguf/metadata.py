"""Metadata: typed key-value pairs of the header, and typed access to them."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, TypeVar, overload

import numpy as np

from minillama.errors import GGUFError
from minillama.gguf.constants import SCALAR_FORMATS, ValueType
from minillama.gguf.cursor import Cursor, quoted
from minillama.gguf.strings import StringArray, read_string_array

T = TypeVar("T")
D = TypeVar("D")

# A value is bool, int, float, str, a numpy array, a StringArray, or a tuple of arrays (an array of arrays).
Value = Any

_MIN_PAIR = 14  # bytes: 8 key length, 1 key, 4 type, 1 value
_MIN_ARRAY = 12  # bytes: 4 element type, 8 count
_MAX_DEPTH = 4  # arrays within arrays; nothing in the field goes beyond 2
_STRUCTS = {
    order: {kind: struct.Struct(order + code[1]) for kind, (code, _) in SCALAR_FORMATS.items()} for order in ("<", ">")
}
_DTYPES = {kind: np.dtype(code) for kind, (_, code) in SCALAR_FORMATS.items()}


def read_metadata(cursor: Cursor, n_pairs: int) -> tuple[dict[str, Value], dict[str, ValueType]]:
    """Read that many key-value pairs; return the values and their types by key."""
    values: dict[str, Value] = {}
    types: dict[str, ValueType] = {}
    for i in range(n_pairs):
        cursor.context = f"key {i}"
        start = cursor.pos
        key = cursor.name("key")
        if not key:
            raise cursor.error("the key is empty", start)
        cursor.context = f"key {quoted(key)}"
        if key in values:
            raise cursor.error("the key is there twice", start)
        types[key] = _read_type(cursor)
        values[key] = _read_value(cursor, types[key])
    return values, types


def read_pair_count(cursor: Cursor) -> int:
    """Read the number of key-value pairs."""
    return cursor.count(_MIN_PAIR, "key-value pairs")


def _read_type(cursor: Cursor) -> ValueType:
    start = cursor.pos
    number = cursor.u32("value type")
    if number >= len(ValueType):
        raise cursor.error(f"value type {number} found, 0 to {len(ValueType) - 1} wanted", start)
    return ValueType(number)


def _read_value(cursor: Cursor, kind: ValueType) -> Value:
    if kind is ValueType.STRING:
        return cursor.string("value")
    if kind is ValueType.ARRAY:
        return _read_array(cursor, 1)
    return cursor.unpack(_STRUCTS[cursor.order][kind], "value")


def _read_array(cursor: Cursor, depth: int) -> Value:
    if depth > _MAX_DEPTH:
        raise cursor.error(f"arrays are nested more than {_MAX_DEPTH} deep")
    kind = _read_type(cursor)
    if kind is ValueType.STRING:
        return read_string_array(cursor)
    if kind is ValueType.ARRAY:
        n = cursor.count(_MIN_ARRAY, "arrays")
        return tuple(_read_array(cursor, depth + 1) for _ in range(n))
    dtype = _DTYPES[kind]
    n = cursor.count(dtype.itemsize, f"{kind.name} elements")
    raw = np.frombuffer(cursor.take(n * dtype.itemsize, "elements"), np.uint8)
    if kind is not ValueType.BOOL and cursor.order == "<":
        return raw.view(dtype)
    # A copy: bytes other than 0 and 1 are not valid booleans for numpy.
    copied = raw != 0 if kind is ValueType.BOOL else raw.view(dtype.newbyteorder(">")).astype(dtype)
    copied.flags.writeable = False
    return copied


class Required:
    """Stands for "no default", so that None can be one."""


REQUIRED = Required()


@overload
def metadata_value(metadata: Mapping[str, Value], key: str, kind: type[T], *, path: str | None = None) -> T: ...
@overload
def metadata_value(
    metadata: Mapping[str, Value], key: str, kind: type[T], default: D, *, path: str | None = None
) -> T | D: ...
def metadata_value(
    metadata: Mapping[str, Value],
    key: str,
    kind: type[T],
    default: D | Required = REQUIRED,
    *,
    path: str | None = None,
) -> T | D:
    """Return a metadata value of a known type, or say what is wrong with it.

    Parameters
    ----------
    metadata
        Values by key, as `GGUFFile.metadata` has them.
    key
        The key.
    kind
        ``int`` (of any width), ``float``, ``bool``, ``str``, ``np.ndarray`` (numbers), `StringArray` or ``tuple``.
    default
        What to return when the key is absent; without it an absent key is an error.
    path
        The file, for errors.

    Raises
    ------
    GGUFError
        The key is absent and has no default, or its value has another type. A bool is not an int, and an int is not a
        float.
    """
    if key not in metadata:
        if isinstance(default, Required):
            raise GGUFError(f"key {quoted(key)} is missing, {_kind_name(kind)} wanted", path=path)
        return default
    value: T = metadata[key]
    if isinstance(value, kind) and not (kind is int and isinstance(value, bool)):
        return value
    raise GGUFError(f"key {quoted(key)}: {_describe(value)} found, {_kind_name(kind)} wanted", path=path)


def _kind_name(kind: type) -> str:
    names = {np.ndarray: "an array of numbers", StringArray: "an array of strings", tuple: "an array of arrays"}
    return names.get(kind, kind.__name__)


def _describe(value: Value) -> str:
    if isinstance(value, str):
        return f"str {quoted(value)}"
    if isinstance(value, bool | int | float):
        return f"{type(value).__name__} {value}"
    element = f" {value.dtype}" if isinstance(value, np.ndarray) else ""
    return f"{_kind_name(type(value))} ({len(value)}{element})"
