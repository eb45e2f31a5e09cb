"""The GPT family: LayerNorms with biases, a feed-forward network without a gate.

gpt2 (learned positions), gptneox (partial rotation, a parallel residual) and starcoder2 (rotation, grouped heads).
T is the number of tokens in the batch, d the size of a head. Names are those of the GGUF tensors and of llama.cpp's
graph.
"""

from __future__ import annotations

from dataclasses import dataclass

from minillama.errors import InvalidInputError
from minillama.kernels.types import F32
from minillama.model.config import ModelConfig
from minillama.model.projections import Projections, bind_projections, project
from minillama.model.rotary import frequency_factors, rotary
from minillama.model.weights import Binder, bind_fields, bind_output
from minillama.runtime.batch import Batch
from minillama.runtime.operations import Operations
from minillama.runtime.packed import PackedMatrix


@dataclass(frozen=True)
class GptLayer:
    """Weights of one layer: ``blk.N.<field>.weight`` and ``blk.N.<field>.bias``."""

    projections: Projections
    attn_norm: F32
    attn_norm_bias: F32
    attn_output: PackedMatrix
    attn_output_bias: F32
    ffn_norm: F32
    ffn_norm_bias: F32
    ffn_up: PackedMatrix
    ffn_up_bias: F32
    ffn_down: PackedMatrix
    ffn_down_bias: F32


@dataclass(frozen=True)
class GptWeights:
    """Weights of the model. ``output`` is ``token_embd`` where the file has no head of its own."""

    token_embd: PackedMatrix
    factors: F32
    blk: tuple[GptLayer, ...]
    output_norm: F32
    output_norm_bias: F32
    output: PackedMatrix
    position_embd: PackedMatrix | None = None


def bind(
    binder: Binder, config: ModelConfig, n_ctx: int, *, fused: bool = True, learned_positions: bool = False
) -> GptWeights:
    """Find all weights and check their shapes.

    Parameters
    ----------
    binder, config
        Where the tensors are, and their sizes.
    n_ctx
        Positions a cache may hold.
    fused
        Whether queries, keys and values come from one matrix.
    learned_positions
        Whether positions have embeddings.
    """
    embedding = (config.n_vocab, config.n_embd)
    token_embd = binder.matrix("token_embd.weight", embedding)
    shapes: dict[str, tuple[int, ...]] = {"output_norm": (config.n_embd,)}
    if learned_positions:
        if n_ctx > config.n_ctx_train:
            raise InvalidInputError(f"n_ctx is {n_ctx}, the model has embeddings of {config.n_ctx_train} positions")
        shapes["position_embd"] = (config.n_ctx_train, config.n_embd)
    weights = bind_fields(
        binder, GptWeights, "", shapes, required=("position_embd",),
        token_embd=token_embd,
        output=bind_output(binder, embedding, token_embd),
        factors=frequency_factors(binder, config, n_ctx),
        blk=tuple(_bind_layer(binder, config, i, fused=fused) for i in range(config.n_layer)),
    )  # fmt: skip
    binder.finish()
    return weights


def _bind_layer(binder: Binder, config: ModelConfig, i: int, *, fused: bool) -> GptLayer:
    n_embd, n_ff, n_q = config.n_embd, config.n_ff, config.n_head * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "attn_norm": (n_embd,),
        "attn_output": (n_embd, n_q),
        "ffn_norm": (n_embd,),
        "ffn_up": (n_ff, n_embd),
        "ffn_down": (n_embd, n_ff),
    }
    projections = bind_projections(binder, config, i, fused=fused)
    return bind_fields(binder, GptLayer, f"blk.{i}.", shapes, projections=projections)


def forward(ops: Operations, w: GptWeights, config: ModelConfig, batch: Batch, *, rotate: bool = True) -> F32:
    """Logits of the batch's outputs, float32 [n_outputs, n_vocab]; keys and values go to the batch's cache blocks."""
    n_head, n_head_kv, eps = config.n_head, config.n_head_kv, config.norm_eps
    x = ops.get_rows(w.token_embd, batch.ids, name="token_embd")  # [T, n_embd]
    if w.position_embd is not None:
        positions = ops.get_rows(w.position_embd, batch.position, name="pos_embd")  # [T, n_embd]
        x = ops.add(x, positions, name="inpL")  # [T, n_embd]
    if rotate:
        angles = ops.rope_table(batch.position, rotary(config, w.factors))  # [T, n_rot / 2, 2]
    for i, blk in enumerate(w.blk):
        with ops.block(i):
            h = ops.layer_norm(x, blk.attn_norm, blk.attn_norm_bias, eps, name="attn_norm")  # [T, n_embd]
            q, k, v = project(ops, blk.projections, h, config)  # [T, n_head * d], [T, n_head_kv * d] twice
            if rotate:
                q = ops.rope(q, angles, n_head, "neox", name="q_rope")  # [T, n_head * d]
                k = ops.rope(k, angles, n_head_kv, "neox", name="k_rope")  # [T, n_head_kv * d]
            kqv = ops.attention(q, k, v, batch, i, n_head, config.kq_scale, name="kqv")  # [T, n_head * d]
            attn_out = ops.linear(kqv, blk.attn_output, blk.attn_output_bias, name="attn_out")  # [T, n_embd]
            if i == len(w.blk) - 1:  # nothing looks back any more: go on with the tokens whose logits are wanted
                attn_out = ops.select_rows(attn_out, batch.outputs, name="attn_out_selected")  # [n_outputs, n_embd]
                x = ops.select_rows(x, batch.outputs, name="inp_selected")  # [n_outputs, n_embd]
            if config.parallel_residual:
                x = ops.add(_feed_forward(ops, blk, x, eps), x, name="ffn_out_inp")  # [T, n_embd]
                x = ops.add(x, attn_out, name="l_out")  # [T, n_embd]
            else:
                x = ops.add(attn_out, x, name="ffn_inp")  # [T, n_embd]
                x = ops.add(_feed_forward(ops, blk, x, eps), x, name="l_out")  # [T, n_embd]
    x = ops.layer_norm(x, w.output_norm, w.output_norm_bias, eps, name="result_norm")  # [n_outputs, n_embd]
    return ops.mul_mat(x, w.output, name="result_output")  # [n_outputs, n_vocab]


def _feed_forward(ops: Operations, blk: GptLayer, x: F32, eps: float) -> F32:
    """The feed-forward network and the norm before it."""
    h = ops.layer_norm(x, blk.ffn_norm, blk.ffn_norm_bias, eps, name="ffn_norm")  # [T, n_embd]
    up = ops.linear(h, blk.ffn_up, blk.ffn_up_bias, name="ffn_up")  # [T, n_ff]
    act = ops.activation("gelu", up, name="ffn_act")  # [T, n_ff]
    return ops.linear(act, blk.ffn_down, blk.ffn_down_bias, name="ffn_out")  # [T, n_embd]
