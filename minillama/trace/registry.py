"""All points: the named values that forward passes have, what they mean, and what others call them.

``docs/points.md`` is made from this table (:mod:`minillama.trace.document`).
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass


@dataclass(frozen=True)
class PointKind:
    """A named value of a pass, or of each layer of it.

    Attributes
    ----------
    name
        Its name; for a value of a layer, what comes after ``blk.N.``.
    shape
        Its axes; T is the number of tokens, d the size of a head.
    meaning
        What it is.
    llama_cpp
        Names of llama.cpp's tensors that hold it, without ``-N``. Where several points share one, it means the last
        that the model has.
    transformer_lens
        TransformerLens's name for it, for a value of a layer what comes after ``blocks.N.``.
    only
        Which models have it; empty: all that the name suggests.
    """

    name: str
    shape: str
    meaning: str
    llama_cpp: tuple[str, ...] = ()
    transformer_lens: str = ""
    only: str = ""


def _k(
    name: str, shape: str, meaning: str, llama_cpp: str = "", transformer_lens: str = "", only: str = ""
) -> PointKind:
    return PointKind(name, shape, meaning, tuple(llama_cpp.split()), transformer_lens, only)


_E, _Q, _KV, _FF = "[T, n_embd]", "[T, n_head * d]", "[T, n_head_kv * d]", "[T, n_ff]"
_MOE, _USED, _WIDE = "[T, n_expert]", "[T, n_used]", "[T, n_used, n_ff]"
_BIASED = "layers with biases"
_EXPERTS = "models with experts"
_SHARED = "models with a shared expert"

FIRST = (
    _k("token_embd", _E, "rows of the embedding", "embd", "hook_embed"),
    _k("embd", _E, "the embedding, multiplied", "embd", only="granite"),
    _k("inp_scaled", _E, "the embedding times sqrt(n_embd)", "inp_scaled", only="gemma family"),
    _k("pos_embd", _E, "embedding of the positions", "pos_embd", "hook_pos_embed", only="gpt2"),
    _k("inpL", _E, "sum of both embeddings", "inpL", only="gpt2"),
)
LAYER = (
    _k("attn_norm", _E, "the norm before attention, with its weight", "attn_norm", "ln1.hook_normalized"),
    _k("wqkv", "[T, (n_head + 2 n_head_kv) * d]", "queries, keys and values", "wqkv", only="gpt2, gptneox, phi3"),
    _k("q", _Q, "queries, with their bias, before rotation", "Qcur", "attn.hook_q"),
    _k("k", _KV, "keys, with their bias, before rotation", "Kcur", "attn.hook_k"),
    _k("v", _KV, "values, with their bias", "Vcur", "attn.hook_v"),
    _k("q_norm_no_weight", _Q, "normed queries, before each head's weight", only="stablelm with norms of heads"),
    _k("k_norm_no_weight", _KV, "normed keys, before each head's weight", only="stablelm with norms of heads"),
    _k("q_norm", _Q, "queries after their norm", "Qcur_normed", only="qwen3, gemma3, olmo2, olmoe"),
    _k("k_norm", _KV, "keys after their norm", "Kcur_normed", only="qwen3, gemma3, olmo2, olmoe"),
    _k("q_rope_no_scale", _Q, "rotated queries, before they are scaled", only="phi3"),
    _k("q_rope", _Q, "rotated queries", "Qcur", "attn.hook_rot_q", "layers that rotate"),
    _k("k_rope", _KV, "rotated keys, as the cache holds them", "Kcur", "attn.hook_rot_k", "layers that rotate"),
    _k("q_scaled", _Q, "queries times the scale of attention", "Qcur_scaled Qcur", only="gemma family, phi3"),
    _k("kq", "[T, n_head, n_kv]", "queries times keys, unscaled; -inf ahead", "kq", "attn.hook_attn_scores"),
    _k("kq_soft_max", "[T, n_head, n_kv]", "attention weights", "kq_soft_max", "attn.hook_pattern"),
    _k("kqv", _Q, "weighted sums of values, head after head", "kqv_out", "attn.hook_z"),
    _k("attn_out", _E, "what attention adds to the residual stream", "attn_out", "hook_attn_out"),
    _k("attn_out_selected", _E, "the same, of the tokens whose logits are wanted", only="the last layer"),
    _k("inp_selected", _E, "the layer's input, of the tokens whose logits are wanted", only="the last layer"),
    _k("ffn_inp_selected", _E, "the norm's result, of these tokens", only="last layer of command-r, cohere2"),
    _k("attn_norm_selected", _E, "the norm's result, of these tokens", only="the last layer of stablelm"),
    _k("attn_out_scaled", _E, "attention's result, multiplied", only="granite"),
    _k("attn_post_norm", _E, "a norm after attention", "attn_post_norm", only="gemma2, gemma3, olmo2, gpt-oss"),
    _k("sa_out", _E, "the residual stream after attention", "sa_out", "hook_resid_mid", "gemma family"),
    _k("ffn_inp", _E, "the residual stream after attention", "ffn_inp", "hook_resid_mid"),
    _k("ffn_norm", _E, "the norm before feed-forward, with its weight", "ffn_norm", "ln2.hook_normalized"),
    _k("ffn_gate_up", "[T, 2 n_ff]", "gate and up together", "ffn_up", only="phi3"),
    _k("ffn_gate", _FF, "the gate, before its activation function", "ffn_gate", "mlp.hook_pre"),
    _k("ffn_up", _FF, "what the gate multiplies", "ffn_up", "mlp.hook_pre_linear"),
    _k("ffn_act", _FF, "what the last product takes", "ffn_swiglu ffn_geglu ffn_gelu", "mlp.hook_post"),
    _k("ffn_moe_logits", _MOE, "the router's scores", "ffn_moe_logits", only=_EXPERTS),
    _k("ffn_moe_probs", _MOE, "softmax of the router's scores", "ffn_moe_probs", only=_EXPERTS),
    _k("ffn_moe_weights", _USED, "scores of the experts used, highest first", "ffn_moe_weights", only=_EXPERTS),
    _k("ffn_moe_weights_norm", _USED, "these, divided by their sum", "ffn_moe_weights_norm", only=_EXPERTS),
    _k("ffn_moe_weights_softmax", _USED, "softmax of these", "ffn_moe_weights_softmax", only="gpt-oss"),
    _k("ffn_moe_up", _WIDE, "what each used expert's gate multiplies", "ffn_moe_up", only=_EXPERTS),
    _k("ffn_moe_gate", _WIDE, "each used expert's gate", "ffn_moe_gate", only=_EXPERTS),
    _k("ffn_moe_swiglu", _WIDE, "what each used expert's last product takes", "ffn_moe_swiglu", only=_EXPERTS),
    _k("ffn_moe_swiglu_oai", _WIDE, "the same, with a clamped gate", "ffn_moe_swiglu_oai", only="gpt-oss"),
    _k("ffn_moe_down", "[T, n_used, n_embd]", "each used expert's result", "ffn_moe_down", only=_EXPERTS),
    _k("ffn_moe_out", _E, "the experts' results, weighted, added up", "ffn_moe_out", only=_EXPERTS),
    _k("ffn_gate_shexp", _FF, "the shared expert's gate", "ffn_gate", only=_SHARED),
    _k("ffn_up_shexp", _FF, "what the shared expert's gate multiplies", "ffn_up", only=_SHARED),
    _k("ffn_act_shexp", _FF, "what goes into the shared expert's last product", "ffn_swiglu", only=_SHARED),
    _k("ffn_shexp", _E, "the shared expert's result", "ffn_shexp", only=_SHARED),
    _k("ffn_shexp_gate_inp", "[T, 1]", "score of the shared expert", only="qwen2moe"),
    _k("ffn_shexp_silu", "[T, 1]", "SiLU of that score", only="qwen2moe"),
    _k("ffn_shexp_gate", "[T, 1]", "sigmoid of that score", only="qwen2moe"),
    _k("ffn_shexp_out", _E, "the shared expert's result times that sigmoid", "ffn_shexp_out", only="qwen2moe"),
    _k("ffn_out", _E, "what feed-forward adds to the residual stream", "ffn_out", "hook_mlp_out"),
    _k("ffn_out_scaled", _E, "feed-forward's result, multiplied", only="granite"),
    _k("ffn_out_inp", _E, "feed-forward's result plus the layer's input", "ffn_out", only="parallel layers of gptneox"),
    _k("ffn_post_norm", _E, "a norm after feed-forward", "ffn_post_norm", only="gemma2, gemma3, olmo2"),
    _k("l_out_no_attn", _E, "the layer's result without attention's", only="command-r, cohere2"),
    _k("l_out", _E, "the residual stream after the layer", "l_out", "hook_resid_post"),
)  # fmt: skip
LAST = (
    _k("result_norm", _E, "the last norm, with its weight", "result_norm", "ln_final.hook_normalized"),
    _k("result_output_no_scale", "[T, n_vocab]", "logits before they are scaled", only="granite, command-r, cohere2"),
    _k("result_output_no_cap", "[T, n_vocab]", "logits before they are capped", only="gemma2"),
    _k("result_output", "[T, n_vocab]", "logits", "result_output"),
)
NO_BIAS = "_no_bias"
_PACKED = re.compile(r"\.(q8_0|q8_1|q8_k)$")

_KINDS = {kind.name: kind for kind in (*FIRST, *LAYER, *LAST)}


@functools.lru_cache(maxsize=4096)
def kind_of(name: str) -> PointKind | None:
    """What the registry says of a full name such as ``blk.3.attn_norm``; None if it knows no such name."""
    bare = re.sub(r"^blk\.\d+\.", "", name)
    packed = _PACKED.search(bare)
    if packed:
        of = kind_of(bare[: packed.start()])
        if of is None:
            return None
        meaning = f"rows of {of.name} as the blocks that dot products take ({packed[1].upper()})"
        return PointKind(bare, "[T, row bytes]", meaning, only="quantized weights")
    if bare.endswith(NO_BIAS):
        of = kind_of(bare.removesuffix(NO_BIAS))
        return of and PointKind(bare, of.shape, f"{of.name} before its bias is added", only=_BIASED)
    return _KINDS.get(bare)


def by_alias(alias: str) -> list[str]:
    """Names, or patterns if the alias is one, that an alias stands for, in the order of the pass; empty if none."""
    found = re.fullmatch(r"blocks\.(\d+|\*)\.(.+)", alias)
    if found:
        return [f"blk.{found[1]}.{kind.name}" for kind in LAYER if kind.transformer_lens == found[2]]
    found = re.fullmatch(r"(\w+)-(\d+|\*)", alias)
    if found:
        return [f"blk.{found[2]}.{kind.name}" for kind in LAYER if found[1] in kind.llama_cpp]
    return [
        kind.name for kind in (*FIRST, *LAST) if alias and (alias == kind.transformer_lens or alias in kind.llama_cpp)
    ]
