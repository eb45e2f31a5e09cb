"""Caches of every kind: what is stored, and attention to it, from the definitions of the types."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
from kernel_inputs import assert_same_bits, generator

from minillama.gguf.constants import GGMLType
from minillama.kernels.layouts import LAYOUTS
from minillama.kernels.reference.attention import BLOCK
from minillama.kernels.reference.attention_window import soft_max_window
from minillama.kernels.reference.dot import DOT
from minillama.kernels.reference.hadamard import hadamard
from minillama.kernels.reference.quantize import QUANTIZE
from minillama.kernels.registry import BACKENDS, kernel_set
from minillama.kernels.scratch import DOT_BYTES
from minillama.runtime.kv_format import KV_TYPES, KVFormat, bytes_per_value, kv_types

N_HEAD, N_HEAD_KV, DIM, LENGTH = 4, 2, 64, 100
SCALE = np.float32(0.125)
NO_SINKS = np.zeros(0, np.float32)
TYPES = pytest.mark.parametrize("type_", KV_TYPES.values(), ids=KV_TYPES)
BACKEND = pytest.mark.parametrize("backend", BACKENDS)


@dataclass
class Case:
    """One sequence in two blocks of three, in reverse."""

    keys_type: GGMLType
    values_type: GGMLType
    backend: str = "reference"

    def __post_init__(self) -> None:
        rng = generator("kinds")
        self.kernels = kernel_set(self.backend)
        self.k, self.v, self.q = (
            rng.standard_normal((n, heads * DIM)).astype(np.float32)
            for n, heads in ((LENGTH, N_HEAD_KV), (LENGTH, N_HEAD_KV), (3, N_HEAD))
        )
        self.formats = KVFormat(self.keys_type, is_keys=True), KVFormat(self.values_type, is_keys=False)
        kinds = tuple(format_.kind for format_ in self.formats)
        self.kind = kinds[0] if kinds[0] == kinds[1] else kinds
        self.keys, self.values = (np.zeros((3, *f.shape(N_HEAD_KV, DIM)), f.dtype) for f in self.formats)
        self.table, self.position = np.array([[2, 0]]), np.array([LENGTH - 1, 63, 70])
        place = self.table, np.zeros(LENGTH, np.int64), np.arange(LENGTH)
        for first, last in pairwise((0, 1, 30, LENGTH)):
            self.kernels.store_kv[self.kind](self.k, self.v, *place, self.keys, self.values, first, last)

    def held(self) -> tuple[np.ndarray, np.ndarray]:
        """Keys and values as they are stored, position by position."""
        arrays = zip(self.formats, (self.keys, self.values), strict=True)
        keys, values = (format_.rows(array[self.table[0]])[:LENGTH] for format_, array in arrays)
        return keys, values

    def attend(self, window: int = 0, cap: float = 0.0, items: tuple[int, int] = (0, 3 * N_HEAD)) -> np.ndarray:
        out = np.full((3, N_HEAD * DIM), 12345.0, np.float32)
        scratch = np.full(4 * 2 * BLOCK + 8 * BLOCK, 0xA5, np.uint8)
        place = self.table, np.zeros(3, np.int64), self.position
        limits = window, np.float32(cap), NO_SINKS
        self.kernels.attention_of_any_kind[self.kind](
            self.q, self.keys, self.values, *place, N_HEAD, SCALE, *limits, out, scratch, *items
        )
        return out


@TYPES
@BACKEND
def test_rows_are_stored_as_ggml_quantizes_them(type_: GGMLType, backend: str) -> None:
    case = Case(type_, type_, backend)
    for held, x, format_ in zip(case.held(), (case.k, case.v), case.formats, strict=True):
        want = format_.encode(x.reshape(LENGTH, N_HEAD_KV, DIM))
        np.testing.assert_array_equal(held, want)
        assert want.nbytes == LENGTH * N_HEAD_KV * LAYOUTS[type_].row_bytes(DIM)


@TYPES
@pytest.mark.parametrize("is_keys", [True, False])
def test_blocks_and_rows(type_: GGMLType, is_keys: bool) -> None:
    format_ = KVFormat(type_, is_keys)
    rows = format_.encode(generator("rows").standard_normal((70, 2, 64)).astype(np.float32))
    blocks = format_.blocks(rows)
    assert blocks.shape == (2, *format_.shape(2, 64))
    np.testing.assert_array_equal(format_.rows(blocks)[:70], rows)
    assert not format_.rows(blocks)[70:].any()
    np.testing.assert_array_equal(format_.encode(format_.decode(rows)), rows)


def scores_from_definition(case: Case) -> np.ndarray:
    """Dots of every key with every query, both as the type's dot takes them: [3, N_HEAD, LENGTH]."""
    type_, scratch = case.keys_type, np.empty(DOT_BYTES, np.uint8)
    activation = LAYOUTS[type_].activation
    queries = case.q.reshape(-1, DIM)
    converted = np.empty((len(queries), LAYOUTS[activation].row_bytes(DIM)), np.uint8)
    QUANTIZE[activation](queries, converted, 0, len(queries))
    keys = np.ascontiguousarray(case.held()[0]).view(np.uint8).reshape(LENGTH, N_HEAD_KV, -1)
    out = np.empty((3, N_HEAD, LENGTH), np.float32)
    for t, head, j in np.ndindex(out.shape):
        key = keys[j, head // (N_HEAD // N_HEAD_KV)]
        out[t, head, j] = DOT[type_](key, converted[t * N_HEAD + head], DIM, scratch)
    return out


@TYPES
@BACKEND
@pytest.mark.parametrize(("window", "cap"), [(0, 0.0), (9, 0.0), (66, 2.0)])
def test_attention_from_the_definition(type_: GGMLType, backend: str, window: int, cap: float) -> None:
    """Double sums of float products of the values as they are decoded; packed values take weights as they are."""
    case = Case(type_, type_, backend)
    scores, values = scores_from_definition(case), case.formats[1].decode(case.held()[1])
    got = case.attend(window, cap).reshape(3, N_HEAD, DIM)
    if cap:
        return  # the cap is the window kernel's own, and tested there; here that it does not break anything
    for t, head in np.ndindex(3, N_HEAD):
        end = int(case.position[t]) + 1
        begin = max(0, end - window) if window else 0
        weights = scores[t, head].copy()
        soft_max_window(weights, begin, end, SCALE, np.float32(-np.inf))
        if not case.formats[1].is_packed:
            weights = case.formats[1].decode(case.formats[1].encode(weights[:, None, None]))[:, 0, 0]
        products = values[begin:end, head // (N_HEAD // N_HEAD_KV)] * weights[begin:end, None]
        want = np.add.accumulate(products.astype(np.float64), axis=0)[-1].astype(np.float32)
        assert_same_bits(got[t, head], want, (t, head))


@BACKEND
@pytest.mark.parametrize("values", ["q8_0", "q4_0", "f16", "bf16"])
@pytest.mark.parametrize("keys", ["q8_0", "q4_0", "f32", "bf16"])
def test_keys_and_values_can_differ(keys: str, values: str, backend: str) -> None:
    """Scores are those of the keys' type, outputs those of the values', whatever the other is."""
    case = Case(KV_TYPES[keys], KV_TYPES[values], backend)
    place = case.table, np.zeros(3, np.int64), case.position
    scores, weights = (np.full((3, N_HEAD, 2 * BLOCK), 7, np.float32) for _ in range(2))
    kernels = case.kernels
    kernels.attention_scores[case.formats[0].kind](case.q, case.keys, *place, N_HEAD, scores, 0, 12)
    for t, p in enumerate(case.position):
        assert_same_bits(scores[t, :, : p + 1], scores_from_definition(case)[t, :, : p + 1])
        assert (scores[t, :, p + 1 :] == -np.inf).all()
    kernels.attention_soft_max(scores, case.position, N_HEAD, SCALE, 0, np.float32(0), NO_SINKS, weights, 0, 12)
    out = np.empty((3, N_HEAD * DIM), np.float32)
    kernels.attention_outputs[case.formats[1].kind](weights, case.values, *place, N_HEAD, out, 0, 12)
    assert_same_bits(case.attend(), out)


@TYPES
def test_items_can_be_shared_out(type_: GGMLType) -> None:
    case = Case(type_, type_)
    whole = case.attend()
    for first, last in pairwise((0, 1, 5, 12)):
        part = case.attend(items=(first, last)).reshape(12, DIM)
        assert_same_bits(part[first:last], whole.reshape(12, DIM)[first:last])
        assert (np.delete(part, np.s_[first:last], axis=0) == 12345.0).all()


@pytest.mark.parametrize("size", [64, 128])
def test_hadamard(size: int) -> None:
    matrix = np.array([[1.0]])
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    x = generator("hadamard").standard_normal((5, 256)).astype(np.float32)
    once, twice = np.full_like(x, np.nan), np.empty_like(x)
    hadamard(x, size, once, 1, 4)
    assert np.isnan(once[[0, 4]]).all()
    hadamard(x, size, once, 0, 5)
    want = x.reshape(5, -1, size).astype(np.float64) @ matrix / np.sqrt(size)
    np.testing.assert_allclose(once.reshape(want.shape), want, atol=1e-5)
    hadamard(once, size, twice, 0, 5)
    np.testing.assert_allclose(twice, x, atol=1e-5)


def test_types_are_named_alone_or_in_pairs() -> None:
    assert kv_types("f16") == ("f16", "f16")
    assert kv_types("q8_0,f32") == kv_types(("q8_0", "f32")) == ("q8_0", "f32")
    assert bytes_per_value("q8_0,f32") == (34 / 32 + 4) / 2


def test_rotations_are_those_of_llama_cpp() -> None:
    keys, values = (KVFormat(GGMLType.Q8_0, is_keys=is_keys) for is_keys in (True, False))
    assert [keys.rotation(dim) for dim in (32, 64, 96, 128, 192, 256)] == [0, 64, 0, 128, 64, 256]
    assert [values.rotation(dim) for dim in (32, 64, 96, 128, 192, 256)] == [0, 64, 0, 64, 64, 64]
    assert KVFormat(GGMLType.F16, is_keys=True).rotation(128) == 0
