"""Damaged, incomplete and foreign files: each gives its own error, after little work and without large allocations."""

import struct
import sys
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from gguf_bytes import (
    ARRAY,
    BOOL,
    F32,
    FLOAT32,
    INT32,
    Q4_0,
    STRING,
    UINT8,
    array,
    entry,
    gguf,
    header,
    pair,
    save,
    text,
    u32,
)

import minillama.gguf as ours
from minillama.errors import GGUFError, UnsupportedError

DATA = bytes(range(32))
W = entry("w", [8], F32, 0)
HUGE = struct.pack("<Q", 1 << 62)


@contextmanager
def peak_memory() -> Iterator[list[int]]:
    """Give a list that holds, after the block, the most bytes that were allocated in it at once."""
    peak: list[int] = []
    tracemalloc.start()
    try:
        yield peak
    finally:
        peak.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()


@contextmanager
def counted_calls() -> Iterator[list[int]]:
    """Give a list that holds the number of calls in the block so far: unlike seconds, the same on a busy machine."""
    calls = [0]

    def count(_frame: object, event: str, _argument: object) -> None:
        calls[0] += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        yield calls
    finally:
        sys.setprofile(before)


def refused(path: Path, error: type[Exception] = GGUFError) -> str:
    """Open the file, expect the error, and check what every refusal has: one line, the path, little work and memory."""
    with peak_memory() as peak, counted_calls() as calls, pytest.raises(error) as caught:
        ours.open(path)
    message = str(caught.value)
    assert calls[0] < 1_000
    assert peak[0] < 1 << 20
    assert str(path) in message
    assert "\n" not in message
    return message


# --- what is not a GGUF file, or not one we read ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "the file is empty"),
        (b"GG", r"magic b'GG' found, b'GGUF' wanted"),
        (b"NOPE" + bytes(40), r"header: magic b'NOPE' found, b'GGUF' wanted"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00", "git-lfs pointer"),
        (b"\n<!DOCTYPE html><html>", "web page"),
        (b"<html><body>404", "web page"),
        (b"PK\x03\x04" + bytes(30), "zip archive"),
        (struct.pack("<Q", 80) + b'{"__metadata__":{}}', "safetensors"),
        (b"lmgg" + bytes(40), "GGML file from before GGUF"),
        (b"tjgg" + bytes(40), "GGML file from before GGUF"),
        (b"GGML" + bytes(40), "GGML file from before GGUF"),
        (bytes(64), "begins with zeros"),
        (b"GGUF\x03", "version takes 4 bytes, but the file has 1 left"),
        (header(0, 0)[:-1], "number of key-value pairs takes 8 bytes, but the file has 7 left"),
    ],
)
def test_not_gguf(tmp_path, content, expected):
    assert expected in refused(save(tmp_path, content))


def test_big_endian_file_of_another_version(tmp_path):
    content = b"GGUF" + struct.pack(">IQQ", 4, 0, 0)
    assert "GGUF version 4" in refused(save(tmp_path, content), UnsupportedError)


def test_version_1(tmp_path):
    content = b"GGUF" + struct.pack("<III", 1, 0, 0)
    message = refused(save(tmp_path, content), UnsupportedError)
    assert "GGUF version 1, whose counts have 32 bits" in message


@pytest.mark.parametrize("version", [0, 4, 0x30303030])
def test_other_versions(tmp_path, version):
    message = refused(save(tmp_path, gguf(version=version)), UnsupportedError)
    assert f"GGUF version {version}; minillama reads versions 2 and 3" in message


# --- declared sizes --------------------------------------------------------------------------------------------------

