"""The Gemma family: scaled embeddings, GELU, tied head; gemma2 and gemma3 with norms after each part and windows.

T is the number of tokens in the batch, d the size of a head. Names are those of the GGUF tensors and of llama.cpp's
graph.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from minillama.kernels.types import F32
from minillama.model.config import ModelConfig
from minillama.model.feed_forward import Gated, bind_gated, gated
from minillama.model.rotary import frequency_factors, rotary, rotary_swa
from minillama.model.weights import Binder, bind_fields, bind_output
from minillama.runtime.batch import Batch
from minillama.runtime.operations import Operations
from minillama.runtime.packed import PackedMatrix


@dataclass(frozen=True)
class GemmaLayer:
    """Weights of one layer: ``blk.N.<field>.weight``, and ``blk.N.<field>.bias`` where there is one."""

    attn_norm: F32
    attn_q: PackedMatrix
    attn_k: PackedMatrix
    attn_v: PackedMatrix
    attn_output: PackedMatrix
    ffn_norm: F32
    ffn: Gated
    attn_q_norm: F32 | None = None
    attn_k_norm: F32 | None = None
    post_attention_norm: F32 | None = None
    post_ffw_norm: F32 | None = None
    attn_q_bias: F32 | None = None
    attn_k_bias: F32 | None = None
    attn_v_bias: F32 | None = None


@dataclass(frozen=True)
class GemmaWeights:
    """Weights of the model. ``output`` is ``token_embd`` where the file has no head of its own."""

    token_embd: PackedMatrix
    factors: F32
    blk: tuple[GemmaLayer, ...]
    output_norm: F32
    output: PackedMatrix


def bind(
    binder: Binder, config: ModelConfig, n_ctx: int, *, post_norms: bool = False, qk_norms: bool = False
) -> GemmaWeights:
    """Find all weights and check their shapes."""
    embedding = (config.n_vocab, config.n_embd)
    token_embd = binder.matrix("token_embd.weight", embedding)
    names = [
        *(("post_attention_norm", "post_ffw_norm") if post_norms else ()),
        *(("attn_q_norm", "attn_k_norm") if qk_norms else ()),
    ]
    weights = GemmaWeights(
        token_embd=token_embd,
        factors=frequency_factors(binder, config, n_ctx),
        blk=tuple(_bind_layer(binder, config, i, names) for i in range(config.n_layer)),
        output_norm=binder.vector("output_norm.weight", config.n_embd),
        output=bind_output(binder, embedding, token_embd),
    )
    binder.finish()
    return weights


def _bind_layer(binder: Binder, config: ModelConfig, i: int, norms: list[str]) -> GemmaLayer:
    n_embd, d = config.n_embd, config.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "attn_norm": (n_embd,),
        "attn_q": (config.n_head * d, n_embd),
        "attn_k": (config.n_head_kv * d, n_embd),
        "attn_v": (config.n_head_kv * config.value_dim, n_embd),
        "attn_output": (n_embd, config.n_head * config.value_dim),
        "ffn_norm": (n_embd,),
    }
    shapes |= {name: (d,) if name.startswith("attn") else (n_embd,) for name in norms}
    ffn = bind_gated(binder, config, i)
    return bind_fields(binder, GemmaLayer, f"blk.{i}.", shapes, required=norms, ffn=ffn)


def forward(ops: Operations, w: GemmaWeights, config: ModelConfig, batch: Batch) -> F32:
    """Logits of the batch's outputs, float32 [n_outputs, n_vocab]; keys and values go to the batch's cache blocks."""
    n_head, n_head_kv, eps = config.n_head, config.n_head_kv, config.norm_eps
    angles = ops.rope_table(batch.position, rotary(config, w.factors))  # [T, n_rot / 2, 2]
    has_windows = any(config.swa_layers)
    angles_swa = ops.rope_table(batch.position, rotary_swa(config, w.factors)) if has_windows else angles
    x = ops.get_rows(w.token_embd, batch.ids, name="token_embd")  # [T, n_embd]
    x = ops.scale(x, np.sqrt(np.float32(config.n_embd)), name="inp_scaled")  # [T, n_embd]
    for i, blk in enumerate(w.blk):
        window = config.window(i)
        with ops.block(i):
            h = ops.rms_norm(x, blk.attn_norm, eps, name="attn_norm")  # [T, n_embd]
            q = ops.linear(h, blk.attn_q, blk.attn_q_bias, name="q")  # [T, n_head * d]
            k = ops.linear(h, blk.attn_k, blk.attn_k_bias, name="k")  # [T, n_head_kv * d]
            v = ops.linear(h, blk.attn_v, blk.attn_v_bias, name="v")  # [T, n_head_kv * d]
            if blk.attn_q_norm is not None and blk.attn_k_norm is not None:
                q = ops.rms_norm(q, blk.attn_q_norm, eps, name="q_norm")  # [T, n_head * d]
                k = ops.rms_norm(k, blk.attn_k_norm, eps, name="k_norm")  # [T, n_head_kv * d]
            table = angles_swa if window else angles  # [T, n_rot / 2, 2]
            q = ops.rope(q, table, n_head, "neox", name="q_rope")  # [T, n_head * d]
            k = ops.rope(k, table, n_head_kv, "neox", name="k_rope")  # [T, n_head_kv * d]
            q = ops.scale(q, config.kq_scale, name="q_scaled")  # [T, n_head * d]
            kqv = ops.attention(
                q, k, v, batch, i, n_head, np.float32(1), name="kqv", window=window, softcap=config.attn_softcap
            )  # [T, n_head * d]
            attn_out = ops.mul_mat(kqv, blk.attn_output, name="attn_out")  # [T, n_embd]
            if i == len(w.blk) - 1:  # nothing looks back any more: go on with the tokens whose logits are wanted
                attn_out = ops.select_rows(attn_out, batch.outputs, name="attn_out_selected")  # [n_outputs, n_embd]
                x = ops.select_rows(x, batch.outputs, name="inp_selected")  # [n_outputs, n_embd]
            if blk.post_attention_norm is not None:
                attn_out = ops.rms_norm(attn_out, blk.post_attention_norm, eps, name="attn_post_norm")  # [T, n_embd]
            x = ops.add(attn_out, x, name="sa_out")  # [T, n_embd]
            h = ops.rms_norm(x, blk.ffn_norm, eps, name="ffn_norm")  # [T, n_embd]
            ffn_out = gated(ops, blk.ffn, h, "gelu")  # [T, n_embd]
            if blk.post_ffw_norm is not None:
                ffn_out = ops.rms_norm(ffn_out, blk.post_ffw_norm, eps, name="ffn_post_norm")  # [T, n_embd]
            x = ops.add(ffn_out, x, name="l_out")  # [T, n_embd]
    x = ops.rms_norm(x, w.output_norm, eps, name="result_norm")  # [n_outputs, n_embd]
    if not config.final_softcap:
        return ops.mul_mat(x, w.output, name="result_output")  # [n_outputs, n_vocab]
    logits = ops.mul_mat(x, w.output, name="result_output_no_cap")  # [n_outputs, n_vocab]
    return ops.softcap(logits, config.final_softcap, name="result_output")  # [n_outputs, n_vocab]
