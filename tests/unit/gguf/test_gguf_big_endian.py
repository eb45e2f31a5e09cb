"""Big-endian files, made by gguf-py's writer and its script that converts byte orders."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path

import gguf as gguf_py
import numpy as np
import pytest

import minillama.gguf as ours
from minillama.errors import GGUFError, UnsupportedError
from minillama.gguf import BLOCK_SIZE, TYPE_SIZE, GGMLType
from minillama.gguf.byteorder import _FIELDS
from minillama.kernels.layouts import LAYOUTS

CONVERT = "from gguf.scripts.gguf_convert_endian import main; main()"

# Fields whose values have two bytes, by name and type; all others are bytes, but for the floats and Q8_K's scale.
HALVES = {"d", "m", "s", "dmin", "bsums", "scales_h"}
ALSO_HALVES = {(GGMLType.IQ1_S, "qh"), (GGMLType.IQ2_XS, "qs")}
FLOATS = {GGMLType.F32: 4, GGMLType.F16: 2, GGMLType.BF16: 2}


def convert(path: Path) -> Path:
    """Turn a file around, in place."""
    command = [sys.executable, "-c", CONVERT, str(path), "big"]
    subprocess.run(command, input="YES\n", text=True, check=True, capture_output=True)
    return path


@pytest.mark.parametrize("use_mmap", [True, False])
def test_metadata_of_every_type(tmp_path: Path, use_mmap: bool) -> None:
    path = tmp_path / "big.gguf"
    writer = gguf_py.GGUFWriter(path, "llama", endianess=gguf_py.GGUFEndian.BIG)
    numbers = {
        "uint8": 200, "int8": -3, "uint16": 60_000, "int16": -300, "uint32": 4_000_000_000, "int32": -70_000,
        "uint64": 2**63 + 1, "int64": -(2**40), "float32": 0.15625, "float64": 0.1,
    }  # fmt: skip
    for kind, value in numbers.items():
        getattr(writer, f"add_{kind}")(kind, value)
    tokens = ["a", "", "é", "x" * 300, *(f"t{i}" for i in range(1000))]
    writer.add_bool("flag", True)
    writer.add_array("tokens", tokens)
    writer.add_array("heads", [1, -2, 300_000])
    writer.add_array("factors", [0.5, 1.25])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with ours.open(path, use_mmap=use_mmap) as file:
        assert file.byte_order == "big"
        assert {kind: file.metadata[kind] for kind in numbers} == numbers
        assert file.metadata["flag"] is True
        assert file.metadata["tokens"] == tokens
        for name, values in (("heads", [1, -2, 300_000]), ("factors", [0.5, 1.25])):
            array = file.metadata[name]
            assert array.tolist() == values
            assert array.dtype.isnative
            assert not array.flags.writeable


@pytest.mark.parametrize("use_mmap", [True, False])
def test_a_converted_file_equals_the_original(tmp_path: Path, use_mmap: bool) -> None:
    rng = np.random.default_rng(1)
    paths = [tmp_path / "little.gguf", tmp_path / "big.gguf"]
    packed = {kind: rng.integers(0, 256, 3 * TYPE_SIZE[kind], np.uint8) for kind in LAYOUTS if kind.name in CONVERTED}
    values = {"f32": np.float32([[1, -2.5, 3e-9]]), "f16": np.float16([0.5, 7])}
    for path in paths:
        with ours.Writer(path, "llama") as writer:
            writer.add("llama.block_count", 7)
            for kind, data in packed.items():
                writer.add_tensor(kind.name, data, kind, (3, BLOCK_SIZE[kind]))
            for name, array in values.items():
                writer.add_tensor(name, array)
    convert(paths[1])
    with ours.open(paths[0]) as little, ours.open(paths[1], use_mmap=use_mmap) as big:
        assert (little.byte_order, big.byte_order) == ("little", "big")
        assert dict(big.metadata) == dict(little.metadata)
        assert list(big.tensors) == list(little.tensors)
        for name, tensor in little.tensors.items():
            np.testing.assert_array_equal(big.tensors[name].data, tensor.data, name)
            assert not big.tensors[name].data.flags.writeable


# What gguf-py's script converts.
CONVERTED = ("BF16", "Q4_0", "Q8_0", "Q4_K", "Q6_K", "MXFP4", "NVFP4")


@pytest.mark.parametrize("kind", [kind for kind in _FIELDS if kind in LAYOUTS], ids=lambda kind: kind.name)
def test_fields_of_several_bytes_are_swapped(tmp_path: Path, kind: GGMLType) -> None:
    """By the layouts that the kernels read, which are written down apart from the table of fields."""
    rng = np.random.default_rng(2)
    blocks = rng.integers(0, 256, (5, TYPE_SIZE[kind]), np.uint8)
    swapped = blocks.copy()
    for name, size in LAYOUTS[kind].fields:
        width = FLOATS.get(kind, 2 if name in HALVES or (kind, name) in ALSO_HALVES else 1)
        width = {(GGMLType.Q8_K, "d"): 4, (GGMLType.NVFP4, "d"): 1}.get((kind, name), width)
        at = LAYOUTS[kind].offset(name)
        field = blocks[:, at : at + size].reshape(5, -1, width)
        swapped[:, at : at + size] = field[:, :, ::-1].reshape(5, size)
    path = tmp_path / "file.gguf"
    path.write_bytes(_big_endian_file(kind, swapped.tobytes()))
    with ours.open(path) as file:
        np.testing.assert_array_equal(file.tensors["w"].data.reshape(blocks.shape), blocks)


def _big_endian_file(kind: int, data: bytes, name: bytes = b"w", n_blocks: int = 5) -> bytes:
    columns = BLOCK_SIZE.get(GGMLType(kind), 1) if kind in set(GGMLType) else 32
    head = b"GGUF" + struct.pack(">IQQ", 3, 1, 0)
    head += struct.pack(f">Q{len(name)}sIQQIQ", len(name), name, 2, columns, n_blocks, kind, 0)
    return head + bytes(-len(head) % 32) + data


@pytest.mark.parametrize("kind", [GGMLType.Q5_0, GGMLType.Q5_1, GGMLType.IQ2_XXS, GGMLType.IQ3_XXS, GGMLType.IQ1_M])
def test_types_without_a_settled_order_are_refused(tmp_path: Path, kind: GGMLType) -> None:
    path = tmp_path / "file.gguf"
    path.write_bytes(_big_endian_file(kind, bytes(5 * TYPE_SIZE[kind])))
    with pytest.raises(UnsupportedError, match=rf"tensor 'w' has {kind.name}, which is not read from big-endian files"):
        ours.open(path)


def test_damaged_files_are_refused_like_others(tmp_path: Path) -> None:
    path = tmp_path / "file.gguf"
    whole = _big_endian_file(GGMLType.F32, bytes(20))
    for size in range(4, len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(GGUFError):
            ours.open(path)
    path.write_bytes(b"GGUF" + struct.pack(">IQQQ", 3, 0, 1, 1 << 62) + bytes(64))
    with pytest.raises(GGUFError, match=f"key 0: the key is {1 << 62} bytes long"):
        ours.open(path)