BIG_STRINGS = array(STRING, 1 << 61, b"")
SIZES = [
    ("tensors", header(1 << 62, 0), f"{1 << 62} tensors declared"),
    ("pairs", header(0, 1 << 62), f"{1 << 62} key-value pairs declared"),
    ("a few pairs too many", header(0, 2) + u32("k", 1), "2 key-value pairs declared, which take at least 28 bytes"),
    ("key", header(0, 1) + HUGE + bytes(16), f"key 0: the key is {1 << 62} bytes long"),
    ("key of 2^30", header(0, 1) + struct.pack("<Q", 1 << 30) + bytes(16), f"key 0: the key is {1 << 30} bytes long"),
    ("key past the end", header(0, 1) + struct.pack("<Q", 99) + bytes(16), "key takes 99 bytes, but the file has 16"),
    ("text", gguf([pair("k", STRING, HUGE)]), f"key 'k': value takes {1 << 62} bytes, but the file has 0 left"),
    ("numbers", gguf([pair("k", ARRAY, array(FLOAT32, 1 << 62, b""))]), f"{1 << 62} FLOAT32 elements declared"),
    ("bools", gguf([pair("k", ARRAY, array(BOOL, 9, bytes(8)))]), "9 BOOL elements declared"),
    ("strings", gguf([pair("k", ARRAY, BIG_STRINGS)]), f"key 'k': {1 << 61} strings declared"),
    ("arrays", gguf([pair("k", ARRAY, array(ARRAY, 1 << 60, b""))]), f"{1 << 60} arrays declared"),
    ("one string", gguf([pair("k", ARRAY, array(STRING, 1, HUGE))]), "a string of the array takes"),
    (
        "last of 200",
        gguf([pair("k", ARRAY, array(STRING, 200, text("x") * 199 + HUGE))]),
        "a string of the array takes",
    ),
    ("cut length", gguf([pair("k", ARRAY, array(STRING, 2, text("x" * 20) + b"abc"))]), "length of a string takes 8"),
    (
        "chain",
        gguf([pair("k", ARRAY, array(STRING, 99, text("x" * 9) * 98 + text("y" * 9)[:-1]))]),
        "of the array take",
    ),
    ("tensor entry", header(1, 0) + W[:-1], "tensor 'w': offset takes 8 bytes, but the file has 7 left"),
    ("scalar", gguf([pair("long enough for a pair", 10, bytes(7))]), "value takes 8 bytes, but the file has 7 left"),
]


@pytest.mark.parametrize(("content", "expected"), [case[1:] for case in SIZES], ids=[case[0] for case in SIZES])
def test_declared_size_beyond_the_file(tmp_path, content, expected):
    assert expected in refused(save(tmp_path, content))


@pytest.mark.parametrize("bit", range(8, 64))
def test_every_byte_of_a_string_length_counts(tmp_path, bit):
    strings = bytearray(text("12345") * 400)
    strings[200 * 13 : 200 * 13 + 8] = struct.pack("<Q", 5 + (1 << bit))
    refused(save(tmp_path, gguf([pair("k", ARRAY, array(STRING, 400, bytes(strings)))])))


# --- metadata --------------------------------------------------------------------------------------------------------


def test_errors_give_the_offset(tmp_path):
    path = save(tmp_path, gguf([u32("k", 1), pair("k", UINT8, b"\1")]))
    assert refused(path).endswith(f"key 'k': the key is there twice (at byte {24 + 8 + 1 + 4 + 4})")
    with pytest.raises(GGUFError) as caught:
        ours.open(path)
    assert (caught.value.path, caught.value.offset) == (str(path), 41)


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        ([pair("k", 13, bytes(8))], "key 'k': value type 13 found, 0 to 12 wanted"),
        ([pair("k", ARRAY, array(77, 0, b""))], "key 'k': value type 77 found"),
        ([pair("", UINT8, bytes(8))], "key 0: the key is empty"),
        ([pair(b"k\xff", UINT8, bytes(8))], r"the key b'k\xff' is not UTF-8"),
        ([pair("a\nb", 13, bytes(8))], r"key 'a\nb': value type 13"),
        ([pair("k" * 999, 13, bytes(8))], f"key '{'k' * 77}...': value type 13"),
    ],
)
def test_bad_pairs(tmp_path, pairs, expected):
    assert expected in refused(save(tmp_path, gguf(pairs)))


def test_arrays_nested_too_deep(tmp_path):
    nested = array(UINT8, 0, b"")
    for _ in range(2000):
        nested = array(ARRAY, 1, nested)
    assert "key 'k': arrays are nested more than 4 deep" in refused(save(tmp_path, gguf([pair("k", ARRAY, nested)])))


@pytest.mark.parametrize("alignment", [0, 3, 48, 1 << 30, 2**32 - 1])
def test_bad_alignment(tmp_path, alignment):
    path = save(tmp_path, gguf([u32("general.alignment", alignment)], [W], DATA))
    assert f"key 'general.alignment': {alignment} found, a power of two up to 1048576 wanted" in refused(path)


def test_alignment_of_another_type(tmp_path):
    path = save(tmp_path, gguf([pair("general.alignment", 10, struct.pack("<Q", 32))], [W], DATA))
    assert "key 'general.alignment': value type UINT64 found, UINT32 wanted" in refused(path)


