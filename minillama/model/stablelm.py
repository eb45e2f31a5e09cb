"""The stablelm family: LayerNorms with biases, partial rotation.

StableLM 2 12B has norms of heads and a parallel residual.

T is the number of tokens in the batch, d the size of a head. Names are those of the GGUF tensors and of llama.cpp's
graph.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from minillama.kernels.types import F32
from minillama.model.config import ModelConfig
from minillama.model.feed_forward import Gated, bind_gated, gated
from minillama.model.rotary import frequency_factors, rotary
from minillama.model.weights import Binder, bind_fields
from minillama.runtime.batch import Batch
from minillama.runtime.operations import Operations
from minillama.runtime.packed import PackedMatrix


@dataclass(frozen=True)
class StableLMLayer:
    """Weights of one layer: ``blk.N.<field>.weight``, and ``blk.N.<field>.bias`` where there is one.

    ``attn_q_norm`` is [n_head, d], a row for each head, ``attn_k_norm`` likewise. Without ``ffn_norm`` the residual is
    parallel.
    """

    attn_norm: F32
    attn_norm_bias: F32
    attn_q: PackedMatrix
    attn_k: PackedMatrix
    attn_v: PackedMatrix
    attn_output: PackedMatrix
    ffn: Gated
    attn_q_norm: F32 | None
    attn_k_norm: F32 | None
    ffn_norm: F32 | None = None
    ffn_norm_bias: F32 | None = None
    attn_q_bias: F32 | None = None
    attn_k_bias: F32 | None = None
    attn_v_bias: F32 | None = None


@dataclass(frozen=True)
class StableLMWeights:
    """Weights of the model."""

    token_embd: PackedMatrix
    factors: F32
    blk: tuple[StableLMLayer, ...]
    output_norm: F32
    output_norm_bias: F32
    output: PackedMatrix


def bind(binder: Binder, config: ModelConfig, n_ctx: int) -> StableLMWeights:
    """Find all weights and check their shapes."""
    embedding = (config.n_vocab, config.n_embd)
    weights = bind_fields(
        binder, StableLMWeights, "", {"output_norm": (config.n_embd,), "token_embd": embedding, "output": embedding},
        factors=frequency_factors(binder, config, n_ctx),
        blk=tuple(_bind_layer(binder, config, i) for i in range(config.n_layer)),
    )  # fmt: skip
    binder.finish()
    return weights


def _bind_layer(binder: Binder, config: ModelConfig, i: int) -> StableLMLayer:
    n_embd, d = config.n_embd, config.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "attn_norm": (n_embd,),
        "attn_q": (config.n_head * d, n_embd),
        "attn_k": (config.n_head_kv * d, n_embd),
        "attn_v": (config.n_head_kv * d, n_embd),
        "attn_output": (n_embd, config.n_head * d),
        "ffn_norm": (n_embd,),
    }
    found = {
        "attn_q_norm": _head_norm(binder, f"blk.{i}.attn_q_norm.weight", (config.n_head, d)),
        "attn_k_norm": _head_norm(binder, f"blk.{i}.attn_k_norm.weight", (config.n_head_kv, d)),
    }
    ffn = bind_gated(binder, config, i)
    return bind_fields(binder, StableLMLayer, f"blk.{i}.", shapes, ffn=ffn, **found)  # type: ignore[arg-type]


def _head_norm(binder: Binder, name: str, shape: tuple[int, int]) -> F32 | None:
    return binder.values(name, shape) if binder.has(name) else None


def forward(ops: Operations, w: StableLMWeights, config: ModelConfig, batch: Batch) -> F32:
    """Logits of the batch's outputs, float32 [n_outputs, n_vocab]; keys and values go to the batch's cache blocks."""
    n_head, n_head_kv, eps = config.n_head, config.n_head_kv, config.norm_eps
    angles = ops.rope_table(batch.position, rotary(config, w.factors))  # [T, n_rot / 2, 2]
    x = ops.get_rows(w.token_embd, batch.ids, name="token_embd")  # [T, n_embd]
    for i, blk in enumerate(w.blk):
        with ops.block(i):
            h = ops.layer_norm(x, blk.attn_norm, blk.attn_norm_bias, eps, name="attn_norm")  # [T, n_embd]
            q = ops.linear(h, blk.attn_q, blk.attn_q_bias, name="q")  # [T, n_head * d]
            k = ops.linear(h, blk.attn_k, blk.attn_k_bias, name="k")  # [T, n_head_kv * d]
            v = ops.linear(h, blk.attn_v, blk.attn_v_bias, name="v")  # [T, n_head_kv * d]
            if blk.attn_q_norm is not None:
                q = _norm_heads(ops, q, blk.attn_q_norm, eps, "q_norm")  # [T, n_head * d]
            if blk.attn_k_norm is not None:
                k = _norm_heads(ops, k, blk.attn_k_norm, eps, "k_norm")  # [T, n_head_kv * d]
            q = ops.rope(q, angles, n_head, "neox", name="q_rope")  # [T, n_head * d]
            k = ops.rope(k, angles, n_head_kv, "neox", name="k_rope")  # [T, n_head_kv * d]
            kqv = ops.attention(q, k, v, batch, i, n_head, config.kq_scale, name="kqv")  # [T, n_head * d]
            attn_out = ops.mul_mat(kqv, blk.attn_output, name="attn_out")  # [T, n_embd]
            if i == len(w.blk) - 1:  # nothing looks back any more: go on with the tokens whose logits are wanted
                attn_out = ops.select_rows(attn_out, batch.outputs, name="attn_out_selected")  # [n_outputs, n_embd]
                h = ops.select_rows(h, batch.outputs, name="attn_norm_selected")  # [n_outputs, n_embd]
                x = ops.select_rows(x, batch.outputs, name="inp_selected")  # [n_outputs, n_embd]
            x = ops.add(attn_out, x, name="ffn_inp")  # [T, n_embd]
            if blk.ffn_norm is not None:  # otherwise the input is attention's
                h = ops.layer_norm(x, blk.ffn_norm, blk.ffn_norm_bias, eps, name="ffn_norm")  # [T, n_embd]
            x = ops.add(gated(ops, blk.ffn, h, "silu"), x, name="l_out")  # [T, n_embd]
    x = ops.layer_norm(x, w.output_norm, w.output_norm_bias, eps, name="result_norm")  # [n_outputs, n_embd]
    return ops.mul_mat(x, w.output, name="result_output")  # [n_outputs, n_vocab]


def _norm_heads(ops: Operations, x: F32, weight: F32, eps: float, name: str) -> F32:
    """LayerNorm of every head, times the head's row of ``weight``."""
    normed = ops.layer_norm(x, np.ones(weight.shape[1], np.float32), None, eps, name=f"{name}_no_weight")  # as x
    return ops.mul_row(normed, weight.reshape(-1), name=name)  # as x
