"""GGUF files assembled by hand, so that a test can show and break every byte."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

UINT8, UINT16, UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY = 0, 2, 4, 5, 6, 7, 8, 9
F32, Q4_0 = 0, 2


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def pair(key: str | bytes, kind: int, payload: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + payload


def u32(key: str, value: int) -> bytes:
    return pair(key, UINT32, struct.pack("<I", value))


def array(kind: int, count: int, payload: bytes) -> bytes:
    return struct.pack("<IQ", kind, count) + payload


def entry(name: str | bytes, dims: Sequence[int], kind: int, offset: int) -> bytes:
    """A tensor's entry; dims in file order, columns first."""
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def header(n_tensors: int, n_pairs: int, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, n_tensors, n_pairs)


def gguf(
    pairs: Sequence[bytes] = (), entries: Sequence[bytes] = (), data: bytes = b"", version: int = 3, align: int = 32
) -> bytes:
    head = header(len(entries), len(pairs), version) + b"".join(pairs) + b"".join(entries)
    return head + bytes(-len(head) % align) + data if entries else head


def save(folder: Path, content: bytes, name: str = "file.gguf") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path