# --- tensors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ([text("w") + struct.pack("<I", 1_000_000) + bytes(24)], "tensor 'w': 1000000 dimensions found, at most 4"),
        ([entry("w", [1] * 9, F32, 0)], "tensor 'w': 9 dimensions found, at most 4 wanted"),
        ([entry("w", [4194305, 4194305, 211106198978564], F32, 0)], "has more than 2^63 - 1 elements"),
        ([entry("w", [1 << 63, 0], F32, 0)], "has more than 2^63 - 1 elements"),
        ([entry("w", [1 << 61], F32, 0)], f"tensor 'w': the file is incomplete: at least {(1 << 63) + 64} bytes"),
        ([entry("w", [33, 2], Q4_0, 0)], "tensor 'w': rows of 33 elements found, Q4_0 wants a multiple of 32"),
        ([entry("w", [], Q4_0, 0)], "rows of 1 elements found"),
        ([entry("w", [8], F32, 1)], "tensor 'w': offset 1 is not a multiple of the alignment 32"),
        ([entry("w", [8], F32, 32)], "tensor 'w': offset 32 found, 0 wanted"),
        ([W, entry("v", [1], F32, 64)], "tensor 'v': offset 64 found, 32 wanted"),
        ([W, entry("v", [8], F32, 0)], "tensor 'v': offset 0 found, 32 wanted"),
        ([W, entry("w", [8], F32, 32)], "tensor 'w': the tensor is there twice"),
        ([entry(b"\xffw", [8], F32, 0)], r"tensor 0: the tensor name b'\xffw' is not UTF-8"),
        ([struct.pack("<Q", 1 << 40) + bytes(16)], f"tensor 0: the tensor name is {1 << 40} bytes long"),
        ([W, entry("odd", [8], 99, 32), entry("far", [8], 99, 1 << 63)], "tensor 'far': the file is incomplete"),
        ([entry("odd", [8], 99, 32), entry("w", [8], F32, 0)], "tensor 'odd': offset 32 found, 0 wanted"),
        ([entry("odd", [8], 99, 0), W, entry("v", [8], F32, 0)], "tensor 'v': offset 0 found, 32 wanted"),
    ],
)
def test_bad_tensors(tmp_path, entries, expected):
    head = header(len(entries), 0) + b"".join(entries)
    assert expected in refused(save(tmp_path, head + bytes(-len(head) % 32) + DATA))


def test_file_cut_inside_tensor_data(tmp_path):
    content = gguf([], [W, entry("last", [8], F32, 32)], DATA + DATA)
    ours.open(save(tmp_path, content)).close()
    message = refused(save(tmp_path, content[:-1]))
    wanted = f"at least {len(content)} bytes wanted, {len(content) - 1} found (at byte {len(content) - 32})"
    assert f"tensor 'last': the file is incomplete: {wanted}" in message


def test_file_cut_anywhere_is_refused(tmp_path):
    strings = array(STRING, 3, text("a") + text("") + text("x" * 300))
    pairs = [u32("n", 1), pair("s", ARRAY, strings), pair("f", ARRAY, array(INT32, 2, bytes(8)))]
    content = gguf(pairs, [W, entry("last", [8], F32, 32)], DATA + DATA)
    for length in range(len(content)):
        with pytest.raises(GGUFError):
            ours.open(save(tmp_path, content[:length]))


def test_shards_joined_with_cat(tmp_path):
    split = [pair("split.no", 2, struct.pack("<H", 0)), pair("split.count", 2, struct.pack("<H", 2))]
    first = gguf(split, [W], DATA)
    message = refused(save(tmp_path, first + gguf([], [entry("v", [8], F32, 0)], DATA)))
    assert "another GGUF file follows the last tensor: shards of a split model must stay separate" in message
    assert message.endswith(f"(at byte {len(first)})")


def test_shards_joined_with_cat_behind_padding(tmp_path):
    content = gguf([], [entry("v", [1], F32, 0)], DATA) + gguf([], [W], DATA)
    assert "not joined with cat" in refused(save(tmp_path, content))


def test_shards_joined_with_cat_behind_a_shard_without_tensors(tmp_path):
    first = gguf([u32("only", 1)])
    assert len(first) % 32
    assert "not joined with cat" in refused(save(tmp_path, first + gguf([], [W], DATA)))
