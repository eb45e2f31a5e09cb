"""The llama family: a norm before attention and before the feed-forward network, both added to the residual stream.

llama itself, and as declared variations deci (layers of unequal sizes), qwen2 (biases, other pairs of rotary values),
qwen3 (norms of queries and keys), smollm3 (layers that do not rotate), granite (multipliers), and those with experts.
This is the whole model, in reading order: its weights, then its forward pass. Names are those of the GGUF tensors and
of llama.cpp's graph. T is the number of tokens in the batch, d the size of a head.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from minillama.kernels.types import F32
from minillama.model.config import ModelConfig
from minillama.model.feed_forward import Experts, Gated, bind_feed_forward, experts, gated
from minillama.model.rotary import frequency_factors, rotary
from minillama.model.weights import Binder, bind_fields, bind_output
from minillama.runtime.batch import Batch
from minillama.runtime.operations import Operations
from minillama.runtime.packed import PackedMatrix


@dataclass(frozen=True)
class LlamaLayer:
    """Weights of one layer: ``blk.N.<field>.weight``, and ``blk.N.<field>.bias`` where there is one."""

    attn_norm: F32
    attn_q: PackedMatrix
    attn_k: PackedMatrix
    attn_v: PackedMatrix
    attn_output: PackedMatrix
    ffn_norm: F32
    ffn: Gated | Experts
    attn_q_norm: F32 | None = None
    attn_k_norm: F32 | None = None
    attn_q_bias: F32 | None = None
    attn_k_bias: F32 | None = None
    attn_v_bias: F32 | None = None
    attn_output_bias: F32 | None = None


@dataclass(frozen=True)
class LlamaWeights:
    """Weights of the model. ``output`` is ``token_embd`` where the file has no head of its own."""

    token_embd: PackedMatrix
    factors: F32
    blk: tuple[LlamaLayer, ...]
    output_norm: F32
    output: PackedMatrix
    output_bias: F32 | None = None


def bind(binder: Binder, config: ModelConfig, n_ctx: int, *, qk_norm: str = "") -> LlamaWeights:
    """Find all weights and check their shapes.

    Parameters
    ----------
    binder, config
        Where the tensors are, and their sizes.
    n_ctx
        Positions a cache may hold.
    qk_norm
        Norms of queries and keys: of each ``"head"``, of the whole ``"row"``, or none.
    """
    embedding = (config.n_vocab, config.n_embd)
    token_embd = binder.matrix("token_embd.weight", embedding)
    weights = bind_fields(
        binder, LlamaWeights, "", {"output_norm": (config.n_embd,), "output": embedding},
        token_embd=token_embd,
        output=bind_output(binder, embedding, token_embd),
        factors=frequency_factors(binder, config, n_ctx),
        blk=tuple(_bind_layer(binder, config.layer(i), i, qk_norm) for i in range(config.n_layer)),
    )  # fmt: skip
    binder.finish()
    return weights


def _bind_layer(binder: Binder, config: ModelConfig, i: int, qk_norm: str) -> LlamaLayer:
    n_embd, d = config.n_embd, config.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "attn_norm": (n_embd,),
        "attn_q": (config.n_head * d, n_embd),
        "attn_k": (config.n_head_kv * d, n_embd),
        "attn_v": (config.n_head_kv * config.value_dim, n_embd),
        "attn_output": (n_embd, config.n_head * config.value_dim),
        "ffn_norm": (n_embd,),
    }
    norms = {
        "": {},
        "head": {"attn_q_norm": (d,), "attn_k_norm": (d,)},
        "row": {"attn_q_norm": (config.n_head * d,), "attn_k_norm": (config.n_head_kv * d,)},
    }[qk_norm]
    ffn = bind_feed_forward(binder, config, i)
    return bind_fields(binder, LlamaLayer, f"blk.{i}.", {**shapes, **norms}, required=tuple(norms), ffn=ffn)


def forward(
    ops: Operations, w: LlamaWeights, config: ModelConfig, batch: Batch, *, pairing: str, normalize: bool = True
) -> F32:
    """Logits of the batch's outputs, float32 [n_outputs, n_vocab]; keys and values go to the batch's cache blocks."""
    eps = config.norm_eps
    angles = ops.rope_table(batch.position, rotary(config, w.factors))  # [T, n_rot / 2, 2]
    x = ops.get_rows(w.token_embd, batch.ids, name="token_embd")  # [T, n_embd]
    if config.embedding_scale:
        x = ops.scale(x, config.embedding_scale, name="embd")  # [T, n_embd]
    for i, blk in enumerate(w.blk):
        layer = config.layer(i)
        with ops.block(i):
            h = ops.rms_norm(x, blk.attn_norm, eps, name="attn_norm")  # [T, n_embd]
            q = ops.linear(h, blk.attn_q, blk.attn_q_bias, name="q")  # [T, n_head * d]
            k = ops.linear(h, blk.attn_k, blk.attn_k_bias, name="k")  # [T, n_head_kv * d]
            v = ops.linear(h, blk.attn_v, blk.attn_v_bias, name="v")  # [T, n_head_kv * d]
            if blk.attn_q_norm is not None and blk.attn_k_norm is not None:
                q = ops.rms_norm(q, blk.attn_q_norm, eps, name="q_norm")  # [T, n_head * d]
                k = ops.rms_norm(k, blk.attn_k_norm, eps, name="k_norm")  # [T, n_head_kv * d]
            if config.rotates(i):
                q = ops.rope(q, angles, layer.n_head, pairing, name="q_rope")  # [T, n_head * d]
                k = ops.rope(k, angles, layer.n_head_kv, pairing, name="k_rope")  # [T, n_head_kv * d]
            kqv = ops.attention(q, k, v, batch, i, layer.n_head, config.kq_scale, name="kqv")  # [T, n_head * d]
            attn_out = ops.linear(kqv, blk.attn_output, blk.attn_output_bias, name="attn_out")  # [T, n_embd]
            if i == len(w.blk) - 1:  # nothing looks back any more: go on with the tokens whose logits are wanted
                attn_out = ops.select_rows(attn_out, batch.outputs, name="attn_out_selected")  # [n_outputs, n_embd]
                x = ops.select_rows(x, batch.outputs, name="inp_selected")  # [n_outputs, n_embd]
            if config.residual_scale:
                attn_out = ops.scale(attn_out, config.residual_scale, name="attn_out_scaled")  # [T, n_embd]
            x = ops.add(attn_out, x, name="ffn_inp")  # [T, n_embd]
            h = ops.rms_norm(x, blk.ffn_norm, eps, name="ffn_norm")  # [T, n_embd]
            if isinstance(blk.ffn, Experts):
                ffn_out = experts(ops, blk.ffn, h, config.n_expert_used, normalize=normalize)  # [T, n_embd]
            else:
                ffn_out = gated(ops, blk.ffn, h, "silu")  # [T, n_embd]
            if config.residual_scale:
                ffn_out = ops.scale(ffn_out, config.residual_scale, name="ffn_out_scaled")  # [T, n_embd]
            x = ops.add(ffn_out, x, name="l_out")  # [T, n_embd]
    x = ops.rms_norm(x, w.output_norm, eps, name="result_norm")  # [n_outputs, n_embd]
    if not config.logit_scale:
        return ops.linear(x, w.output, w.output_bias, name="result_output")  # [n_outputs, n_vocab]
    logits = ops.mul_mat(x, w.output, name="result_output_no_scale")  # [n_outputs, n_vocab]
    divisor = np.float32(1) / np.float32(config.logit_scale)
    return ops.scale(logits, divisor, name="result_output")  # [n_outputs, n_vocab]
