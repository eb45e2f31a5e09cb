"""ggml through ctypes: the functions whose bits the kernels must have."""

from __future__ import annotations

import ctypes
import functools
import sysconfig
from pathlib import Path

import numpy as np

from minillama.gguf.constants import GGMLType
from minillama.kernels.layouts import LAYOUTS
from tests.reference.build_llama_cpp import ensure

_NEW_NAMESPACE = -1
_NOW = 2
_POINTER = ctypes.c_void_p


class Ggml:
    """One build of ggml, loaded in a linker namespace of its own so that several can be side by side."""

    def __init__(self, folder: Path) -> None:
        dlmopen = ctypes.CDLL(None).dlmopen
        dlmopen.restype, dlmopen.argtypes = _POINTER, [ctypes.c_long, ctypes.c_char_p, ctypes.c_int]
        path = str(folder / "libggml-cpu.so")
        handle = dlmopen(_NEW_NAMESPACE, path.encode(), _NOW)
        if not handle:
            raise OSError(f"cannot load {path}")
        self._library = ctypes.CDLL(path, handle=handle)
        self._library.ggml_cpu_init()

    def _function(self, name: str, *arguments: type) -> ctypes._FuncPointer:
        function = getattr(self._library, name)
        function.restype, function.argtypes = None, list(arguments)
        return function

    def dequantize(self, type_: GGMLType, packed: np.ndarray, n: int) -> np.ndarray:
        """``to_float`` of one packed row."""
        names = {GGMLType.F16: "ggml_fp16_to_fp32_row", GGMLType.BF16: "ggml_bf16_to_fp32_row"}
        function = self._function(
            names.get(type_, f"dequantize_row_{_c_name(type_)}"), _POINTER, _POINTER, ctypes.c_int64
        )
        out = np.empty(n, np.float32)
        function(packed.ctypes.data, out.ctypes.data, n)
        return out

    def quantize(self, type_: GGMLType, values: np.ndarray) -> np.ndarray:
        """``quantize_row_*_ref`` (or the conversion to half precision) of one row."""
        names = {GGMLType.F16: "ggml_fp32_to_fp16_row", GGMLType.BF16: "ggml_fp32_to_bf16_row_ref"}
        name = names.get(type_, f"quantize_row_{_c_name(type_)}_ref")
        values = np.ascontiguousarray(values, np.float32)
        out = np.zeros(LAYOUTS[type_].row_bytes(len(values)), np.uint8)
        self._function(name, _POINTER, _POINTER, ctypes.c_int64)(values.ctypes.data, out.ctypes.data, len(values))
        return out

    def dot(self, type_: GGMLType, row: np.ndarray, other: np.ndarray, n: int) -> np.float32:
        """``ggml_vec_dot_*_generic`` of one packed row and one converted row."""
        activation = LAYOUTS[type_].activation
        assert activation is not None
        name = f"ggml_vec_dot_{_c_name(type_)}_{_c_name(activation)}_generic"
        if type_ in (GGMLType.F32, GGMLType.F16, GGMLType.BF16):
            name = f"ggml_vec_dot_{_c_name(type_)}"
        size = ctypes.c_size_t
        function = self._function(name, ctypes.c_int, _POINTER, size, _POINTER, size, _POINTER, size, ctypes.c_int)
        out = np.zeros(1, np.float32)
        function(n, out.ctypes.data, 0, row.ctypes.data, 0, other.ctypes.data, 0, 1)
        return out[0]


def _c_name(type_: GGMLType) -> str:
    name = type_.name.lower()
    return name.replace("_k", "_K")


@functools.cache
def packaged() -> Ggml:
    """The prebuilt library of libggml-python, compiled with AVX2 and FMA."""
    return Ggml(Path(sysconfig.get_path("purelib")) / "libggml" / "lib64")


@functools.cache
def baseline() -> Ggml:
    """llama.cpp's baseline build."""
    return Ggml(ensure("baseline") / "llama_cpp" / "lib")
