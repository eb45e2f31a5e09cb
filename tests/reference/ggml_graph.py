"""ggml operations as functions of arrays: each builds a graph of one operation and computes it with one thread.

The first argument is a build (``ggml.baseline()`` or ``ggml.packaged()``). Shapes are numpy's, the reverse of ggml's.
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import c_float, c_int, c_void_p

import numpy as np

from minillama.gguf.constants import GGMLType
from tests.reference.ggml import Ggml, Graph

ROPE_MODES = {"norm": 0, "neox": 2}
_DESCENDING = 1


def compute(build: Ggml, shape: tuple[int, ...], operation: Callable[[Graph], c_void_p]) -> np.ndarray:
    """The float32 values of the tensor that ``operation`` puts into a new graph."""
    with build.graph() as g:
        return g.compute(operation(g), shape)


def unary(build: Ggml, name: str, x: np.ndarray) -> np.ndarray:
    """``ggml_silu``, ``ggml_tanh``, ... of an array."""
    return compute(build, x.shape, lambda g: getattr(g, name)(g.tensor(x)))


def binary(build: Ggml, name: str, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """``ggml_add``, ``ggml_geglu_split``, ... of two arrays."""
    return compute(build, x.shape, lambda g: getattr(g, name)(g.tensor(x), g.tensor(y)))


def normalized(build: Ggml, name: str, x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    """``ggml_norm`` or ``ggml_rms_norm``, and the product with the weight."""
    return compute(build, x.shape, lambda g: g.mul(getattr(g, name)(g.tensor(x), c_float(eps)), g.tensor(weight)))


def scale(build: Ggml, x: np.ndarray, factor: float, bias: float) -> np.ndarray:
    """``ggml_scale_bias``."""
    return compute(build, x.shape, lambda g: g.scale_bias(g.tensor(x), c_float(factor), c_float(bias)))


def softcap(build: Ggml, x: np.ndarray, cap: np.float32) -> np.ndarray:
    """Scale, tanh, scale, as llama.cpp caps scores and logits."""
    inverse = c_float(np.float32(1) / cap)
    return compute(build, x.shape, lambda g: g.scale(g.tanh(g.scale(g.tensor(x), inverse)), c_float(cap)))


def swiglu_oai(build: Ggml, gate: np.ndarray, up: np.ndarray, alpha: float, limit: float) -> np.ndarray:
    """``ggml_swiglu_oai``."""
    return compute(
        build, gate.shape, lambda g: g.swiglu_oai(g.tensor(gate), g.tensor(up), c_float(alpha), c_float(limit))
    )


def rope(
    build: Ggml, x: np.ndarray, positions: np.ndarray, mode: str, n_rot: int, factors: np.ndarray | None,
    n_ctx_orig: int, base: float, freq_scale: float, ext: float, attn: float, beta_fast: float, beta_slow: float,
) -> np.ndarray:  # fmt: skip
    """``ggml_rope_ext`` of [n_tokens, n_head, head_dim]."""
    integers = c_int(n_rot), c_int(ROPE_MODES[mode]), c_int(n_ctx_orig)
    floats = [c_float(v) for v in (base, freq_scale, ext, attn, beta_fast, beta_slow)]
    return compute(
        build,
        x.shape,
        lambda g: g.rope_ext(
            g.tensor(x), g.tensor(positions.astype(np.int32)), None if factors is None else g.tensor(factors),
            *integers, *floats,
        ),
    )  # fmt: skip


def _optional(g: Graph, array: np.ndarray) -> c_void_p | None:
    return g.tensor(array) if len(array) else None


def soft_max(
    build: Ggml, scores: np.ndarray, mask: np.ndarray, sinks: np.ndarray, scale: float, max_bias: float
) -> np.ndarray:
    """``ggml_soft_max_ext`` of [n_head, n_tokens, n]; an empty mask or empty sinks are none."""

    def operation(g: Graph) -> c_void_p:
        soft = g.soft_max_ext(g.tensor(scores), _optional(g, mask), c_float(scale), c_float(max_bias))
        g._library.ggml_soft_max_add_sinks(soft, _optional(g, sinks))
        return soft

    return compute(build, scores.shape, operation)


def flash_attention(
    build: Ggml, q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray, sinks: np.ndarray,
    scale: float, max_bias: float, cap: float,
) -> np.ndarray:  # fmt: skip
    """``ggml_flash_attn_ext`` of q [n_head, n_tokens, head_dim] to [n_tokens, n_head, value_dim]."""

    def operation(g: Graph) -> c_void_p:
        floats = c_float(scale), c_float(max_bias), c_float(cap)
        flash = g.flash_attn_ext(g.tensor(q), g.tensor(k), g.tensor(v), _optional(g, mask), *floats)
        g._library.ggml_flash_attn_ext_add_sinks(flash, _optional(g, sinks))
        return flash

    return compute(build, (q.shape[1], q.shape[0], v.shape[2]), operation)


def argsort(build: Ggml, x: np.ndarray, *, descending: bool) -> np.ndarray:
    """``ggml_argsort``: int32."""
    order = c_int(_DESCENDING if descending else 0)
    return compute(build, x.shape, lambda g: g.argsort(g.tensor(x), order)).view(np.int32)


def get_rows(build: Ggml, type_: GGMLType, packed: np.ndarray, n: int, ids: np.ndarray) -> np.ndarray:
    """``ggml_get_rows`` of packed rows."""
    ids = ids.astype(np.int32)
    return compute(build, (len(ids), n), lambda g: g.get_rows(g.packed(type_, packed, n), g.tensor(ids)))


def mul_mat(build: Ggml, type_: GGMLType, packed: np.ndarray, x: np.ndarray) -> np.ndarray:
    """``ggml_mul_mat`` of packed rows and float32 rows, the conversion of these included."""
    shape = len(x), len(packed)
    return compute(build, shape, lambda g: g.mul_mat(g.packed(type_, packed, x.shape[1]), g.tensor(x)))


def mul_mat_id(build: Ggml, type_: GGMLType, packed: np.ndarray, x: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """``ggml_mul_mat_id`` of [n_expert, n_rows, row_bytes] and float32 [n_tokens, n_used or 1, n]."""
    weight = (*packed.shape[:2], x.shape[-1])
    return compute(
        build,
        (*ids.shape, packed.shape[1]),
        lambda g: g.mul_mat_id(g._new_tensor(type_, weight, packed), g.tensor(x), g.tensor(ids)),
    )
