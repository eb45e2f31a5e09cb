"""The tables of numbers against gguf-py and against ggml itself."""

import ctypes
import importlib.util
from pathlib import Path

import gguf
import pytest

from minillama.gguf.constants import BLOCK_SIZE, TYPE_SIZE, GGMLType, ValueType

NEWER_THAN_GGUF_PY = {GGMLType.Q2_0}  # in ggml 0.20, not yet in gguf-py 0.19
GGUF_PY_WRONG = {GGMLType.Q8_1}  # it says 40 bytes, ggml 36: two half-precision scales and 32 bytes


def test_tensor_types_are_those_of_gguf_py():
    theirs = {kind.name: int(kind) for kind in gguf.GGMLQuantizationType}
    assert theirs == {kind.name: int(kind) for kind in GGMLType if kind not in NEWER_THAN_GGUF_PY}


def test_block_sizes_are_those_of_gguf_py():
    known = [kind for kind in GGMLType if kind not in NEWER_THAN_GGUF_PY | GGUF_PY_WRONG]
    theirs = {kind: gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(kind)] for kind in known}
    assert theirs == {kind: (BLOCK_SIZE[kind], TYPE_SIZE[kind]) for kind in known}


def test_value_types_are_those_of_gguf_py():
    assert {kind.name: int(kind) for kind in gguf.GGUFValueType} == {kind.name: int(kind) for kind in ValueType}


def test_sizes_are_those_of_ggml():
    spec = importlib.util.find_spec("libggml")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("libggml-python is not installed")
    library = next(Path(spec.submodule_search_locations[0]).rglob("libggml-base.so*"))
    ggml = ctypes.CDLL(str(library))
    ggml.ggml_type_size.restype = ctypes.c_size_t
    ggml.ggml_blck_size.restype = ctypes.c_int64
    ggml.ggml_type_name.restype = ctypes.c_char_p
    for kind in GGMLType:
        assert (ggml.ggml_blck_size(int(kind)), ggml.ggml_type_size(int(kind))) == (BLOCK_SIZE[kind], TYPE_SIZE[kind])
        assert ggml.ggml_type_name(int(kind)).decode().lower() == kind.name.lower()
