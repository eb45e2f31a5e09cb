"""Our names of values beside llama.cpp's names of the tensors that hold them, and what usually makes each differ."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Point:
    """One value of a layer, in graph order; ``tensor`` has the layer's number for ``{i}``."""

    name: str
    tensor: str
    likely_causes: str


LAYER_POINTS = (
    Point("attn_norm", "attn_norm-{i}", "the norm's epsilon or weight; in layer 0 the decoding of the embedding"),
    Point("q_rope", "Qcur-{i}", "a dot product's order, a missing bias, rotary base, scaling, pairing or positions"),
    Point("k_rope", "Kcur-{i}", "a dot product's order, a missing bias, rotary base, scaling, pairing or positions"),
    Point("kqv", "kqv_out-{i}", "head grouping, attention scale, mask, softmax order, or the cache's type"),
    Point("ffn_inp", "ffn_inp-{i}", "the output projection, or the order of the residual sum"),
    Point("ffn_norm", "ffn_norm-{i}", "the norm's epsilon or weight"),
    Point("ffn_gate", "ffn_gate-{i}", "a dot product's order, or the rounding of the activations"),
    Point("ffn_up", "ffn_up-{i}", "a dot product's order, or the rounding of the activations"),
    Point("ffn_act", "ffn_swiglu-{i}", "the activation function or its exponential"),
    Point("ffn_out", "ffn_out-{i}", "a dot product's order, or the rounding of the activations"),
    Point("l_out", "l_out-{i}", "the order of the residual sum"),
)
LAST_POINTS = (
    Point("result_norm", "result_norm", "the output norm's weight"),
    Point("result_output", "result_output", "the head: its tensor, or a dot product's order"),
)


def points(n_layer: int) -> list[Point]:
    """All points of a model in graph order, with full names."""
    layers = [
        Point(f"blk.{i}.{point.name}", point.tensor.format(i=i), point.likely_causes)
        for i in range(n_layer)
        for point in LAYER_POINTS
    ]
    return [*layers, *LAST_POINTS]
