"""Bounds-checked reading of fields from a buffer, in either byte order."""

from __future__ import annotations

import struct

from minillama.errors import GGUFError
from minillama.gguf.constants import MAX_NAME_BYTES

_ORDERS = ("<", ">")
_U32 = {order: struct.Struct(f"{order}I") for order in _ORDERS}
_U64 = {order: struct.Struct(f"{order}Q") for order in _ORDERS}


def quoted(name: str) -> str:
    """Return a name as it goes into an error message: one line, not longer than a line."""
    return repr(name if len(name) <= 80 else f"{name[:77]}...")


class Cursor:
    """A position in a file's bytes; every read checks the bytes left before it touches or allocates anything.

    Parameters
    ----------
    data
        The whole file.
    path
        Its name, for errors.

    Attributes
    ----------
    order
        ``"<"``, or ``">"`` for a big-endian file.
    """

    def __init__(self, data: memoryview, path: str) -> None:
        self.data = data
        self.path = path
        self.pos = 0
        self.order = "<"
        self.context = "header"  # what is being read, for errors

    @property
    def left(self) -> int:
        """Bytes from here to the end of the file."""
        return len(self.data) - self.pos

    def error(self, message: str, offset: int | None = None) -> GGUFError:
        """Make the error for a fault in what is being read."""
        return GGUFError(f"{self.context}: {message}", path=self.path, offset=self.pos if offset is None else offset)

    def need(self, n_bytes: int, what: str) -> None:
        """Raise unless that many bytes are left."""
        if n_bytes > self.left:
            raise self.error(f"{what} takes {n_bytes} bytes, but the file has {self.left} left")

    def unpack(self, fmt: struct.Struct, what: str) -> bool | int | float:
        """Read one fixed-size value."""
        self.need(fmt.size, what)
        (value,) = fmt.unpack_from(self.data, self.pos)
        self.pos += fmt.size
        result: bool | int | float = value
        return result

    def u32(self, what: str) -> int:
        """Read an unsigned 32-bit integer."""
        return int(self.unpack(_U32[self.order], what))

    def u64(self, what: str) -> int:
        """Read an unsigned 64-bit integer."""
        return int(self.unpack(_U64[self.order], what))

    def take(self, n_bytes: int, what: str) -> memoryview:
        """Read that many bytes, without a copy."""
        self.need(n_bytes, what)
        self.pos += n_bytes
        return self.data[self.pos - n_bytes : self.pos]

    def count(self, min_bytes: int, what: str) -> int:
        """Read the number of items that follow, each of at least ``min_bytes``."""
        start = self.pos
        n = self.u64(f"number of {what}")
        if n * min_bytes > self.left:
            message = f"{n} {what} declared, which take at least {n * min_bytes} bytes; the file has {self.left} left"
            raise self.error(message, start)
        return n

    def string(self, what: str) -> str:
        """Read text of any length; bytes that are not UTF-8 become surrogate escapes."""
        length = self.u64(f"length of the {what}")
        return str(self.take(length, what), "utf-8", "surrogateescape")

    def name(self, what: str) -> str:
        """Read a key or tensor name, which must be short and valid UTF-8."""
        start = self.pos
        length = self.u64(f"length of the {what}")
        if length > MAX_NAME_BYTES:
            raise self.error(f"the {what} is {length} bytes long, at most {MAX_NAME_BYTES} wanted", start)
        raw = self.take(length, what)
        try:
            return str(raw, "utf-8")
        except UnicodeDecodeError as error:
            raise self.error(f"the {what} {bytes(raw[:40])!r} is not UTF-8: {error.reason}", start) from None
