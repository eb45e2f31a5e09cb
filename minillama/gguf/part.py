"""One file on disk: its header, metadata and tensor directory, checked against its size."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from minillama.errors import GGUFError, UnsupportedError
from minillama.gguf.byteorder import swap_tensors
from minillama.gguf.constants import (
    ALIGNMENT_KEY,
    DEFAULT_ALIGNMENT,
    MAGIC,
    MAX_ALIGNMENT,
    READABLE_VERSIONS,
    ValueType,
)
from minillama.gguf.cursor import Cursor, quoted
from minillama.gguf.metadata import Value, read_metadata, read_pair_count
from minillama.gguf.storage import Storage
from minillama.gguf.tensors import MIN_TENSOR_ENTRY, TensorInfo, padded, read_tensors

_NOT_GGUF = (  # lower-case beginnings of files that people open by mistake
    (b"version https://git-lfs", "this is a git-lfs pointer, not the file itself (git lfs pull fetches it)"),
    (b"<!doctype", "this is a web page, most likely an error page saved by a download"),
    (b"<html", "this is a web page, most likely an error page saved by a download"),
    (b"pk\x03\x04", "this is a zip archive, perhaps a PyTorch checkpoint"),
    *(
        (magic, "this is a GGML file from before GGUF, which has to be converted")
        for magic in (b"lmgg", b"fmgg", b"tjgg", b"algg", b"ggml", b"ggmf", b"ggjt", b"ggla")
    ),
    (bytes(4), "the file begins with zeros, as an unfinished download does"),
)


@dataclass(frozen=True, slots=True)
class Part:
    """What one file holds. A model is one part, or several when it is split."""

    path: Path
    version: int
    byte_order: str
    alignment: int
    metadata: dict[str, Value]
    types: dict[str, ValueType]
    tensors: dict[str, TensorInfo]
    storage: Storage


def read_part(path: Path, use_mmap: bool) -> Part:
    """Read everything of a file but the tensors' bytes; a big-endian file whole, because it is converted."""
    storage = Storage(path, use_mmap)
    cursor = Cursor(storage.data, str(path))
    version = _read_version(cursor)
    big_endian = cursor.order == ">"
    if big_endian:
        memory = storage.writable()
        cursor.data = storage.data
    n_tensors = cursor.count(MIN_TENSOR_ENTRY, "tensors")
    metadata, types = read_metadata(cursor, read_pair_count(cursor))
    alignment = _alignment(metadata, types, str(path))
    tensors, end = read_tensors(cursor, n_tensors, alignment, storage)
    if all(tensor.nbytes is not None for tensor in tensors.values()):
        _refuse_joined(cursor, end, alignment)
    if big_endian:
        swap_tensors(memory, tensors.values())
    byte_order = "big" if big_endian else "little"
    return Part(path, version, byte_order, alignment, metadata, types, tensors, storage)


def _read_version(cursor: Cursor) -> int:
    magic = bytes(cursor.data[: len(MAGIC)])
    if magic != MAGIC:
        raise cursor.error(f"magic {magic!r} found, {MAGIC!r} wanted{_guess(bytes(cursor.data[:64]))}")
    cursor.pos = len(MAGIC)
    version = cursor.u32("version")
    if version & 0xFFFF == 0 and version != 0:  # ggml's test; the magic itself is never swapped
        cursor.order, cursor.pos = ">", len(MAGIC)
        version = cursor.u32("version")
    if version in READABLE_VERSIONS:
        return version
    wanted = " and ".join(map(str, READABLE_VERSIONS))
    if version == 1:
        raise UnsupportedError(
            f"{cursor.path}: GGUF version 1, whose counts have 32 bits; minillama, like ggml, reads versions {wanted}"
        )
    raise UnsupportedError(f"{cursor.path}: GGUF version {version}; minillama reads versions {wanted}")


def _guess(head: bytes) -> str:
    """Say what a file that is not GGUF seems to be."""
    if head[5:9] == b"\0\0\0{":  # the 8-byte length of a JSON header, then the header
        return "; this is a safetensors file, which has to be converted to GGUF"
    start = head.lstrip().lower()
    return next((f"; {text}" for beginning, text in _NOT_GGUF if start.startswith(beginning)), "")


def _alignment(metadata: dict[str, Value], types: dict[str, ValueType], path: str) -> int:
    kind = types.get(ALIGNMENT_KEY)
    if kind is None:
        return DEFAULT_ALIGNMENT
    if kind is not ValueType.UINT32:
        raise GGUFError(f"key {quoted(ALIGNMENT_KEY)}: value type {kind.name} found, UINT32 wanted", path=path)
    alignment: int = metadata[ALIGNMENT_KEY]
    if not 0 < alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
        wanted = f"a power of two up to {MAX_ALIGNMENT} wanted"
        raise GGUFError(f"key {quoted(ALIGNMENT_KEY)}: {alignment} found, {wanted}", path=path)
    return alignment


def _refuse_joined(cursor: Cursor, end: int, alignment: int) -> None:
    """Raise if a second GGUF file follows the first one's tensors; other bytes there are ignored, as ggml does."""
    for position in (end, padded(end, alignment)):
        if bytes(cursor.data[position : position + len(MAGIC)]) == MAGIC:
            cursor.context = "data"
            raise cursor.error(
                "another GGUF file follows the last tensor: shards of a split model must stay separate files,"
                " or be merged by llama-gguf-split --merge, not joined with cat",
                position,
            )
