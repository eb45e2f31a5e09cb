"""Feed-forward networks that several families share: a gated one, and experts of which each token uses a few."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from minillama.kernels.types import F32, I32
from minillama.model.config import ModelConfig
from minillama.model.weights import Binder, bind_fields
from minillama.runtime.operations import Operations
from minillama.runtime.packed import PackedExperts, PackedMatrix


@dataclass(frozen=True)
class Gated:
    """Weights of a gated network: ``blk.N.ffn_<field>``."""

    gate: PackedMatrix
    up: PackedMatrix
    down: PackedMatrix
    gate_bias: F32 | None = None
    up_bias: F32 | None = None
    down_bias: F32 | None = None


@dataclass(frozen=True)
class SharedExpert:
    """Weights of the expert that every token uses: ``blk.N.ffn_<field>``."""

    gate_shexp: PackedMatrix
    up_shexp: PackedMatrix
    down_shexp: PackedMatrix
    gate_inp_shexp: PackedMatrix | None = None


@dataclass(frozen=True)
class Experts:
    """Weights of experts: ``blk.N.ffn_<field>``. ``gate_inp`` is the router."""

    gate_inp: PackedMatrix
    gate_exps: PackedExperts
    up_exps: PackedExperts
    down_exps: PackedExperts
    gate_inp_bias: F32 | None = None
    gate_exps_bias: F32 | None = None
    up_exps_bias: F32 | None = None
    down_exps_bias: F32 | None = None
    shared: SharedExpert | None = None


def bind_feed_forward(binder: Binder, config: ModelConfig, i: int) -> Gated | Experts:
    """The network of layer ``i``: experts if the model has any."""
    return bind_experts(binder, config, i) if config.n_expert else bind_gated(binder, config, i)


def bind_gated(binder: Binder, config: ModelConfig, i: int) -> Gated:
    """The gated network of layer ``i``."""
    wide, narrow = (config.n_ff, config.n_embd), (config.n_embd, config.n_ff)
    return bind_fields(binder, Gated, f"blk.{i}.ffn_", {"gate": wide, "up": wide, "down": narrow})


def bind_experts(binder: Binder, config: ModelConfig, i: int, *, required: Sequence[str] = ()) -> Experts:
    """The experts of layer ``i``; biases are required or optional."""
    n_expert, n_embd, n_ff, n_shared = config.n_expert, config.n_embd, config.n_ff_exp, config.n_ff_shexp
    wide, narrow = (n_expert, n_ff, n_embd), (n_expert, n_embd, n_ff)
    shapes = {"gate_inp": (n_expert, n_embd), "gate_exps": wide, "up_exps": wide, "down_exps": narrow}
    shared_shapes = {
        "gate_shexp": (n_shared, n_embd), "up_shexp": (n_shared, n_embd), "down_shexp": (n_embd, n_shared),
        "gate_inp_shexp": (1, n_embd),
    }  # fmt: skip
    prefix = f"blk.{i}.ffn_"
    shared = bind_fields(binder, SharedExpert, prefix, shared_shapes) if n_shared else None
    return bind_fields(binder, Experts, prefix, shapes, required=required, shared=shared)


def gated(ops: Operations, w: Gated, h: F32, kind: str) -> F32:
    """``down(kind(gate(h)) * up(h))``: float32 [T, n_embd]; ``kind`` is ``"silu"`` or ``"gelu"``."""
    gate = ops.linear(h, w.gate, w.gate_bias, name="ffn_gate")  # [T, n_ff]
    up = ops.linear(h, w.up, w.up_bias, name="ffn_up")  # [T, n_ff]
    act = (ops.swiglu if kind == "silu" else ops.geglu)(gate, up, name="ffn_act")  # [T, n_ff]
    return ops.linear(act, w.down, w.down_bias, name="ffn_out")  # [T, n_embd]


def route(ops: Operations, w: Experts, h: F32, n_used: int, *, normalize: bool) -> tuple[I32, F32]:
    """Experts of each token, by the softmax over all of them, and their weights: int32 and float32 [T, n_used]."""
    logits = ops.mul_mat(h, w.gate_inp, name="ffn_moe_logits")  # [T, n_expert]
    probs = ops.soft_max(logits, name="ffn_moe_probs")  # [T, n_expert]
    ids, weights = ops.top_experts(probs, n_used, name="ffn_moe_weights")  # [T, n_used]
    if normalize:
        weights = ops.normalize_weights(weights, name="ffn_moe_weights_norm")  # [T, n_used]
    return ids, weights


def experts(ops: Operations, w: Experts, h: F32, n_used: int, *, normalize: bool) -> F32:
    """Each token's experts, weighted and added up, and the shared expert: float32 [T, n_embd].

    Parameters
    ----------
    ops, w, h
        Operations, weights, and what goes in: float32 [T, n_embd].
    n_used
        Experts of a token.
    normalize
        Whether the weights of a token's experts are made to add up to 1.
    """
    ids, weights = route(ops, w, h, n_used, normalize=normalize)  # [T, n_used]
    up = ops.mul_mat_id(h, w.up_exps, ids, name="ffn_moe_up")  # [T, n_used, n_ff]
    gate = ops.mul_mat_id(h, w.gate_exps, ids, name="ffn_moe_gate")  # [T, n_used, n_ff]
    act = ops.swiglu(gate, up, name="ffn_moe_swiglu")  # [T, n_used, n_ff]
    down = ops.mul_mat_id(act, w.down_exps, ids, name="ffn_moe_down")  # [T, n_used, n_embd]
    out = ops.sum_experts(down, weights, name="ffn_moe_out")  # [T, n_embd]
    return out if w.shared is None else ops.add(out, _shared(ops, w.shared, h), name="ffn_out")  # [T, n_embd]


def _shared(ops: Operations, w: SharedExpert, h: F32) -> F32:
    """The expert that every token uses, times a sigmoid of its own if it has one: float32 [T, n_embd]."""
    gate = ops.mul_mat(h, w.gate_shexp, name="ffn_gate_shexp")  # [T, n_ff_shexp]
    up = ops.mul_mat(h, w.up_shexp, name="ffn_up_shexp")  # [T, n_ff_shexp]
    act = ops.swiglu(gate, up, name="ffn_act_shexp")  # [T, n_ff_shexp]
    out = ops.mul_mat(act, w.down_shexp, name="ffn_shexp")  # [T, n_embd]
    if w.gate_inp_shexp is None:
        return out
    logit = ops.mul_mat(h, w.gate_inp_shexp, name="ffn_shexp_gate_inp")  # [T, 1]
    # llama.cpp takes the sigmoid as silu(x) / x.
    sigmoid = ops.div(ops.activation("silu", logit, name="ffn_shexp_silu"), logit, name="ffn_shexp_gate")  # [T, 1]
    return ops.mul_column(out, sigmoid, name="ffn_shexp_out")  # [T, n_embd]
