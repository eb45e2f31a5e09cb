"""What threads share while they run a plan: words of memory at plain addresses, and calls through function pointers.

All are numba intrinsics for jitted code. An address is an int64; words are int64 and aligned. Stores release and loads
acquire, so that what a thread wrote before a store is seen by whoever loads it.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic as numba_intrinsic

from minillama.kernels.simd.lanes import ask_for

# What numba makes of an intrinsic is called without the first argument it is written with; types cannot say that.
intrinsic: Any = numba_intrinsic

Codegen = Callable[[Any, Any, Any, Any], Any]
_WORD = ir.IntType(64)
_WORD_BYTES = 8


def _pointer(builder: Any, address: Any) -> Any:
    return builder.inttoptr(address, _WORD.as_pointer())


@intrinsic
def load(_typing: Any, _address: Any) -> tuple[Any, Codegen]:
    """The word at an address."""

    def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.load_atomic(_pointer(builder, arguments[0]), "acquire", _WORD_BYTES)

    return types.int64(types.int64), codegen


@intrinsic
def store(_typing: Any, _address: Any, _value: Any) -> tuple[Any, Codegen]:
    """Write a word."""

    def codegen(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        builder.store_atomic(arguments[1], _pointer(builder, arguments[0]), "release", _WORD_BYTES)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


def _make_exchange(operation: str) -> Any:
    @intrinsic
    def exchange(_typing: Any, _address: Any, _value: Any) -> tuple[Any, Codegen]:
        def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            return builder.atomic_rmw(operation, _pointer(builder, arguments[0]), arguments[1], "seq_cst")

        return types.int64(types.int64, types.int64), codegen

    return exchange


# Add to a word, or replace it; both return what it was before.
add, exchange = _make_exchange("add"), _make_exchange("xchg")


@intrinsic
def replace(_typing: Any, _address: Any, _expected: Any, _value: Any) -> tuple[Any, Codegen]:
    """Replace a word if it is still the expected one; whether it was."""

    def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        pointer = _pointer(builder, arguments[0])
        outcome = builder.cmpxchg(pointer, arguments[1], arguments[2], "seq_cst", "acquire")
        return builder.extract_value(outcome, 1)

    return types.boolean(types.int64, types.int64, types.int64), codegen


_PAUSE = {"x86_64": "llvm.x86.sse2.pause", "AMD64": "llvm.x86.sse2.pause"}.get(platform.machine())


@intrinsic
def pause(_typing: Any) -> tuple[Any, Codegen]:
    """Tell the processor that this is a waiting loop."""

    def codegen(context: Any, builder: Any, _signature: Any, _arguments: Any) -> Any:
        if _PAUSE is not None:
            function = ir.FunctionType(ir.VoidType(), [])
            builder.call(cgutils.get_or_insert_function(builder.module, function, _PAUSE), [])
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def prefetch(_typing: Any, _address: Any) -> tuple[Any, Codegen]:
    """Ask for the cache line at an address, for the second-level cache."""

    def codegen(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        address = builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())
        ask_for(builder, address, 2)
        return context.get_dummy_value()

    return types.void(types.int64), codegen


# Let another thread have the processor.
give_way = types.ExternalFunction("SwitchToThread" if os.name == "nt" else "sched_yield", types.int32())


@intrinsic
def call(
    _typing: Any, _function: Any, _parameters: Any, _scratch: Any, _scratch_bytes: Any, _start: Any, _stop: Any
) -> tuple[Any, Codegen]:
    """Call a kernel's entry point (:mod:`minillama.runtime.entry`) by its address."""

    def codegen(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        function = ir.FunctionType(ir.VoidType(), [_WORD] * 5)
        builder.call(builder.inttoptr(arguments[0], function.as_pointer()), arguments[1:])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 6), codegen
