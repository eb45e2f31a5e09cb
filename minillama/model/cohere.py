"""The Cohere family: one LayerNorm without bias before attention and feed-forward network, which run side by side.

command-r, and cohere2, whose layers with a sliding window rotate while the others see everything without positions.
T is the number of tokens in the batch, d the size of a head. Names are those of the GGUF tensors and of llama.cpp's
graph.
"""

from __future__ import annotations

from dataclasses import dataclass

from minillama.kernels.types import F32
from minillama.model.config import ModelConfig
from minillama.model.feed_forward import Gated, bind_gated, gated
from minillama.model.rotary import frequency_factors, rotary
from minillama.model.weights import Binder, bind_fields
from minillama.runtime.batch import Batch
from minillama.runtime.operations import Operations
from minillama.runtime.packed import PackedMatrix


@dataclass(frozen=True)
class CohereLayer:
    """Weights of one layer: ``blk.N.<field>.weight``, and ``blk.N.<field>.bias`` where there is one."""

    attn_norm: F32
    attn_q: PackedMatrix
    attn_k: PackedMatrix
    attn_v: PackedMatrix
    attn_output: PackedMatrix
    ffn: Gated
    attn_q_bias: F32 | None = None
    attn_k_bias: F32 | None = None
    attn_v_bias: F32 | None = None


@dataclass(frozen=True)
class CohereWeights:
    """Weights of the model; the head is ``token_embd``."""

    token_embd: PackedMatrix
    factors: F32
    blk: tuple[CohereLayer, ...]
    output_norm: F32


def bind(binder: Binder, config: ModelConfig, n_ctx: int) -> CohereWeights:
    """Find all weights and check their shapes."""
    weights = CohereWeights(
        token_embd=binder.matrix("token_embd.weight", (config.n_vocab, config.n_embd)),
        factors=frequency_factors(binder, config, n_ctx),
        blk=tuple(_bind_layer(binder, config, i) for i in range(config.n_layer)),
        output_norm=binder.vector("output_norm.weight", config.n_embd),
    )
    binder.finish()
    return weights


def _bind_layer(binder: Binder, config: ModelConfig, i: int) -> CohereLayer:
    n_embd, n_q, n_kv = config.n_embd, config.n_head * config.head_dim, config.n_head_kv * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "attn_norm": (n_embd,),
        "attn_q": (n_q, n_embd),
        "attn_k": (n_kv, n_embd),
        "attn_v": (n_kv, n_embd),
        "attn_output": (n_embd, n_q),
    }
    return bind_fields(binder, CohereLayer, f"blk.{i}.", shapes, ffn=bind_gated(binder, config, i))


def forward(ops: Operations, w: CohereWeights, config: ModelConfig, batch: Batch) -> F32:
    """Logits of the batch's outputs, float32 [n_outputs, n_vocab]; keys and values go to the batch's cache blocks."""
    n_head, n_head_kv, eps = config.n_head, config.n_head_kv, config.norm_eps
    angles = ops.rope_table(batch.position, rotary(config, w.factors))  # [T, n_rot / 2, 2]
    x = ops.get_rows(w.token_embd, batch.ids, name="token_embd")  # [T, n_embd]
    for i, blk in enumerate(w.blk):
        with ops.block(i):
            h = ops.layer_norm(x, blk.attn_norm, None, eps, name="attn_norm")  # [T, n_embd]
            q = ops.linear(h, blk.attn_q, blk.attn_q_bias, name="q")  # [T, n_head * d]
            k = ops.linear(h, blk.attn_k, blk.attn_k_bias, name="k")  # [T, n_head_kv * d]
            v = ops.linear(h, blk.attn_v, blk.attn_v_bias, name="v")  # [T, n_head_kv * d]
            if config.rotates(i):
                q = ops.rope(q, angles, n_head, "norm", name="q_rope")  # [T, n_head * d]
                k = ops.rope(k, angles, n_head_kv, "norm", name="k_rope")  # [T, n_head_kv * d]
            kqv = ops.attention(
                q, k, v, batch, i, n_head, config.kq_scale, name="kqv", window=config.window(i)
            )  # [T, n_head * d]
            attn_out = ops.mul_mat(kqv, blk.attn_output, name="attn_out")  # [T, n_embd]
            if i == len(w.blk) - 1:  # nothing looks back any more: go on with the tokens whose logits are wanted
                attn_out = ops.select_rows(attn_out, batch.outputs, name="attn_out_selected")  # [n_outputs, n_embd]
                h = ops.select_rows(h, batch.outputs, name="ffn_inp_selected")  # [n_outputs, n_embd]
                x = ops.select_rows(x, batch.outputs, name="inp_selected")  # [n_outputs, n_embd]
            x = ops.add(gated(ops, blk.ffn, h, "silu"), x, name="l_out_no_attn")  # [T, n_embd]
            x = ops.add(x, attn_out, name="l_out")  # [T, n_embd]
    x = ops.layer_norm(x, w.output_norm, None, eps, name="result_norm")  # [n_outputs, n_embd]
    if not config.logit_scale:
        return ops.mul_mat(x, w.token_embd, name="result_output")  # [n_outputs, n_vocab]
    logits = ops.mul_mat(x, w.token_embd, name="result_output_no_scale")  # [n_outputs, n_vocab]
    return ops.scale(logits, config.logit_scale, name="result_output")  # [n_outputs, n_vocab]
