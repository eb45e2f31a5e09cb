"""ggml's own decoding of packed rows, through ctypes."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
from pathlib import Path

import numpy as np

from minillama.errors import MissingDependencyError
from minillama.gguf import GGMLType
from minillama.kernels.types import F32, U8

_ToFloat = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)

HOW_TO_INSTALL = "pip install libggml-python (Linux x86-64), or pip install 'minillama[reference]'"


class _TypeTraits(ctypes.Structure):
    """``struct ggml_type_traits``."""

    _fields_ = (
        ("type_name", ctypes.c_char_p),
        ("blck_size", ctypes.c_int64),
        ("blck_size_interleave", ctypes.c_int64),
        ("type_size", ctypes.c_size_t),
        ("is_quantized", ctypes.c_bool),
        ("to_float", ctypes.c_void_p),
        ("from_float_ref", ctypes.c_void_p),
    )


class Ggml:
    """A build of ggml: the shared library ``libggml-base`` in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._library = ctypes.CDLL(str(folder / "libggml-base.so"))
        self._library.ggml_get_type_traits.restype = ctypes.POINTER(_TypeTraits)

    def dequantize(self, type_: GGMLType, packed: U8, n: int) -> F32:
        """``to_float`` of packed rows of ``n`` values: float32 [n_rows, n]; float32 rows are taken as they are."""
        rows = np.ascontiguousarray(packed)
        if type_ is GGMLType.F32:
            return rows.view(np.float32)
        to_float = _ToFloat(self._library.ggml_get_type_traits(int(type_)).contents.to_float)
        out = np.empty((len(rows), n), np.float32)
        to_float(rows.ctypes.data, out.ctypes.data, len(rows) * n)
        return out


@functools.cache
def installed_ggml() -> Ggml:
    """The ggml of libggml-python, or of llama-cpp-python, whichever is installed.

    Raises
    ------
    MissingDependencyError
        Neither is.
    """
    for package, inside in (("libggml", "lib64"), ("llama_cpp", "lib")):
        spec = importlib.util.find_spec(package)
        for place in spec.submodule_search_locations or () if spec is not None else ():
            if (Path(place) / inside / "libggml-base.so").exists():
                return Ggml(Path(place) / inside)
    raise MissingDependencyError(f"ggml is needed to compare with: {HOW_TO_INSTALL}")
