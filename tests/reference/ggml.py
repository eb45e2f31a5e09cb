"""ggml through ctypes: the functions and the graph operations whose bits the kernels must have."""

from __future__ import annotations

import ctypes
import functools
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from minillama.gguf.constants import GGMLType
from minillama.kernels.layouts import LAYOUTS
from tests.reference.build_llama_cpp import ensure

_NEW_NAMESPACE = -1
_NOW = 2
_POINTER = ctypes.c_void_p
_GRAPH_BYTES = 64 << 20
_ARRAY_TYPES = {
    np.dtype(np.float32): GGMLType.F32,
    np.dtype(np.float16): GGMLType.F16,
    np.dtype(np.int32): GGMLType.I32,
}


class Ggml:
    """One build of ggml, loaded in a linker namespace of its own so that several can be side by side.

    Attributes
    ----------
    fuses
        Whether it was compiled with multiply-adds that round once.
    """

    def __init__(self, folder: Path, *, fuses: bool) -> None:
        self.fuses = fuses
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
            names.get(type_, f"dequantize_row_{c_name(type_)}"), _POINTER, _POINTER, ctypes.c_int64
        )
        out = np.empty(n, np.float32)
        function(packed.ctypes.data, out.ctypes.data, n)
        return out

    def quantize(self, type_: GGMLType, values: np.ndarray, *, called: bool = False) -> np.ndarray:
        """``quantize_row_*_ref`` (or the conversion to half precision) of one row.

        With ``called``, the function that the CPU backend's own ``mul_mat`` calls, vectorised where the build has it.
        """
        name = f"quantize_row_{c_name(type_)}" + ("" if called else "_ref")
        if type_ in (GGMLType.F16, GGMLType.BF16):
            to = {GGMLType.F16: "fp16", GGMLType.BF16: "bf16"}[type_]
            plain = "ggml_fp32_to_bf16_row_ref" if type_ is GGMLType.BF16 else "ggml_fp32_to_fp16_row"
            name = f"ggml_cpu_fp32_to_{to}" if called else plain
        values = np.ascontiguousarray(values, np.float32)
        out = np.zeros(LAYOUTS[type_].row_bytes(len(values)), np.uint8)
        self._function(name, _POINTER, _POINTER, ctypes.c_int64)(values.ctypes.data, out.ctypes.data, len(values))
        return out

    def quantize_rows(self, type_: GGMLType, values: np.ndarray) -> np.ndarray:
        """``quantize_row_*_ref`` of rows; the sums that ggml leaves uninitialised in blocks of zeros are zero."""
        packed = np.stack([self.quantize(type_, row) for row in values])
        if type_ is GGMLType.Q8_K:
            zeros = ~values.reshape(-1, LAYOUTS[type_].block_size).any(axis=1)
            packed.reshape(-1, LAYOUTS[type_].type_size)[zeros] = 0
        return packed

    def quantize_chunk(self, type_: GGMLType, values: np.ndarray, importance: np.ndarray | None) -> np.ndarray:
        """``ggml_quantize_chunk`` of float32 rows."""
        long, pointer = ctypes.c_int64, _POINTER
        function = self._function("ggml_quantize_chunk", ctypes.c_int, pointer, pointer, long, long, long, pointer)
        out = np.zeros((len(values), LAYOUTS[type_].row_bytes(values.shape[1])), np.uint8)
        of_columns = None if importance is None else importance.ctypes.data
        function(type_, values.ctypes.data, out.ctypes.data, 0, *values.shape, of_columns)
        return out

    def quantize_weights(self, type_: GGMLType, values: np.ndarray) -> np.ndarray:
        """``ggml_quantize_chunk`` with importances of one for the types that want them."""
        library = self._library
        library.ggml_quantize_init(ctypes.c_int(type_))
        library.ggml_quantize_requires_imatrix.restype = ctypes.c_bool
        wants_importance = library.ggml_quantize_requires_imatrix(ctypes.c_int(type_))
        importance = np.ones(values.shape[1], np.float32) if wants_importance else None
        return self.quantize_chunk(type_, values, importance)

    def dot(self, type_: GGMLType, row: np.ndarray, other: np.ndarray, n: int, *, called: bool = False) -> np.float32:
        """``ggml_vec_dot_*_generic`` of one packed row and one converted row; with ``called``, the one in use."""
        activation = LAYOUTS[type_].activation
        assert activation is not None
        name = f"ggml_vec_dot_{c_name(type_)}_{c_name(activation)}" + ("" if called else "_generic")
        if type_ in (GGMLType.F32, GGMLType.F16, GGMLType.BF16):
            name = f"ggml_vec_dot_{c_name(type_)}"
        elif not hasattr(self._library, name):  # where there is no vectorised version, the generic one has its name
            name = name.removesuffix("_generic")
        size = ctypes.c_size_t
        function = self._function(name, ctypes.c_int, _POINTER, size, _POINTER, size, _POINTER, size, ctypes.c_int)
        out = np.zeros(1, np.float32)
        function(n, out.ctypes.data, 0, row.ctypes.data, 0, other.ctypes.data, 0, 1)
        return out[0]

    @contextmanager
    def graph(self) -> Iterator[Graph]:
        """A graph to put operations into and to compute."""
        graph = Graph(self._library)
        try:
            yield graph
        finally:
            graph.free()


