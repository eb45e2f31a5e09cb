"""Softmax, flash attention, sorting and matrix products beside ggml's."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from minillama.gguf.constants import GGMLType
from minillama.kernels.layouts import LAYOUTS, WEIGHT_TYPES
from minillama.kernels.reference.experts import MUL_MAT_ID
from minillama.kernels.reference.flash_attention import FLASH_ATTENTION
from minillama.kernels.reference.softmax import SOFT_MAX_EXT
from minillama.kernels.reference.sorting import argsort
from minillama.kernels.registry import kernel_set
from minillama.kernels.scratch import DOT_BYTES
from tests.reference import ggml, ggml_graph
from tests.reference.operation import SIZES, Arguments, Array, Operation, rows
from tests.reference.pointwise_operations import EIGHT_LANES
from tests.unit.kernels import kernel_inputs as inputs
from tests.unit.kernels import oracles
from tests.unit.kernels.deep_sort import ASCENDING

KERNELS = kernel_set("reference")
PRODUCT_TYPES = tuple(GGMLType[name] for name in ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_K", "Q6_K"))
NOTHING = np.empty(0, np.float32)
FLOAT_DOTS = "dots are float32 sums in lanes"


def _masks(n_tokens: int, n: int, rng: np.random.Generator) -> Iterator[Array]:
    """None, causal, random with everything masked but one position, biases."""
    yield NOTHING
    yield np.where(np.arange(n)[None] <= np.arange(n_tokens)[:, None] + n // 2, 0, -np.inf).astype(np.float32)
    mask = np.full((n_tokens, n), -np.inf, np.float32)
    mask[np.arange(n_tokens), rng.integers(0, n, n_tokens)] = 0
    yield mask
    yield -rng.integers(0, 50, (n_tokens, n)).astype(np.float32)


def _bits(mask: Array, dtype: type) -> Array:
    """A mask as the kernel takes it: halves by their bits."""
    return mask.astype(np.float16).view(np.uint16).reshape(mask.shape) if dtype is np.uint16 else mask


def _soft_max_cases(name: str, *, sinks: bool, max_bias: float) -> Iterator[Arguments]:
    for kind in ("normal", "heavy", "moderate", "tiny", "zero", "huge"):
        for n in SIZES:
            n_head, n_tokens = (2, 3) if max_bias == 0 else (6, 2)
            rng = inputs.generator(name, kind, n)
            scores = rows(kind, n_head * n_tokens, n, rng).reshape(n_head, n_tokens, n)
            sink = (rng.standard_normal(n_head) * 3).astype(np.float32) if sinks else NOTHING
            for mask in _masks(n_tokens, n, rng):
                if len(mask) or not max_bias:
                    yield scores, mask, sink, np.float32(0.3), np.float32(max_bias)


def _soft_maxes() -> Iterator[Operation]:
    for name, sinks, max_bias in (("soft_max", False, 0), ("soft_max, sinks", True, 0), ("soft_max, ALiBi", False, 8)):
        for dtype in (np.float32, np.uint16):

            def ours(scores: Array, mask: Array, sink: Array, *rest: Any, dtype: type = dtype) -> Array:
                out = np.full_like(scores, 12345.0)
                n_rows = len(scores) * scores.shape[1]
                mask = _bits(mask, dtype) if len(mask) else np.empty((0, 0), dtype)
                SOFT_MAX_EXT[np.dtype(dtype)](scores, mask, sink, *rest, out, 0, n_rows)
                return out

            def theirs(build: ggml.Ggml, scores: Array, mask: Array, *rest: Any, dtype: type = dtype) -> Array:
                mask = mask.astype(np.float16) if dtype is np.uint16 else mask
                return ggml_graph.soft_max(build, scores, mask, *rest)

            yield Operation(
                f"{name}, mask {'f16' if dtype is np.uint16 else 'f32'}",
                partial(_soft_max_cases, name, sinks=sinks, max_bias=max_bias),
                ours, theirs, oracles.soft_max, 2, EIGHT_LANES,
            )  # fmt: skip


FLASH_OPTIONS = {
    # sinks, max_bias, cap
    "": (False, 0.0, 0.0),
    ", softcap": (False, 0.0, 20.0),
    ", sinks": (True, 0.0, 0.0),
    ", ALiBi": (False, 8.0, 0.0),
}


OLDER = "the packaged library is an older ggml, whose prompts are not computed in tiles of this kind"
FLASH_BOUNDS: dict[tuple[type, str], tuple[float, str]] = {
    (np.float32, "by position"): (64, FLOAT_DOTS),
    (np.float32, "by tile"): (1024, OLDER),
    (np.float16, "by position"): (2.0**14, f"{FLOAT_DOTS}, and output is kept in half, whose ulp is 2^13 of these"),
    (np.float16, "by tile"): (2.0**17, OLDER),
}


def _flash_cases(dtype: type, n_tokens: tuple[int, ...], option: str) -> Iterator[Arguments]:
    sinks, max_bias, cap = FLASH_OPTIONS[option]
    for t in n_tokens:
        for n in (1, 7, 64, 65, 130, 520):
            for head_dim, value_dim in ((8, 8), (33, 18)):
                rng = inputs.generator("flash", t, n, head_dim, option)
                q = rows("normal", 6 * t, head_dim, rng).reshape(6, t, head_dim)
                k, v = (rows("normal", 3 * n, d, rng).reshape(3, n, d).astype(dtype) for d in (head_dim, value_dim))
                sink = (rng.standard_normal(6) * 2).astype(np.float32) if sinks else NOTHING
                for mask in _masks(t, n, rng):
                    if len(mask) or not max_bias:
                        yield q, k, v, mask, sink, np.float32(0.4), np.float32(max_bias), np.float32(cap)


def _flash_ours(q: Array, k: Array, v: Array, mask: Array, *rest: Any) -> Array:
    out = np.full((q.shape[1], len(q), v.shape[2]), 12345.0, np.float32)
    mask = _bits(mask, np.uint16) if len(mask) else np.empty((0, 0), np.uint16)
    if k.dtype == np.float16:
        k, v = k.view(np.uint16), v.view(np.uint16)
    FLASH_ATTENTION[k.dtype](q, k, v, mask, *rest, out, 0, len(q) * q.shape[1])
    return out


def _flash_attentions() -> Iterator[Operation]:
    for dtype in (np.float32, np.float16):
        for way, n_tokens in (("by position", (1, 3, 63)), ("by tile", (64, 70))):
            for option in FLASH_OPTIONS:
                yield Operation(
                    f"flash_attention {'f32' if dtype is np.float32 else 'f16'} {way}{option}",
                    partial(_flash_cases, dtype, n_tokens, option), _flash_ours,
                    lambda build, q, k, v, mask, *rest: ggml_graph.flash_attention(
                        build, q, k, v, mask.astype(np.float16), *rest
                    ),
                    oracles.attention, *FLASH_BOUNDS[dtype, way],
                )  # fmt: skip


def _argsort_cases(descending: bool) -> Iterator[Arguments]:
    for n in (*SIZES, 300, 1000):
        rng = inputs.generator("argsort", n)
        for distinct in (1, 2, 5, n, 100 * n):
            yield rng.integers(0, distinct, (3, n)).astype(np.float32), descending
        yield np.sort(rng.standard_normal((2, n)).astype(np.float32)), descending
    deep = np.where(descending, -ASCENDING, ASCENDING)
    yield np.stack([deep, deep // 2, deep // 4]), descending  # the others with equal values in the heap


def _argsort_ours(x: Array, descending: bool) -> Array:
    out = np.full(x.shape, -1, np.int32)
    argsort(x, descending, out, 0, len(x))
    return out


def _sorts() -> Iterator[Operation]:
    for descending in (False, True):
        yield Operation(
            f"argsort, {'descending' if descending else 'ascending'}", partial(_argsort_cases, descending),
            _argsort_ours, lambda build, x, descending: ggml_graph.argsort(build, x, descending=descending), None,
        )  # fmt: skip


def _product_cases(type_: GGMLType, kinds: tuple[str, ...]) -> Iterator[tuple[Array, Array, np.random.Generator]]:
    block = LAYOUTS[type_].block_size
    for kind in kinds:
        for n in SIZES if block == 1 else (block, 3 * block, 1024 if block == 32 else 2048):
            rng = inputs.generator("product", type_.name, kind, n)
            yield inputs.packed_rows(type_, 7, n, rng), inputs.input_rows(kind, 5, n, rng), rng


def _decoded(type_: GGMLType, packed: Array, n: int) -> Array:
    """Values of packed weight rows, or of converted rows."""
    layout = LAYOUTS[type_]
    if type_ in WEIGHT_TYPES:
        return inputs.get_rows(KERNELS, type_, packed, n).astype(np.float64)
    blocks = packed.reshape(len(packed), -1, layout.type_size)
    fields = {name: blocks[:, :, layout.offset(name) :][:, :, :size].copy() for name, size in layout.fields}
    d = fields["d"].view(np.float32 if fields["d"].shape[2] == 4 else np.float16)
    return (fields["qs"].view(np.int8) * d.astype(np.float64)).reshape(len(packed), n)


def _converted(type_: GGMLType, x: Array) -> Array:
    """What ``mul_mat`` multiplies by, as values: products are judged by their own roundings only."""
    activation = LAYOUTS[type_].activation
    return _decoded(activation, inputs.quantize(KERNELS, activation, x), x.shape[1])


def _mul_mat_id_oracle(type_: GGMLType, packed: Array, x: Array, ids: Array) -> Array:
    weights = np.stack([_decoded(type_, expert, x.shape[2]) for expert in packed])
    values = np.broadcast_to(np.stack([_converted(type_, row) for row in x]), (*ids.shape, x.shape[2]))
    return np.einsum("tirk,tik->tir", weights[ids], values)


def _products() -> Iterator[Operation]:
    kinds = ("normal", "heavy", "tiny", "zero", "one_hot")
    for type_ in PRODUCT_TYPES:
        activation = LAYOUTS[type_].activation

        def cases(type_: GGMLType = type_) -> Iterator[Arguments]:
            for packed, x, _ in _product_cases(type_, kinds):
                yield type_, packed, x

        def ours(type_: GGMLType, packed: Array, x: Array, activation: Any = activation) -> Array:
            converted = inputs.quantize(KERNELS, activation, x)
            return inputs.mul_mat(KERNELS, type_, packed, converted, x.shape[1])

        yield Operation(
            f"mul_mat {type_.name}", cases, ours, ggml_graph.mul_mat,
            lambda type_, packed, x: _converted(type_, x) @ _decoded(type_, packed, x.shape[1]).T,
            16, FLOAT_DOTS,
        )  # fmt: skip

        def id_cases(type_: GGMLType = type_) -> Iterator[Arguments]:
            for packed, x, rng in _product_cases(type_, kinds[:2]):
                experts = np.stack([np.roll(packed, i, 0) for i in range(4)])
                ids = np.array([rng.permutation(4)[:2] for _ in x], np.int32)
                yield type_, experts, x[:, None], ids
                yield type_, experts, np.stack([x, x[::-1]], 1), ids

        def id_ours(type_: GGMLType, packed: Array, x: Array, ids: Array, activation: Any = activation) -> Array:
            converted = inputs.quantize(KERNELS, activation, x.reshape(-1, x.shape[2]))
            out = np.full((*ids.shape, packed.shape[1]), 12345.0, np.float32)
            scratch = np.full(DOT_BYTES, 0xA5, np.uint8)
            MUL_MAT_ID[type_](
                packed, converted.reshape(*x.shape[:2], -1), ids, x.shape[2], out, scratch, 0, packed.shape[1]
            )
            return out

        yield Operation(
            f"mul_mat_id {type_.name}", id_cases, id_ours, ggml_graph.mul_mat_id,
            _mul_mat_id_oracle, 16, FLOAT_DOTS,
        )  # fmt: skip


def _rows_of_weights() -> Iterator[Operation]:
    for type_ in PRODUCT_TYPES:

        def cases(type_: GGMLType = type_) -> Iterator[Arguments]:
            for packed, x, rng in _product_cases(type_, ("normal",)):
                yield type_, packed, x.shape[1], rng.integers(0, len(packed), 9)

        yield Operation(
            f"get_rows {type_.name}", cases,
            lambda type_, packed, n, ids: inputs.get_rows(KERNELS, type_, packed, n, ids),
            ggml_graph.get_rows, None,
        )  # fmt: skip


def operations() -> Iterator[Operation]:
    """All of them."""
    for group in (_soft_maxes, _flash_attentions, _sorts, _products, _rows_of_weights):
        yield from group()
