"""Metadata values as bytes of a GGUF file, and the choice of a type for a Python value."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from minillama.errors import InvalidInputError
from minillama.gguf.constants import SCALAR_FORMATS, ValueType
from minillama.gguf.cursor import quoted
from minillama.gguf.strings import StringArray

_BY_DTYPE = {np.dtype(code): kind for kind, (_, code) in SCALAR_FORMATS.items()}
_INTEGERS = {kind: np.iinfo(code) for kind, (_, code) in SCALAR_FORMATS.items() if code[1] in "iu"}

_PYTHON_KINDS = (bool, int, float, str, bytes)  # bool first: it is an int too

# llama.cpp stores hyperparameters as UINT32, and arrays (token types, say) as INT32.
_INT_CHOICES = (ValueType.UINT32, ValueType.INT32, ValueType.UINT64, ValueType.INT64)
_INT_ARRAY_CHOICES = (ValueType.INT32, ValueType.UINT32, ValueType.INT64, ValueType.UINT64)


def encode_value(key: str, value: Any, value_type: ValueType | None) -> bytes:
    """Return the type and bytes of a metadata value, as they follow its key."""
    what = f"key {quoted(key)}"
    if value_type is ValueType.ARRAY:
        raise InvalidInputError(f"{what}: ARRAY given as type, that of the elements wanted")
    value, value_type = _from_numpy(what, value, value_type)
    if isinstance(value, list | tuple):
        return struct.pack("<I", ValueType.ARRAY) + _encode_array(what, value, value_type)
    kind = _infer(what, [value], _INT_CHOICES) if value_type is None else value_type
    return struct.pack("<I", kind) + _encode_items(what, [value], kind)


def encode_string(what: str, text: str | bytes) -> bytes:
    """Return a length and the bytes of a text; surrogate escapes become the bytes they stand for."""
    try:
        raw = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
    except UnicodeEncodeError as error:
        raise InvalidInputError(f"{what}: the text has no UTF-8 form: {error.reason}") from None
    return struct.pack("<Q", len(raw)) + raw


def _from_numpy(what: str, value: Any, value_type: ValueType | None) -> tuple[Any, ValueType | None]:
    """Return the value as Python has it, and the type its dtype stands for if none was given."""
    if isinstance(value, StringArray):
        return value.raw_list(), ValueType.STRING
    if not isinstance(value, np.ndarray | np.generic):
        return value, value_type
    if value_type is None and value.dtype.kind not in "US":
        value_type = _BY_DTYPE.get(value.dtype.newbyteorder("<"))
        if value_type is None:
            raise InvalidInputError(f"{what}: GGUF metadata has no type for {value.dtype}")
    return value.tolist(), value_type


def _encode_array(what: str, values: list[Any] | tuple[Any, ...], kind: ValueType | None) -> bytes:
    """Return element type, count and elements."""
    converted = [_from_numpy(what, value, kind) for value in values]
    items = [item for item, _ in converted]
    if items and all(isinstance(item, list | tuple) for item in items):
        body = b"".join(_encode_array(what, item, item_kind) for item, item_kind in converted)
        return struct.pack("<IQ", ValueType.ARRAY, len(items)) + body
    if kind is None:
        kind = _infer(what, items, _INT_ARRAY_CHOICES)
    return struct.pack("<IQ", kind, len(items)) + _encode_items(what, items, kind)


def _infer(what: str, items: list[Any], int_choices: tuple[ValueType, ...]) -> ValueType:
    """Return the type that holds all items."""
    kinds = {next((kind for kind in _PYTHON_KINDS if isinstance(item, kind)), type(item)) for item in items}
    if not kinds:
        raise InvalidInputError(f"{what}: an empty sequence, the type of its elements wanted")
    if kinds <= {str, bytes}:
        return ValueType.STRING
    if kinds == {bool}:
        return ValueType.BOOL
    if kinds == {int}:
        return _infer_int(what, min(items), max(items), int_choices)
    if kinds <= {int, float}:
        return ValueType.FLOAT32
    names = ", ".join(sorted(kind.__name__ for kind in kinds))
    raise InvalidInputError(f"{what}: {names} found; bool, int, float, str, bytes or sequences of one of them wanted")


def _infer_int(what: str, low: int, high: int, choices: tuple[ValueType, ...]) -> ValueType:
    for kind in choices:
        if _INTEGERS[kind].min <= low and high <= _INTEGERS[kind].max:
            return kind
    raise InvalidInputError(f"{what}: {low} to {high} found, numbers that fit in 64 bits wanted")


def _encode_items(what: str, items: list[Any], kind: ValueType) -> bytes:
    wanted = {ValueType.STRING: (str, bytes), ValueType.BOOL: (bool,)}.get(kind, (int, float))
    for item in items:
        if not isinstance(item, wanted) or (isinstance(item, bool) and kind is not ValueType.BOOL):
            raise InvalidInputError(f"{what}: {type(item).__name__} found, {kind.name} wanted")
    if kind is ValueType.STRING:
        return b"".join(encode_string(what, item) for item in items)
    code = SCALAR_FORMATS[kind][0][1]
    try:
        return struct.pack(f"<{len(items)}{code}", *items)
    except (struct.error, OverflowError) as error:
        raise InvalidInputError(f"{what}: a number does not fit {kind.name}: {error}") from None
