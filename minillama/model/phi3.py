"""The phi3 family: queries, keys and values from one matrix, gate and up from one matrix, LongRoPE.

T is the number of tokens in the batch, d the size of a head. Names are those of the GGUF tensors and of llama.cpp's
graph.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from minillama.kernels.types import F32
from minillama.model.config import ModelConfig
from minillama.model.rotary import frequency_factors, rotary
from minillama.model.weights import Binder, bind_fields, bind_output
from minillama.runtime.batch import Batch
from minillama.runtime.operations import Operations
from minillama.runtime.packed import PackedMatrix


@dataclass(frozen=True)
class Phi3Layer:
    """Weights of one layer: ``blk.N.<field>.weight``, and ``blk.N.<field>.bias`` where there is one."""

    attn_norm: F32
    attn_qkv: PackedMatrix
    attn_output: PackedMatrix
    ffn_norm: F32
    ffn_up: PackedMatrix
    ffn_down: PackedMatrix
    attn_qkv_bias: F32 | None = None


@dataclass(frozen=True)
class Phi3Weights:
    """Weights of the model. ``output`` is ``token_embd`` where the file has no head of its own."""

    token_embd: PackedMatrix
    factors: F32
    blk: tuple[Phi3Layer, ...]
    output_norm: F32
    output: PackedMatrix


def bind(binder: Binder, config: ModelConfig, n_ctx: int) -> Phi3Weights:
    """Find all weights and check their shapes."""
    embedding = (config.n_vocab, config.n_embd)
    token_embd = binder.matrix("token_embd.weight", embedding)
    n_q, n_kv = config.n_head * config.head_dim, config.n_head_kv * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "attn_norm": (config.n_embd,),
        "attn_qkv": (n_q + 2 * n_kv, config.n_embd),
        "attn_output": (config.n_embd, n_q),
        "ffn_norm": (config.n_embd,),
        "ffn_up": (2 * config.n_ff, config.n_embd),
        "ffn_down": (config.n_embd, config.n_ff),
    }
    weights = Phi3Weights(
        token_embd=token_embd,
        factors=frequency_factors(binder, config, n_ctx),
        blk=tuple(bind_fields(binder, Phi3Layer, f"blk.{i}.", shapes) for i in range(config.n_layer)),
        output_norm=binder.vector("output_norm.weight", config.n_embd),
        output=bind_output(binder, embedding, token_embd),
    )
    binder.finish()
    return weights


def forward(ops: Operations, w: Phi3Weights, config: ModelConfig, batch: Batch) -> F32:
    """Logits of the batch's outputs, float32 [n_outputs, n_vocab]; keys and values go to the batch's cache blocks."""
    n_head, n_head_kv, n_ff, eps = config.n_head, config.n_head_kv, config.n_ff, config.norm_eps
    n_q, n_kv = n_head * config.head_dim, n_head_kv * config.head_dim
    angles = ops.rope_table(batch.position, rotary(config, w.factors))  # [T, n_rot / 2, 2]
    x = ops.get_rows(w.token_embd, batch.ids, name="token_embd")  # [T, n_embd]
    for i, blk in enumerate(w.blk):
        with ops.block(i):
            h = ops.rms_norm(x, blk.attn_norm, eps, name="attn_norm")  # [T, n_embd]
            qkv = ops.linear(h, blk.attn_qkv, blk.attn_qkv_bias, name="wqkv")  # [T, (n_head + 2 * n_head_kv) * d]
            q = ops.columns(qkv, 0, n_q, name="q")  # [T, n_head * d]
            k = ops.columns(qkv, n_q, n_kv, name="k")  # [T, n_head_kv * d]
            v = ops.columns(qkv, n_q + n_kv, n_kv, name="v")  # [T, n_head_kv * d]
            q = ops.rope(q, angles, n_head, "neox", name="q_rope_no_scale")  # [T, n_head * d]
            k = ops.rope(k, angles, n_head_kv, "neox", name="k_rope")  # [T, n_head_kv * d]
            q = ops.scale(q, config.kq_scale, name="q_rope")  # [T, n_head * d]
            kqv = ops.attention(q, k, v, batch, i, n_head, np.float32(1), name="kqv")  # [T, n_head * d]
            attn_out = ops.mul_mat(kqv, blk.attn_output, name="attn_out")  # [T, n_embd]
            if i == len(w.blk) - 1:  # nothing looks back any more: go on with the tokens whose logits are wanted
                attn_out = ops.select_rows(attn_out, batch.outputs, name="attn_out_selected")  # [n_outputs, n_embd]
                x = ops.select_rows(x, batch.outputs, name="inp_selected")  # [n_outputs, n_embd]
            x = ops.add(attn_out, x, name="ffn_inp")  # [T, n_embd]
            h = ops.rms_norm(x, blk.ffn_norm, eps, name="ffn_norm")  # [T, n_embd]
            both = ops.mul_mat(h, blk.ffn_up, name="ffn_gate_up")  # [T, 2 * n_ff]
            gate = ops.columns(both, 0, n_ff, name="ffn_gate")  # [T, n_ff]
            up = ops.columns(both, n_ff, n_ff, name="ffn_up")  # [T, n_ff]
            act = ops.swiglu(gate, up, name="ffn_act")  # [T, n_ff]
            ffn_out = ops.mul_mat(act, blk.ffn_down, name="ffn_out")  # [T, n_embd]
            x = ops.add(ffn_out, x, name="l_out")  # [T, n_embd]
    x = ops.rms_norm(x, w.output_norm, eps, name="result_norm")  # [n_outputs, n_embd]
    return ops.mul_mat(x, w.output, name="result_output")  # [n_outputs, n_vocab]
