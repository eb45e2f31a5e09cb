"""The olmo2 family (OLMo 2 and 3): norms after attention and feed-forward network, of all heads of queries and keys.

T is the number of tokens in the batch, d the size of a head. Names are those of the GGUF tensors and of llama.cpp's
graph.
"""

from __future__ import annotations

from dataclasses import dataclass

from minillama.kernels.types import F32
from minillama.model.config import ModelConfig
from minillama.model.feed_forward import Gated, bind_gated, gated
from minillama.model.rotary import frequency_factors, rotary, rotary_plain
from minillama.model.weights import Binder, bind_fields
from minillama.runtime.batch import Batch
from minillama.runtime.operations import Operations
from minillama.runtime.packed import PackedMatrix


@dataclass(frozen=True)
class Olmo2Layer:
    """Weights of one layer: ``blk.N.<field>.weight``, and ``blk.N.<field>.bias`` where there is one."""

    attn_q: PackedMatrix
    attn_k: PackedMatrix
    attn_v: PackedMatrix
    attn_q_norm: F32
    attn_k_norm: F32
    attn_output: PackedMatrix
    post_attention_norm: F32
    ffn: Gated
    post_ffw_norm: F32
    attn_q_bias: F32 | None = None
    attn_k_bias: F32 | None = None
    attn_v_bias: F32 | None = None


@dataclass(frozen=True)
class Olmo2Weights:
    """Weights of the model."""

    token_embd: PackedMatrix
    factors: F32
    blk: tuple[Olmo2Layer, ...]
    output_norm: F32
    output: PackedMatrix


def bind(binder: Binder, config: ModelConfig, n_ctx: int) -> Olmo2Weights:
    """Find all weights and check their shapes."""
    embedding = (config.n_vocab, config.n_embd)
    weights = Olmo2Weights(
        token_embd=binder.matrix("token_embd.weight", embedding),
        factors=frequency_factors(binder, config, n_ctx),
        blk=tuple(_bind_layer(binder, config, i) for i in range(config.n_layer)),
        output_norm=binder.vector("output_norm.weight", config.n_embd),
        output=binder.matrix("output.weight", embedding),
    )
    binder.finish()
    return weights


def _bind_layer(binder: Binder, config: ModelConfig, i: int) -> Olmo2Layer:
    n_embd, n_q, n_kv = config.n_embd, config.n_head * config.head_dim, config.n_head_kv * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "attn_q": (n_q, n_embd),
        "attn_k": (n_kv, n_embd),
        "attn_v": (n_kv, n_embd),
        "attn_q_norm": (n_q,),
        "attn_k_norm": (n_kv,),
        "attn_output": (n_embd, n_q),
        "post_attention_norm": (n_embd,),
        "post_ffw_norm": (n_embd,),
    }
    return bind_fields(binder, Olmo2Layer, f"blk.{i}.", shapes, ffn=bind_gated(binder, config, i))


def forward(ops: Operations, w: Olmo2Weights, config: ModelConfig, batch: Batch) -> F32:
    """Logits of the batch's outputs, float32 [n_outputs, n_vocab]; keys and values go to the batch's cache blocks."""
    n_head, n_head_kv, eps = config.n_head, config.n_head_kv, config.norm_eps
    angles = ops.rope_table(batch.position, rotary(config, w.factors))  # [T, n_rot / 2, 2]
    # Layers with a window were trained before the context was stretched.
    angles_swa = ops.rope_table(batch.position, rotary_plain(config, w.factors))  # [T, n_rot / 2, 2]
    x = ops.get_rows(w.token_embd, batch.ids, name="token_embd")  # [T, n_embd]
    for i, blk in enumerate(w.blk):
        window = config.window(i)
        with ops.block(i):
            q = ops.linear(x, blk.attn_q, blk.attn_q_bias, name="q")  # [T, n_head * d]
            k = ops.linear(x, blk.attn_k, blk.attn_k_bias, name="k")  # [T, n_head_kv * d]
            v = ops.linear(x, blk.attn_v, blk.attn_v_bias, name="v")  # [T, n_head_kv * d]
            q = ops.rms_norm(q, blk.attn_q_norm, eps, name="q_norm")  # [T, n_head * d]
            k = ops.rms_norm(k, blk.attn_k_norm, eps, name="k_norm")  # [T, n_head_kv * d]
            table = angles_swa if window else angles  # [T, n_rot / 2, 2]
            q = ops.rope(q, table, n_head, "neox", name="q_rope")  # [T, n_head * d]
            k = ops.rope(k, table, n_head_kv, "neox", name="k_rope")  # [T, n_head_kv * d]
            kqv = ops.attention(
                q, k, v, batch, i, n_head, config.kq_scale, name="kqv", window=window
            )  # [T, n_head * d]
            attn_out = ops.mul_mat(kqv, blk.attn_output, name="attn_out")  # [T, n_embd]
            if i == len(w.blk) - 1:  # nothing looks back any more: go on with the tokens whose logits are wanted
                attn_out = ops.select_rows(attn_out, batch.outputs, name="attn_out_selected")  # [n_outputs, n_embd]
                x = ops.select_rows(x, batch.outputs, name="inp_selected")  # [n_outputs, n_embd]
            attn_out = ops.rms_norm(attn_out, blk.post_attention_norm, eps, name="attn_post_norm")  # [T, n_embd]
            x = ops.add(attn_out, x, name="ffn_inp")  # [T, n_embd]
            ffn_out = gated(ops, blk.ffn, x, "silu")  # [T, n_embd]
            ffn_out = ops.rms_norm(ffn_out, blk.post_ffw_norm, eps, name="ffn_post_norm")  # [T, n_embd]
            x = ops.add(ffn_out, x, name="l_out")  # [T, n_embd]
    x = ops.rms_norm(x, w.output_norm, eps, name="result_norm")  # [n_outputs, n_embd]
    return ops.mul_mat(x, w.output, name="result_output")  # [n_outputs, n_vocab]
