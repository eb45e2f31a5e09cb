"""The llama family: llama itself and, with other pairs of rotary values and biases, qwen2.

This is the whole model, in reading order: its weights, then its forward pass. Names are those of the GGUF tensors and
of llama.cpp's graph. T is the number of tokens in the batch, d the size of a head.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from minillama.kernels.types import F32
from minillama.model.config import ModelConfig
from minillama.model.weights import Binder
from minillama.runtime.batch import Batch
from minillama.runtime.operations import Operations, PackedMatrix


@dataclass(frozen=True)
class LlamaLayer:
    """Weights of one layer: ``blk.N.<field>.weight``, and ``blk.N.<field>.bias`` where there is one."""

    attn_norm: F32
    attn_q: PackedMatrix
    attn_q_bias: F32 | None
    attn_k: PackedMatrix
    attn_k_bias: F32 | None
    attn_v: PackedMatrix
    attn_v_bias: F32 | None
    attn_output: PackedMatrix
    attn_output_bias: F32 | None
    ffn_norm: F32
    ffn_gate: PackedMatrix
    ffn_gate_bias: F32 | None
    ffn_up: PackedMatrix
    ffn_up_bias: F32 | None
    ffn_down: PackedMatrix
    ffn_down_bias: F32 | None


@dataclass(frozen=True)
class LlamaWeights:
    """Weights of the model. ``output`` is ``token_embd`` where the file has no head of its own."""

    token_embd: PackedMatrix
    rope_freqs: F32
    blk: tuple[LlamaLayer, ...]
    output_norm: F32
    output: PackedMatrix


def bind(binder: Binder, config: ModelConfig) -> LlamaWeights:
    """Find all weights and check their shapes."""
    token_embd = binder.matrix("token_embd.weight", (config.n_vocab, config.n_embd))
    rope_freqs = binder.optional_vector("rope_freqs.weight", config.n_rot // 2)
    has_head = binder.has("output.weight")
    weights = LlamaWeights(
        token_embd=token_embd,
        rope_freqs=np.ones(config.n_rot // 2, np.float32) if rope_freqs is None else rope_freqs,
        blk=tuple(_bind_layer(binder, config, i) for i in range(config.n_layer)),
        output_norm=binder.vector("output_norm.weight", config.n_embd),
        output=binder.matrix("output.weight", (config.n_vocab, config.n_embd)) if has_head else token_embd,
    )
    binder.finish()
    return weights


def _bind_layer(binder: Binder, config: ModelConfig, i: int) -> LlamaLayer:
    n_embd, n_ff = config.n_embd, config.n_ff
    shapes = {
        "attn_q": (config.n_head * config.head_dim, n_embd),
        "attn_k": (config.n_head_kv * config.head_dim, n_embd),
        "attn_v": (config.n_head_kv * config.value_dim, n_embd),
        "attn_output": (n_embd, config.n_head * config.value_dim),
        "ffn_gate": (n_ff, n_embd),
        "ffn_up": (n_ff, n_embd),
        "ffn_down": (n_embd, n_ff),
    }
    matrices = {name: binder.matrix(f"blk.{i}.{name}.weight", shape) for name, shape in shapes.items()}
    biases = {
        f"{name}_bias": binder.optional_vector(f"blk.{i}.{name}.bias", shape[0]) for name, shape in shapes.items()
    }
    norms = {name: binder.vector(f"blk.{i}.{name}.weight", n_embd) for name in ("attn_norm", "ffn_norm")}
    return LlamaLayer(**norms, **matrices, **biases)  # type: ignore[arg-type]


def forward(ops: Operations, w: LlamaWeights, config: ModelConfig, batch: Batch, pairing: str) -> F32:
    """Logits of the batch's outputs, float32 [n_outputs, n_vocab]; keys and values go to the batch's cache blocks."""
    n_head, n_head_kv, eps = config.n_head, config.n_head_kv, config.rms_eps
    angles = ops.rope_table(
        batch.position, config.rope_theta_scale, np.float32(config.rope_freq_scale), w.rope_freqs
    )  # [T, n_rot / 2, 2]
    x = ops.get_rows(w.token_embd, batch.ids, name="token_embd")  # [T, n_embd]
    for i, blk in enumerate(w.blk):
        with ops.block(i):
            h = ops.rms_norm(x, blk.attn_norm, eps, name="attn_norm")  # [T, n_embd]
            q = ops.linear(h, blk.attn_q, blk.attn_q_bias, name="q")  # [T, n_head * d]
            k = ops.linear(h, blk.attn_k, blk.attn_k_bias, name="k")  # [T, n_head_kv * d]
            v = ops.linear(h, blk.attn_v, blk.attn_v_bias, name="v")  # [T, n_head_kv * d]
            q = ops.rope(q, angles, n_head, pairing, name="q_rope")  # [T, n_head * d]
            k = ops.rope(k, angles, n_head_kv, pairing, name="k_rope")  # [T, n_head_kv * d]
            kqv = ops.attention(q, k, v, batch, i, n_head, name="kqv")  # [T, n_head * d]
            attn_out = ops.linear(kqv, blk.attn_output, blk.attn_output_bias, name="attn_out")  # [T, n_embd]
            if i == len(w.blk) - 1:  # nothing looks back any more: go on with the tokens whose logits are wanted
                attn_out = ops.select_rows(attn_out, batch.outputs, name="attn_out_selected")  # [n_outputs, n_embd]
                x = ops.select_rows(x, batch.outputs, name="inp_selected")  # [n_outputs, n_embd]
            x = ops.add(attn_out, x, name="ffn_inp")  # [T, n_embd]
            h = ops.rms_norm(x, blk.ffn_norm, eps, name="ffn_norm")  # [T, n_embd]
            gate = ops.linear(h, blk.ffn_gate, blk.ffn_gate_bias, name="ffn_gate")  # [T, n_ff]
            up = ops.linear(h, blk.ffn_up, blk.ffn_up_bias, name="ffn_up")  # [T, n_ff]
            act = ops.swiglu(gate, up, name="ffn_act")  # [T, n_ff]
            ffn_out = ops.linear(act, blk.ffn_down, blk.ffn_down_bias, name="ffn_out")  # [T, n_embd]
            x = ops.add(ffn_out, x, name="l_out")  # [T, n_embd]
    x = ops.rms_norm(x, w.output_norm, eps, name="result_norm")  # [n_outputs, n_embd]
    return ops.mul_mat(x, w.output, name="result_output")  # [n_outputs, n_vocab]
