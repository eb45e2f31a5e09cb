"""What a cache may hold keys and values as, and the pieces of attention that depend on it.

A kind is a dtype (float32, or uint16 for the bits of halves) or a tensor type; a pair is a kind of keys and one of
values. Numbers lie as in :mod:`minillama.kernels.reference.attention`. Rows of quantized blocks lie position by
position, keys too, for a dot product takes a whole row: uint8 [n_blocks, n_head_kv, BLOCK, bytes of a head's row].
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from minillama.gguf.constants import GGMLType
from minillama.kernels.bits import bfloat_to_float, float_to_bfloat, half_to_float, load_u16
from minillama.kernels.jit import Kernel, jit
from minillama.kernels.layouts import LAYOUTS
from minillama.kernels.reference.attention import BLOCK, LOAD, STORE, STORE_KV, SUFFIX, Cache
from minillama.kernels.reference.dot import DOT
from minillama.kernels.reference.dot_q8_0 import signed
from minillama.kernels.reference.quantize import quantize_row_q8_0
from minillama.kernels.reference.quantize_32 import quantize_row_q4_0
from minillama.kernels.scratch import DOT_BYTES
from minillama.kernels.types import F32, F64, I64, U8

Kind = np.dtype[Any] | GGMLType
Pair = Kind | tuple[Kind, Kind]  # one kind stands for keys and values alike

_F = np.float32


@jit
def _bfloat_bits(value: np.float32) -> np.uint16:
    return np.uint16(float_to_bfloat(value))


@jit
def _bfloat_value(bits: np.uint16) -> np.float32:
    return bfloat_to_float(np.uint32(bits))


@jit
def _quantize_q4_0(x: F32, out: U8) -> None:
    quantize_row_q4_0(x, np.empty(0, np.float32), out)


@jit
def _quant_q8_0(row: U8, start: int, j: int) -> np.float32:
    return _F(signed(row[start + 2 + j]))


@jit
def _quant_q4_0(row: U8, start: int, j: int) -> np.float32:
    byte = np.int32(row[start + 2 + j % 16])
    return _F((byte & 15 if j < 16 else byte >> 4) - 8)


_STORE: dict[Any, Kernel] = {**STORE, GGMLType.BF16: _bfloat_bits}
_LOAD: dict[Any, Kernel] = {**LOAD, GGMLType.BF16: _bfloat_value}
# How a row of 32s is written, and value j of a block without its scale; both types begin with a scale of a half.
_QUANTIZE: Mapping[Kind, Kernel] = {GGMLType.Q8_0: quantize_row_q8_0, GGMLType.Q4_0: _quantize_q4_0}
_QUANT: Mapping[Kind, Kernel] = {GGMLType.Q8_0: _quant_q8_0, GGMLType.Q4_0: _quant_q4_0}

KINDS: tuple[Kind, ...] = (*_STORE, *_QUANTIZE)


def is_packed(kind: Kind) -> bool:
    """Whether a kind is rows of quantized blocks."""
    return kind in _QUANTIZE


def _type_size(kind: Kind) -> int:
    assert isinstance(kind, GGMLType)  # that is what packed kinds are
    return LAYOUTS[kind].type_size


def suffix(kind: Kind) -> str:
    """The kind in the name of a kernel."""
    return kind.name.lower() if isinstance(kind, GGMLType) else SUFFIX[kind]


class ByKind(dict[Pair, Kernel]):
    """Kernels by kind or pair of kinds; those that are not written by hand are made when they are asked for.

    A pair of one kind twice is that kind, and a maker gives the same kernel for the same kinds: the kernel cache knows
    kernels by their names.
    """

    def __init__(self, written: Mapping[Any, Kernel], make: Callable[..., Kernel], *, pairs: bool) -> None:
        super().__init__(written)
        self._make, self._pairs = make, pairs

    def __missing__(self, key: Pair) -> Kernel:
        if isinstance(key, tuple):
            first, second = key
            self[key] = self[first] if first == second else self._make(first, second)
        else:
            self[key] = self._make(key, key) if self._pairs else self._make(key)
        return self[key]


def make_scores_of_block(kind: Kind) -> Kernel:
    """``scores_of_block(q, t, first, keys, block, head_kv, totals)``: products of a query with the keys of a block."""
    if is_packed(kind):
        return _packed_scores_of_block(kind)
    store, load = _STORE[kind], _LOAD[kind]

    @jit(name=f"scores_of_block_{suffix(kind)}")
    def scores_of_block(q: F32, t: int, first: int, keys: Cache, block: int, head_kv: int, totals: F64) -> None:
        """Double sums over the head dimension, in order, of float products, for the positions of a block."""
        for slot in range(BLOCK):
            totals[slot] = 0
        for d in range(keys.shape[2]):
            query = load(store(q[t, first + d]))
            for slot in range(BLOCK):
                totals[slot] += np.float64(_F(load(keys[block, head_kv, d, slot]) * query))

    return scores_of_block


def _packed_scores_of_block(kind: Kind) -> Kernel:
    assert isinstance(kind, GGMLType)  # that is what packed kinds are
    dot, size, q8_0_size = DOT[kind], _type_size(kind), _type_size(GGMLType.Q8_0)

    @jit(name=f"scores_of_block_{suffix(kind)}")
    def scores_of_block(q: F32, t: int, first: int, keys: U8, block: int, head_kv: int, totals: F64) -> None:
        """``ggml_vec_dot_*_q8_0`` of each key with the query, which is quantized to Q8_0."""
        n = keys.shape[3] // size * 32
        query, scratch = np.empty(n // 32 * q8_0_size, np.uint8), np.empty(DOT_BYTES, np.uint8)
        quantize_row_q8_0(q[t, first : first + n], query)
        for slot in range(BLOCK):
            totals[slot] = np.float64(dot(keys[block, head_kv, slot], query, n, scratch))

    return scores_of_block


def make_round_weight(kind: Kind) -> Kernel:
    """``round_weight(weight)``: a weight as ggml's product with the values takes it; packed values are decoded."""
    if is_packed(kind):
        return _STORE[np.dtype(np.float32)]
    store, load = _STORE[kind], _LOAD[kind]

    @jit(name=f"round_weight_{suffix(kind)}")
    def round_weight(weight: np.float32) -> np.float32:
        return load(store(weight))

    return round_weight