class _InitParams(ctypes.Structure):
    _fields_ = (("mem_size", ctypes.c_size_t), ("mem_buffer", _POINTER), ("no_alloc", ctypes.c_bool))


class Graph:
    """Operations on tensors, computed by one thread: ``g.compute(g.mul(g.tensor(x), g.tensor(y)), shape)``.

    Any other attribute is the ggml function of that name. Shapes are numpy's, the reverse of ggml's.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        library.ggml_init.argtypes, library.ggml_init.restype = [_InitParams], _POINTER
        self._context = _POINTER(library.ggml_init(_InitParams(_GRAPH_BYTES, None, False)))

    def free(self) -> None:
        """Give the memory back; no tensor may be used any more."""
        self._library.ggml_free(self._context)

    def _new_tensor(self, type_: GGMLType, shape: tuple[int, ...], data: np.ndarray) -> ctypes.c_void_p:
        sizes = (ctypes.c_int64 * len(shape))(*reversed(shape))
        tensor = self.new_tensor(ctypes.c_int(type_), ctypes.c_int(len(shape)), sizes)
        ctypes.memmove(self._data(tensor), np.ascontiguousarray(data).ctypes.data, data.nbytes)
        return tensor

    def _data(self, tensor: ctypes.c_void_p) -> int:
        function = self._library.ggml_get_data
        function.restype = _POINTER
        return function(tensor)

    def tensor(self, values: np.ndarray) -> ctypes.c_void_p:
        """A tensor of float32, float16 or int32 values."""
        return self._new_tensor(_ARRAY_TYPES[values.dtype], values.shape, values)

    def packed(self, type_: GGMLType, rows: np.ndarray, n: int) -> ctypes.c_void_p:
        """A tensor of packed rows of ``n`` values."""
        return self._new_tensor(type_, (len(rows), n), rows)

    def __getattr__(self, operation: str) -> ctypes._FuncPointer:
        function = getattr(self._library, f"ggml_{operation}")
        function.restype = _POINTER

        def call(*arguments: object) -> ctypes.c_void_p:
            return _POINTER(function(self._context, *arguments))

        return call

    def compute(self, result: ctypes.c_void_p, shape: tuple[int, ...]) -> np.ndarray:
        """The float32 values of a tensor."""
        graph = self.new_graph()
        self._library.ggml_build_forward_expand(graph, result)
        status = self._library.ggml_graph_compute_with_ctx(self._context, graph, 1)
        if status:
            raise RuntimeError(f"ggml_graph_compute: status {status}")
        out = np.empty(shape, np.float32)
        ctypes.memmove(out.ctypes.data, self._data(result), out.nbytes)
        return out


def c_name(type_: GGMLType) -> str:
    """The type as ggml's functions spell it."""
    name = type_.name.lower()
    return name.replace("_k", "_K")


@functools.cache
def packaged() -> Ggml:
    """The prebuilt library of libggml-python, compiled with AVX2 and FMA."""
    return Ggml(Path(sysconfig.get_path("purelib")) / "libggml" / "lib64", fuses=True)


@functools.cache
def baseline() -> Ggml:
    """llama.cpp's baseline build."""
    return Ggml(ensure("baseline") / "llama_cpp" / "lib", fuses=False)
