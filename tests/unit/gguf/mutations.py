"""Damaged files without end: valid ones, mutated at random, the same ones for the same seed."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
from gguf_bytes import (
    ARRAY,
    BOOL,
    F32,
    FLOAT32,
    INT32,
    Q4_0,
    STRING,
    UINT8,
    UINT16,
    UINT32,
    array,
    entry,
    gguf,
    pair,
    text,
    u32,
)

_UNKNOWN_TYPE = 99
_SCALAR_BYTES: Final = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_HOSTILE = (0, 1, 2, 9, 12, 13, 31, 127, 255, 2**15, 2**16, 2**30, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40)
_HOSTILE_WIDE = (*_HOSTILE, 2**60, 2**61, 2**62, 2**63 - 1, 2**63, 2**64 - 32, 2**64 - 1)

Field = tuple[int, int]  # where a length, count, type or offset is, and its width
Mutation = Callable[[bytearray, np.random.Generator], None]


def samples() -> tuple[bytes, ...]:
    """Valid files with values of every kind: a model's, one of version 2, a shard."""
    strings = array(STRING, 90, b"".join(text(f"t{i}") for i in range(88)) + text("") + text("x" * 280))
    model = [
        u32("general.alignment", 32),
        pair("name", STRING, text("tiny")),
        pair("strings", ARRAY, strings),
        pair("numbers", ARRAY, array(INT32, 4, bytes(16))),
        pair("nested", ARRAY, array(ARRAY, 2, array(UINT8, 1, b"\1") + array(STRING, 1, text("x")))),
    ]
    tensors = [entry("w", [8], F32, 0), entry("q", [32, 2], Q4_0, 32)]
    scalars = [pair(f"k{kind}", kind, bytes(size)) for kind, size in _SCALAR_BYTES.items()]
    older = [u32("general.alignment", 64), pair("flags", ARRAY, array(BOOL, 9, bytes(9))), *scalars]
    wide = [entry("deep", [2, 1, 2, 2], F32, 0), entry("odd", [8], _UNKNOWN_TYPE, 64)]
    split = [
        pair("split.no", UINT16, bytes(2)),
        pair("split.count", UINT16, struct.pack("<H", 1)),
        pair("split.tensors.count", INT32, struct.pack("<i", 2)),
        pair("floats", ARRAY, array(FLOAT32, 3, bytes(12))),
    ]
    return (
        gguf(model, tensors, bytes(range(32)) + bytes(36)),
        gguf(older, wide, bytes(128), version=2, align=64),
        gguf(split, tensors, bytes(68)),
    )


class _Walker:
    """Goes through a valid file and notes where its lengths, counts, types and offsets are."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 4
        self.fields: list[Field] = []

    def walk(self) -> list[Field]:
        self._number(4)
        n_tensors, n_pairs = self._number(8), self._number(8)
        for _ in range(n_pairs):
            self._text()
            self._value(self._number(4))
        for _ in range(n_tensors):
            self._text()
            for _ in range(self._number(4)):
                self._number(8)
            self._number(4)
            self._number(8)
        return self.fields

    def _number(self, width: int) -> int:
        self.fields.append((self._at, width))
        self._at += width
        return int.from_bytes(self._data[self._at - width : self._at], "little")

    def _text(self) -> None:
        length = self._number(8)
        self._at += length

    def _value(self, kind: int) -> None:
        if kind == STRING:
            self._text()
        elif kind == ARRAY:
            kind, count = self._number(4), self._number(8)
            for _ in range(count):
                self._value(kind)
        elif kind in (UINT16, UINT32):  # alignment and split numbers
            self._number(_SCALAR_BYTES[kind])
        else:
            self._at += _SCALAR_BYTES[kind]


def _flip_bits(bad: bytearray, rng: np.random.Generator) -> None:
    for _ in range(rng.integers(1, 5)):
        bad[rng.integers(len(bad))] ^= 1 << int(rng.integers(8))


def _change_bytes(bad: bytearray, rng: np.random.Generator) -> None:
    for _ in range(rng.integers(1, 4)):
        bad[rng.integers(len(bad))] = int(rng.integers(256))


def _write_number(bad: bytearray, rng: np.random.Generator) -> None:
    """A number of any magnitude, anywhere."""
    at = int(rng.integers(4, len(bad)))
    bad[at : at + 8] = struct.pack("<Q", int(rng.integers(2**63)) >> int(rng.integers(63)))


def _truncate(bad: bytearray, rng: np.random.Generator) -> None:
    del bad[rng.integers(len(bad)) :]


def _cut_out(bad: bytearray, rng: np.random.Generator) -> None:
    at, length = int(rng.integers(4, len(bad))), int(rng.integers(1, 40))
    del bad[at : at + length]


def _repeat(bad: bytearray, rng: np.random.Generator) -> None:
    at, length = int(rng.integers(4, len(bad))), int(rng.integers(1, 40))
    bad[at:at] = bad[at : at + length]


def _hostile_fields(fields: list[Field]) -> Mutation:
    def mutate(bad: bytearray, rng: np.random.Generator) -> None:
        for _ in range(rng.integers(1, 4)):
            at, width = fields[rng.integers(len(fields))]
            values = _HOSTILE_WIDE if width == 8 else _HOSTILE
            value = values[rng.integers(len(values))] if rng.integers(2) else int(bad[at]) + int(rng.integers(-3, 4))
            bad[at : at + width] = (value % 256**width).to_bytes(width, "little")

    return mutate


def mutated_files(seed: int) -> Iterator[bytes]:
    """Files without end, each a valid one with one kind of damage."""
    rng = np.random.default_rng(seed)
    ways: list[tuple[bytes, tuple[Mutation, ...]]] = []
    for good in samples():
        hostile = _hostile_fields(_Walker(good).walk())
        plain = (_flip_bits, _change_bytes, _write_number, _truncate, _cut_out, _repeat)
        ways.append((good, (*plain, hostile, hostile, hostile)))
    while True:
        good, mutations = ways[rng.integers(len(ways))]
        bad = bytearray(good)
        mutations[rng.integers(len(mutations))](bad, rng)
        yield bytes(bad)