def make_add_values(kind: Kind) -> Kernel:
    """``add_values(values, block, head_kv, slot, weight, totals)``: one more term of the sums over positions."""
    if is_packed(kind):
        return _packed_add_values(kind)
    load = _LOAD[kind]

    @jit(name=f"add_values_{suffix(kind)}")
    def add_values(values: Cache, block: int, head_kv: int, slot: int, weight: np.float32, totals: F64) -> None:
        """One more term of the double sums over positions, in order, of float products."""
        for d in range(values.shape[3]):
            totals[d] += np.float64(_F(load(values[block, head_kv, slot, d]) * weight))

    return add_values


def _packed_add_values(kind: Kind) -> Kernel:
    quant, size = _QUANT[kind], _type_size(kind)

    @jit(name=f"add_values_{suffix(kind)}")
    def add_values(values: U8, block: int, head_kv: int, slot: int, weight: np.float32, totals: F64) -> None:
        """As for values of float32, of ``dequantize_row``'s values."""
        row = values[block, head_kv, slot]
        for part in range(len(row) // size):
            scale = half_to_float(load_u16(row, part * size))
            for j in range(32):
                totals[part * 32 + j] += np.float64(_F(_F(quant(row, part * size, j) * scale) * weight))

    return add_values


def _make_store(kind: Kind, *, slots_last: bool) -> Kernel:
    if is_packed(kind):
        quantize_row, size = _QUANTIZE[kind], _type_size(kind)

        @jit(name=f"store_packed_{suffix(kind)}")
        def store_packed(x: F32, t: int, cache: U8, block: int, slot: int) -> None:
            n = cache.shape[3] // size * 32
            for head in range(cache.shape[1]):
                quantize_row(x[t, head * n : (head + 1) * n], cache[block, head, slot])

        return store_packed
    convert = _STORE[kind]
    if slots_last:

        @jit(name=f"store_keys_{suffix(kind)}")
        def store_keys(x: F32, t: int, cache: Cache, block: int, slot: int) -> None:
            for head in range(cache.shape[1]):
                for d in range(cache.shape[2]):
                    cache[block, head, d, slot] = convert(x[t, head * cache.shape[2] + d])

        return store_keys

    @jit(name=f"store_values_{suffix(kind)}")
    def store_values(x: F32, t: int, cache: Cache, block: int, slot: int) -> None:
        for head in range(cache.shape[1]):
            for d in range(cache.shape[3]):
                cache[block, head, slot, d] = convert(x[t, head * cache.shape[3] + d])

    return store_values


@functools.cache
def make_store_kv(keys_kind: Kind, values_kind: Kind) -> Kernel:
    """Writing keys and values to the cache; ``reference.attention.STORE_KV`` has the signature."""
    store_keys, store_values = _make_store(keys_kind, slots_last=True), _make_store(values_kind, slots_last=False)

    @jit(name=f"store_kv_{suffix(keys_kind)}_{suffix(values_kind)}")
    def store_kv(
        k: F32, v: F32, table: I64, sequence: I64, position: I64, keys: Cache, values: Cache, start: int, stop: int
    ) -> None:
        for t in range(start, stop):
            block, slot = table[sequence[t], position[t] // BLOCK], position[t] % BLOCK
            store_keys(k, t, keys, block, slot)
            store_values(v, t, values, block, slot)

    return store_kv


def store_kv_by_kind(written: Mapping[Any, Kernel]) -> ByKind:
    """Kernels for all kinds, some of which are written by hand."""
    return ByKind(written, make_store_kv, pairs=True)


REFERENCE_STORE_KV = store_kv_by_kind(STORE_KV)
