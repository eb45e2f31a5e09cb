"""Opening GGUF files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, TypeVar, overload

from minillama.errors import InvalidInputError
from minillama.gguf.constants import ValueType
from minillama.gguf.cursor import quoted
from minillama.gguf.metadata import REQUIRED, Value, metadata_value
from minillama.gguf.part import Part, read_part
from minillama.gguf.split import all_parts
from minillama.gguf.tensors import TensorInfo

T = TypeVar("T")
D = TypeVar("D")


def open(path: str | os.PathLike[str], *, use_mmap: bool = True) -> GGUFFile:
    """Open a GGUF file of version 2 or 3 and check it; of a split model, any shard opens the whole.

    A big-endian file is read whole and converted.

    Parameters
    ----------
    path
        The file.
    use_mmap
        Map the file, so that only what is used is read. False reads all of it now, which is faster on disks where
        page faults are slow. A mapped file must not be cut short while it is used: that is noticed, and an error, when
        a pass begins or a tensor is asked for, but a page that is missing when it is touched ends the process.

    Returns
    -------
    GGUFFile
        Metadata, and tensors as views of the file.

    Raises
    ------
    GGUFError
        The file is damaged, incomplete or contradicts itself.
    UnsupportedError
        The file is of a version that minillama does not read, or is big-endian and has a tensor of a type whose order
        of bytes is not settled.
    OSError
        The file cannot be opened at all.
    """
    read = partial(read_part, use_mmap=use_mmap)
    return GGUFFile(all_parts(read(Path(path)), read))


class GGUFFile:
    """An open GGUF file; made by `minillama.gguf.open`, closed by `close` or a ``with`` block.

    Views of the file (tensor data, arrays, string arrays) stay valid after `close`: the map goes with the last one.

    Attributes
    ----------
    path
        The file; of a split model, the first shard.
    paths
        All files: one, or the shards in order.
    version
        Version of the format, 2 or 3.
    byte_order
        ``"little"`` or ``"big"``: that of the file; what is read here is the machine's.
    alignment
        Tensor offsets are multiples of this many bytes.
    """

    def __init__(self, parts: list[Part]) -> None:
        first = parts[0]
        self.path = first.path
        self.paths = tuple(part.path for part in parts)
        self.version = first.version
        self.byte_order = first.byte_order
        self.alignment = first.alignment
        self._types = first.types
        self._storages = tuple(part.storage for part in parts)
        self._metadata: Mapping[str, Value] | None = MappingProxyType(first.metadata)
        tensors = {name: tensor for part in parts for name, tensor in part.tensors.items()}
        self._tensors: Mapping[str, TensorInfo] | None = MappingProxyType(tensors)

    @property
    def metadata(self) -> Mapping[str, Value]:
        """Values by key, in file order; of a split model, those of the first shard.

        Numbers, booleans and text are Python's; arrays of numbers are read-only numpy views, not always aligned to
        their element size; arrays of strings are `StringArray`, arrays of arrays tuples. Text that is not UTF-8 has
        surrogate escapes: ``value.encode("utf-8", "surrogateescape")`` gives the bytes back.
        """
        if self._metadata is None:
            raise self._closed()
        return self._metadata

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Tensors by name, in file order, shard after shard."""
        if self._tensors is None:
            raise self._closed()
        return self._tensors

    def value_type(self, key: str) -> ValueType:
        """Return the type a metadata value has in the file."""
        if key not in self.metadata:
            raise InvalidInputError(f"{self.path}: there is no key {quoted(key)}")
        return self._types[key]

    @overload
    def get(self, key: str, kind: type[T]) -> T: ...
    @overload
    def get(self, key: str, kind: type[T], default: D) -> T | D: ...
    def get(self, key: str, kind: type[Any], default: Any = REQUIRED) -> Any:
        """Return a metadata value of a known type; see `metadata_value`."""
        return metadata_value(self.metadata, key, kind, default, path=str(self.path))

    def check(self) -> None:
        """Raise if a mapped file is no longer what it was when it was opened; works on a closed file too.

        Raises
        ------
        GGUFError
            The file was cut short, written to, or is no longer reachable.
        """
        for storage in self._storages:
            storage.check()

    def close(self) -> None:
        """Let go of the file; views of it that are still held stay valid. Closing twice is fine."""
        self._metadata = self._tensors = None

    def __enter__(self) -> GGUFFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        if self._metadata is None or self._tensors is None:
            return f"<GGUFFile {str(self.path)!r}, closed>"
        return f"<GGUFFile {str(self.path)!r}: {len(self._metadata)} keys, {len(self._tensors)} tensors>"

    def _closed(self) -> InvalidInputError:
        return InvalidInputError(f"{self.path}: the file is closed")
