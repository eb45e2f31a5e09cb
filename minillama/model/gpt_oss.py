"""The gpt-oss family: experts with biases and a clamped gate, attention sinks, every other layer with a window.

T is the number of tokens in the batch, d the size of a head. Names are those of the GGUF tensors and of llama.cpp's
graph.
"""

from __future__ import annotations

from dataclasses import dataclass

from minillama.kernels.types import F32
from minillama.model.config import ModelConfig
from minillama.model.feed_forward import Experts, bind_experts
from minillama.model.rotary import frequency_factors, rotary, rotary_swa
from minillama.model.weights import Binder, bind_fields
from minillama.runtime.batch import Batch
from minillama.runtime.operations import Operations
from minillama.runtime.packed import PackedMatrix

# Of the gate: the factor inside its sigmoid, and the limit of gate and up.
_ALPHA, _LIMIT = 1.702, 7.0


@dataclass(frozen=True)
class GptOssLayer:
    """Weights of one layer: ``blk.N.<field>.weight``, and ``blk.N.<field>.bias`` where there is one."""

    attn_norm: F32
    attn_q: PackedMatrix
    attn_k: PackedMatrix
    attn_v: PackedMatrix
    attn_sinks: F32
    attn_output: PackedMatrix
    attn_output_bias: F32
    post_attention_norm: F32
    ffn: Experts
    attn_q_bias: F32 | None = None
    attn_k_bias: F32 | None = None
    attn_v_bias: F32 | None = None


@dataclass(frozen=True)
class GptOssWeights:
    """Weights of the model."""

    token_embd: PackedMatrix
    factors: F32
    blk: tuple[GptOssLayer, ...]
    output_norm: F32
    output: PackedMatrix


def bind(binder: Binder, config: ModelConfig, n_ctx: int) -> GptOssWeights:
    """Find all weights and check their shapes."""
    embedding = (config.n_vocab, config.n_embd)
    weights = GptOssWeights(
        token_embd=binder.matrix("token_embd.weight", embedding),
        factors=frequency_factors(binder, config, n_ctx),
        blk=tuple(_bind_layer(binder, config, i) for i in range(config.n_layer)),
        output_norm=binder.vector("output_norm.weight", config.n_embd),
        output=binder.matrix("output.weight", embedding),
    )
    binder.finish()
    return weights


def _bind_layer(binder: Binder, config: ModelConfig, i: int) -> GptOssLayer:
    n_embd, n_q, n_kv = config.n_embd, config.n_head * config.head_dim, config.n_head_kv * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "attn_norm": (n_embd,),
        "attn_q": (n_q, n_embd),
        "attn_k": (n_kv, n_embd),
        "attn_v": (n_kv, n_embd),
        "attn_sinks": (config.n_head,),
        "attn_output": (n_embd, n_q),
        "post_attention_norm": (n_embd,),
    }
    biases = ("gate_inp_bias", "gate_exps_bias", "up_exps_bias", "down_exps_bias")
    ffn = bind_experts(binder, config, i, required=biases)
    return bind_fields(binder, GptOssLayer, f"blk.{i}.", shapes, ffn=ffn)


def forward(ops: Operations, w: GptOssWeights, config: ModelConfig, batch: Batch) -> F32:
    """Logits of the batch's outputs, float32 [n_outputs, n_vocab]; keys and values go to the batch's cache blocks."""
    n_head, n_head_kv, eps = config.n_head, config.n_head_kv, config.norm_eps
    angles = ops.rope_table(batch.position, rotary(config, w.factors))  # [T, n_rot / 2, 2]
    angles_swa = ops.rope_table(batch.position, rotary_swa(config, w.factors))  # [T, n_rot / 2, 2]
    x = ops.get_rows(w.token_embd, batch.ids, name="token_embd")  # [T, n_embd]
    for i, blk in enumerate(w.blk):
        window = config.window(i)
        with ops.block(i):
            h = ops.rms_norm(x, blk.attn_norm, eps, name="attn_norm")  # [T, n_embd]
            q = ops.linear(h, blk.attn_q, blk.attn_q_bias, name="q")  # [T, n_head * d]
            k = ops.linear(h, blk.attn_k, blk.attn_k_bias, name="k")  # [T, n_head_kv * d]
            v = ops.linear(h, blk.attn_v, blk.attn_v_bias, name="v")  # [T, n_head_kv * d]
            table = angles_swa if window else angles  # [T, n_rot / 2, 2]
            q = ops.rope(q, table, n_head, "neox", name="q_rope")  # [T, n_head * d]
            k = ops.rope(k, table, n_head_kv, "neox", name="k_rope")  # [T, n_head_kv * d]
            kqv = ops.attention(
                q, k, v, batch, i, n_head, config.kq_scale, name="kqv", window=window, sinks=blk.attn_sinks
            )  # [T, n_head * d]
            attn_out = ops.linear(kqv, blk.attn_output, blk.attn_output_bias, name="attn_out")  # [T, n_embd]
            if i == len(w.blk) - 1:  # nothing looks back any more: go on with the tokens whose logits are wanted
                attn_out = ops.select_rows(attn_out, batch.outputs, name="attn_out_selected")  # [n_outputs, n_embd]
                x = ops.select_rows(x, batch.outputs, name="inp_selected")  # [n_outputs, n_embd]
            x = ops.add(attn_out, x, name="ffn_inp")  # [T, n_embd]
            h = ops.rms_norm(x, blk.post_attention_norm, eps, name="attn_post_norm")  # [T, n_embd]
            x = ops.add(_experts(ops, blk.ffn, h, config.n_expert_used), x, name="l_out")  # [T, n_embd]
    x = ops.rms_norm(x, w.output_norm, eps, name="result_norm")  # [n_outputs, n_embd]
    return ops.mul_mat(x, w.output, name="result_output")  # [n_outputs, n_vocab]


def _experts(ops: Operations, w: Experts, h: F32, n_used: int) -> F32:
    """Each token's experts, weighted by the softmax over those alone, and added up: float32 [T, n_embd]."""
    logits = ops.linear(h, w.gate_inp, w.gate_inp_bias, name="ffn_moe_logits")  # [T, n_expert]
    ids, chosen = ops.top_experts(logits, n_used, name="ffn_moe_weights")  # [T, n_used]
    weights = ops.soft_max(chosen, name="ffn_moe_weights_softmax")  # [T, n_used]
    up = ops.linear_id(h, w.up_exps, w.up_exps_bias, ids, name="ffn_moe_up")  # [T, n_used, n_ff]
    gate = ops.linear_id(h, w.gate_exps, w.gate_exps_bias, ids, name="ffn_moe_gate")  # [T, n_used, n_ff]
    act = ops.swiglu_oai(gate, up, _ALPHA, _LIMIT, name="ffn_moe_swiglu_oai")  # [T, n_used, n_ff]
    down = ops.linear_id(act, w.down_exps, w.down_exps_bias, ids, name="ffn_moe_down")  # [T, n_used, n_embd]
    return ops.sum_experts(down, weights, name="ffn_moe_out")  # [T, n_embd]
