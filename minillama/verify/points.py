"""Our names of values beside llama.cpp's names of the tensors that hold them, and what usually makes each differ."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from minillama.kernels.types import F32


@dataclass(frozen=True)
class Point:
    """One value of a layer, in graph order; ``tensor`` has the layer's number for ``{i}``."""

    name: str
    tensor: str
    likely_causes: str


_DOT = "a dot product's order, or the rounding of the activations"
_ROTARY = "a dot product's order, a missing bias, rotary base, scaling, pairing or positions"
_NORM = "the norm's kind, epsilon or weight"
_EXPERTS = "the choice of experts, or a dot product's order"

# A tensor that several points name holds the last of them that the model has.
FIRST_POINTS = (
    Point("token_embd", "embd", "the decoding of the embedding"),
    Point("embd", "embd", "the embedding's multiplier"),
    Point("inp_scaled", "inp_scaled", "the embedding's multiplier"),
    Point("pos_embd", "pos_embd", "the decoding of the positions' embedding"),
    Point("inpL", "inpL", "the sum of both embeddings"),
)
LAYER_POINTS = (
    Point("attn_norm", "attn_norm-{i}", "the norm's epsilon or weight; in layer 0 the decoding of the embedding"),
    Point("wqkv_no_bias", "wqkv-{i}", _DOT),
    Point("q", "Qcur-{i}", _ROTARY),
    Point("k", "Kcur-{i}", _ROTARY),
    Point("v", "Vcur-{i}", "a dot product's order, or a missing bias"),
    Point("q_norm", "Qcur_normed-{i}", _NORM),
    Point("k_norm", "Kcur_normed-{i}", _NORM),
    Point("q_rope", "Qcur-{i}", _ROTARY),
    Point("k_rope", "Kcur-{i}", _ROTARY),
    Point("q_scaled", "Qcur_scaled-{i}", "the scale of attention"),
    Point("kqv", "kqv_out-{i}", "head grouping, attention scale, mask, window, softmax order, or the cache's type"),
    Point("attn_post_norm", "attn_post_norm-{i}", _NORM),
    Point("sa_out", "sa_out-{i}", "the output projection, or the order of the residual sum"),
    Point("ffn_inp", "ffn_inp-{i}", "the output projection, or the order of the residual sum"),
    Point("ffn_norm", "ffn_norm-{i}", "the norm's epsilon or weight"),
    Point("ffn_gate", "ffn_gate-{i}", _DOT),
    Point("ffn_gate_no_bias", "ffn_gate-{i}", _DOT),
    Point("ffn_gate_shexp", "ffn_gate-{i}", _DOT),
    Point("ffn_up", "ffn_up-{i}", _DOT),
    Point("ffn_gate_up", "ffn_up-{i}", _DOT),
    Point("ffn_up_no_bias", "ffn_up-{i}", _DOT),
    Point("ffn_up_shexp", "ffn_up-{i}", _DOT),
    Point("ffn_act", "ffn_swiglu-{i}", "the activation function or its exponential"),
    Point("ffn_act_shexp", "ffn_swiglu-{i}", "the activation function or its exponential"),
    Point("ffn_act", "ffn_geglu-{i}", "the activation function or its table"),
    Point("ffn_act", "ffn_gelu-{i}", "the activation function or its table"),
    Point("ffn_shexp", "ffn_shexp-{i}", _DOT),
    Point("ffn_shexp_out", "ffn_shexp_out-{i}", "the gate of the shared expert"),
    Point("ffn_moe_probs", "ffn_moe_probs-{i}", "the router, or its softmax"),
    Point("ffn_moe_weights", "ffn_moe_weights-{i}", "the choice of experts"),
    Point("ffn_moe_weights_norm", "ffn_moe_weights_norm-{i}", "the sum of the experts' weights"),
    Point("ffn_moe_up", "ffn_moe_up-{i}", _EXPERTS),
    Point("ffn_moe_up_no_bias", "ffn_moe_up-{i}", _EXPERTS),
    Point("ffn_moe_gate", "ffn_moe_gate-{i}", _EXPERTS),
    Point("ffn_moe_gate_no_bias", "ffn_moe_gate-{i}", _EXPERTS),
    Point("ffn_moe_swiglu", "ffn_moe_swiglu-{i}", "the activation function or its exponential"),
    Point("ffn_moe_swiglu_oai", "ffn_moe_swiglu_oai-{i}", "the activation function or its limits"),
    Point("ffn_moe_down", "ffn_moe_down-{i}", _EXPERTS),
    Point("ffn_moe_down_no_bias", "ffn_moe_down-{i}", _EXPERTS),
    Point("ffn_moe_out", "ffn_moe_out-{i}", "the experts' weights, or the order of their sum"),
    Point("ffn_out", "ffn_out-{i}", _DOT),
    Point("ffn_out_inp", "ffn_out-{i}", "the order of the residual sum"),
    Point("ffn_post_norm", "ffn_post_norm-{i}", _NORM),
    Point("l_out", "l_out-{i}", "the order of the residual sum"),
)
LAST_POINTS = (
    Point("result_norm", "result_norm", "the output norm's weight"),
    Point("result_output", "result_output", "the head: its tensor, or a dot product's order"),
)


def tensor_of(point: Point, tensors: Mapping[str, F32]) -> F32 | None:
    """llama.cpp's value of a point: of tensors of one name, before and after an operation, the last."""
    found = [key for key in tensors if key == point.tensor or key.startswith(f"{point.tensor}#")]
    return tensors[found[-1]] if found else None


def points(n_layer: int, names: Collection[str]) -> list[Point]:
    """Points of a model in graph order, with full names: one for each of llama.cpp's tensors.

    Parameters
    ----------
    n_layer
        Number of layers.
    names
        Names of the values that the model has.
    """
    layers = [
        Point(f"blk.{i}.{point.name}", point.tensor.format(i=i), point.likely_causes)
        for i in range(n_layer)
        for point in LAYER_POINTS
    ]
    found = {point.tensor: point for point in (*FIRST_POINTS, *layers, *LAST_POINTS) if point.name in names}
    return list(found.values())
