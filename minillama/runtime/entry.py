"""Entry points: a kernel with its arguments read from memory, so that jitted code can call any kernel by address.

Arguments are written as int64 words: a number as itself (a float32 as its bits), an array as its address and its shape.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.ccallback import CFunc
from numba.np.arrayobj import populate_array
from numba.np.numpy_support import from_dtype

from minillama.kernels.jit import Kernel, KernelCache, one_process_compiles
from minillama.runtime.atomics import Codegen, intrinsic

# What an argument is: the dtype and number of dimensions of an array, or "int" or "float32".
Kind = tuple[str, int] | str
_WORD = ir.IntType(64)
_SIGNATURE = types.void(types.int64, types.int64, types.int64, types.int64, types.int64)


def kind_of(argument: Any) -> Kind:
    """What a kernel's argument is.

    Raises
    ------
    TypeError
        It is neither a C-contiguous array nor an int nor a float32.
    """
    if isinstance(argument, np.ndarray):
        if not argument.flags.c_contiguous:
            raise TypeError("kernels take C-contiguous arrays")
        return argument.dtype.str, argument.ndim
    if isinstance(argument, np.float32):
        return "float32"
    if isinstance(argument, int | np.integer) and not isinstance(argument, bool):
        return "int"
    raise TypeError(f"kernels take arrays, ints and float32, not {type(argument).__name__}")


def words_of(argument: Any) -> list[int]:
    """The words that stand for an argument in memory."""
    if isinstance(argument, np.ndarray):
        return [argument.ctypes.data, *argument.shape]
    if isinstance(argument, np.float32):
        return [int(argument.view(np.uint32))]
    return [int(argument)]


def _numba_type(kind: Kind) -> Any:
    if isinstance(kind, tuple):
        return types.Array(from_dtype(np.dtype(kind[0])), kind[1], "C")
    return types.float32 if kind == "float32" else types.int64


def _array(context: Any, builder: Any, array_type: Any, address: Any, shape: Sequence[Any]) -> Any:
    """LLVM code that makes numba's array structure of memory that somebody else keeps alive."""
    array = context.make_array(array_type)(context, builder)
    item = context.get_abi_sizeof(context.get_data_type(array_type.dtype))
    strides: list[Any] = []
    step = _WORD(item)
    for length in reversed(shape):
        strides.insert(0, step)
        step = builder.mul(step, length)
    data = builder.inttoptr(address, array.data.type)
    populate_array(array, data=data, shape=list(shape), strides=strides, itemsize=item, meminfo=None)
    return array._getvalue()


def _make_read_arguments(kinds: tuple[Kind, ...], *, takes_scratch: bool) -> Any:
    argument_types = [_numba_type(kind) for kind in kinds]
    scratch_type = types.Array(types.uint8, 1, "C")
    result = types.Tuple([*argument_types, scratch_type] if takes_scratch else argument_types)

    @intrinsic
    def read_arguments(_typing: Any, _parameters: Any, _scratch: Any, _scratch_bytes: Any) -> tuple[Any, Codegen]:
        def codegen(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            words = builder.inttoptr(arguments[0], _WORD.as_pointer())
            read = iter(range(2**31))

            def next_word() -> Any:
                return builder.load(builder.gep(words, [_WORD(next(read))]))

            values = []
            for kind, type_ in zip(kinds, argument_types, strict=True):
                word = next_word()
                if isinstance(kind, tuple):
                    word = _array(context, builder, type_, word, [next_word() for _ in range(kind[1])])
                elif kind == "float32":
                    word = builder.bitcast(builder.trunc(word, ir.IntType(32)), ir.FloatType())
                values.append(word)
            if takes_scratch:
                values.append(_array(context, builder, scratch_type, arguments[1], [arguments[2]]))
            return cgutils.make_anonymous_struct(builder, values, context.get_value_type(result))

        return result(types.int64, types.int64, types.int64), codegen

    return read_arguments


@functools.cache
def entry_point(kernel: Kernel, kinds: tuple[Kind, ...], *, takes_scratch: bool) -> int:
    """Address of ``void entry(parameters, scratch, scratch_bytes, start, stop)`` that calls the kernel; all are int64.

    Compiled on first use, and kept in the kernel cache if the kernel is.
    """
    read_arguments = _make_read_arguments(kinds, takes_scratch=takes_scratch)

    def entry(parameters: int, scratch: int, scratch_bytes: int, start: int, stop: int) -> None:
        kernel(*read_arguments(parameters, scratch, scratch_bytes), start, stop)

    described = "_".join(kind if isinstance(kind, str) else f"{kind[0][1:]}x{kind[1]}" for kind in kinds)
    entry.__name__ = entry.__qualname__ = f"{kernel.__module__}.{kernel.__name__}__{described}"
    options = {"nopython": True, "error_model": "numpy"}
    function: Any = CFunc(entry, (_SIGNATURE.args, _SIGNATURE.return_type), {}, options)
    if isinstance(getattr(kernel, "_cache", None), KernelCache):  # unless nothing can be written, or it is not ours
        function._cache = KernelCache(entry)
        _compile_once(function)
    else:
        function.compile()
    _KEPT.append(function)
    return int(function.address)


def _compile_once(function: Any) -> None:
    """Compile a function or load it, after whoever is compiling it already."""
    codegen = function._targetdescr.target_context.codegen()
    if function._cache.holds(_SIGNATURE, codegen):
        function.compile()
        return
    with one_process_compiles(function.__qualname__):
        function.compile()


_KEPT: list[Any] = []  # an address is good as long as its function lives
