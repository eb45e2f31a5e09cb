"""The BERT family: encoders, in which every token sees the whole text; their result is a vector for each token.

bert (learned positions, GELU) and nomic-bert (rotation, a gated feed-forward network). Norms come after each part, with
biases; there is no head. T is the number of tokens in the batch, d the size of a head. Names are those of the GGUF
tensors and of llama.cpp's graph.
"""

from __future__ import annotations

from dataclasses import dataclass

from minillama.errors import InvalidInputError
from minillama.kernels.types import F32
from minillama.model.config import ModelConfig
from minillama.model.feed_forward import Gated, bind_gated, gated
from minillama.model.projections import Projections, bind_projections, project
from minillama.model.rotary import frequency_factors, rotary
from minillama.model.weights import Binder, bind_fields
from minillama.runtime.batch import Batch
from minillama.runtime.operations import Operations
from minillama.runtime.packed import PackedMatrix


@dataclass(frozen=True)
class Plain:
    """Weights of a feed-forward network without a gate: ``blk.N.ffn_<field>``."""

    up: PackedMatrix
    down: PackedMatrix
    up_bias: F32 | None = None
    down_bias: F32 | None = None


@dataclass(frozen=True)
class BertLayer:
    """Weights of one layer: ``blk.N.<field>.weight``, and ``blk.N.<field>.bias`` where there is one."""

    projections: Projections
    attn_output: PackedMatrix
    attn_output_norm: F32
    attn_output_norm_bias: F32
    ffn: Plain | Gated
    layer_output_norm: F32
    layer_output_norm_bias: F32
    attn_output_bias: F32 | None = None


@dataclass(frozen=True)
class BertWeights:
    """Weights of the model."""

    token_embd: PackedMatrix
    factors: F32
    token_embd_norm: F32
    token_embd_norm_bias: F32
    blk: tuple[BertLayer, ...]
    token_types: F32 | None = None
    position_embd: PackedMatrix | None = None


def bind(binder: Binder, config: ModelConfig, n_ctx: int, *, is_gated: bool = False) -> BertWeights:
    """Find all weights and check their shapes.

    Parameters
    ----------
    binder, config
        Where the tensors are, and their sizes.
    n_ctx
        Positions of a text.
    is_gated
        Whether feed-forward networks are gated, and queries and keys rotated; if not, positions have embeddings.
    """
    shapes: dict[str, tuple[int, ...]] = {"token_embd_norm": (config.n_embd,)}
    if not is_gated:
        if n_ctx > config.n_ctx_train:
            raise InvalidInputError(f"n_ctx is {n_ctx}, the model has embeddings of {config.n_ctx_train} positions")
        shapes["position_embd"] = (config.n_ctx_train, config.n_embd)
    types = None
    if binder.has("token_types.weight"):
        types = binder.values("token_types.weight", (config.n_token_types, config.n_embd))
    weights = bind_fields(
        binder, BertWeights, "", shapes, required=("position_embd",),
        token_embd=binder.matrix("token_embd.weight", (config.n_vocab, config.n_embd)),
        token_types=types,
        factors=frequency_factors(binder, config, n_ctx),
        blk=tuple(_bind_layer(binder, config, i, is_gated=is_gated) for i in range(config.n_layer)),
    )  # fmt: skip
    binder.finish()
    return weights


def _bind_layer(binder: Binder, config: ModelConfig, i: int, *, is_gated: bool) -> BertLayer:
    n_embd, n_ff, prefix = config.n_embd, config.n_ff, f"blk.{i}."
    plain = {"up": (n_ff, n_embd), "down": (n_embd, n_ff)}
    shapes = {
        "attn_output": (n_embd, config.n_head * config.value_dim),
        "attn_output_norm": (n_embd,),
        "layer_output_norm": (n_embd,),
    }
    return bind_fields(
        binder, BertLayer, prefix, shapes,
        projections=bind_projections(binder, config, i, fused=binder.has(f"{prefix}attn_qkv.weight")),
        ffn=bind_gated(binder, config, i) if is_gated else bind_fields(binder, Plain, f"{prefix}ffn_", plain),
    )  # fmt: skip


def forward(ops: Operations, w: BertWeights, config: ModelConfig, batch: Batch) -> F32:
    """What the model makes of the batch's outputs, float32 [n_outputs, n_embd]."""
    n_head, n_head_kv, eps = config.n_head, config.n_head_kv, config.norm_eps
    x = ops.get_rows(w.token_embd, batch.ids, name="token_embd")  # [T, n_embd]
    if w.token_types is not None:  # every text is of the first kind ("sentence A"), as in llama.cpp
        x = ops.add_row(x, w.token_types[0], name="inp_type")  # [T, n_embd]
    if w.position_embd is not None:
        positions = ops.get_rows(w.position_embd, batch.position, name="pos_embd")  # [T, n_embd]
        x = ops.add(positions, x, name="inp_embd")  # [T, n_embd]
    else:
        angles = ops.rope_table(batch.position, rotary(config, w.factors))  # [T, n_rot / 2, 2]
    x = ops.layer_norm(x, w.token_embd_norm, w.token_embd_norm_bias, eps, name="inp_norm")  # [T, n_embd]
    for i, blk in enumerate(w.blk):
        with ops.block(i):
            q, k, v = project(ops, blk.projections, x, config)  # [T, n_head * d], [T, n_head_kv * d] twice
            if w.position_embd is None:
                q = ops.rope(q, angles, n_head, "neox", name="q_rope")  # [T, n_head * d]
                k = ops.rope(k, angles, n_head_kv, "neox", name="k_rope")  # [T, n_head_kv * d]
            kqv = ops.attention(q, k, v, batch, i, n_head, config.kq_scale, name="kqv", sees_all=True)
            attn_out = ops.linear(kqv, blk.attn_output, blk.attn_output_bias, name="attn_out")  # [T, n_embd]
            if i == len(w.blk) - 1:  # nothing looks back any more: go on with the tokens that are wanted
                attn_out = ops.select_rows(attn_out, batch.outputs, name="attn_out_selected")  # [n_outputs, n_embd]
                x = ops.select_rows(x, batch.outputs, name="inp_selected")  # [n_outputs, n_embd]
            h = ops.add(attn_out, x, name="attn_out_inp")  # [T, n_embd]
            norm, bias = blk.attn_output_norm, blk.attn_output_norm_bias
            h = ops.layer_norm(h, norm, bias, eps, name="ffn_inp")  # [T, n_embd]
            x = ops.add(_feed_forward(ops, blk.ffn, h), h, name="ffn_out_inp")  # [T, n_embd]
            norm, bias = blk.layer_output_norm, blk.layer_output_norm_bias
            x = ops.layer_norm(x, norm, bias, eps, name="l_out")  # [T, n_embd]
    return x


def _feed_forward(ops: Operations, w: Plain | Gated, h: F32) -> F32:
    if isinstance(w, Gated):
        return gated(ops, w, h, "silu")
    up = ops.linear(h, w.up, w.up_bias, name="ffn_up")  # [T, n_ff]
    act = ops.activation("gelu", up, name="ffn_act")  # [T, n_ff]
    return ops.linear(act, w.down, w.down_bias, name="ffn_out")  # [T, n_embd]
