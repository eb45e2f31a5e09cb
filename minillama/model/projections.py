"""Queries, keys and values, from three matrices or from one."""

from __future__ import annotations

from dataclasses import dataclass

from minillama.kernels.types import F32
from minillama.model.config import ModelConfig
from minillama.model.weights import Binder, bind_fields
from minillama.runtime.operations import Operations
from minillama.runtime.packed import PackedMatrix


@dataclass(frozen=True)
class Projections:
    """Weights: ``blk.N.attn_qkv``, or ``attn_q``, ``attn_k`` and ``attn_v``."""

    attn_qkv: PackedMatrix | None = None
    attn_qkv_bias: F32 | None = None
    attn_q: PackedMatrix | None = None
    attn_q_bias: F32 | None = None
    attn_k: PackedMatrix | None = None
    attn_k_bias: F32 | None = None
    attn_v: PackedMatrix | None = None
    attn_v_bias: F32 | None = None


def bind_projections(binder: Binder, config: ModelConfig, i: int, *, fused: bool) -> Projections:
    """The projections of layer ``i``."""
    n_q, n_kv, n_embd = config.n_head * config.head_dim, config.n_head_kv * config.head_dim, config.n_embd
    shapes: dict[str, tuple[int, ...]] = {"attn_q": (n_q, n_embd), "attn_k": (n_kv, n_embd), "attn_v": (n_kv, n_embd)}
    if fused:
        shapes = {"attn_qkv": (n_q + 2 * n_kv, n_embd)}
    return bind_fields(binder, Projections, f"blk.{i}.", shapes, required=tuple(shapes))


def project(ops: Operations, w: Projections, h: F32, config: ModelConfig) -> tuple[F32, F32, F32]:
    """Queries, keys and values: float32 [T, n_head * d], [T, n_head_kv * d] and the same."""
    n_q, n_kv = config.n_head * config.head_dim, config.n_head_kv * config.head_dim
    if w.attn_q is not None and w.attn_k is not None and w.attn_v is not None:
        q = ops.linear(h, w.attn_q, w.attn_q_bias, name="q")  # [T, n_head * d]
        k = ops.linear(h, w.attn_k, w.attn_k_bias, name="k")  # [T, n_head_kv * d]
        v = ops.linear(h, w.attn_v, w.attn_v_bias, name="v")  # [T, n_head_kv * d]
        return q, k, v
    assert w.attn_qkv is not None  # one or the other is required when weights are bound
    qkv = ops.linear(h, w.attn_qkv, w.attn_qkv_bias, name="wqkv")  # [T, (n_head + 2 * n_head_kv) * d]
    q = ops.columns(qkv, 0, n_q, name="q")  # [T, n_head * d]
    k = ops.columns(qkv, n_q, n_kv, name="k")  # [T, n_head_kv * d]
    v = ops.columns(qkv, n_q + n_kv, n_kv, name="v")  # [T, n_head_kv * d]
    return q, k, v
