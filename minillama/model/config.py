"""What a model is: its sizes and constants, read from GGUF metadata and checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from minillama.errors import GGUFError, UnsupportedError
from minillama.gguf import GGUFFile
from minillama.model.keys import Keys

ROPE_SCALINGS = ("none", "linear", "yarn", "longrope")
# llama.cpp's numbers of ``pooling_type``.
POOLINGS = ("none", "mean", "cls", "last", "rank")
# Architectures whose layers may differ in their numbers of heads and in the width of their feed-forward networks.
PER_LAYER = ("llama", "deci")


@dataclass(frozen=True)
class ModelConfig:
    """Hyperparameters of a transformer, named as in llama.cpp.

    Attributes
    ----------
    architecture
        ``general.architecture``.
    name
        ``general.name``, or the file's name.
    n_layer, n_embd, n_ff, n_head, n_head_kv
        Numbers of layers, of values per token, of values inside the feed-forward network, of query and of key heads;
        the last three of the first layer, if they differ.
    head_dim, value_dim
        Values per key head and per value head.
    n_vocab
        Rows of the token embedding.
    n_ctx_train
        Positions the model was trained for.
    norm_eps
        Epsilon of the norms.
    n_rot
        Values of a head that are rotated.
    rope_freq_base, rope_freq_scale
        Base of the rotary frequencies, and what angles are multiplied by (1 / factor with linear scaling).
    rope_freq_base_swa, rope_freq_scale_swa
        The same in layers with a sliding window.
    rope_scaling
        One of ``ROPE_SCALINGS``.
    rope_attn_factor
        What cosine and sine are multiplied by.
    n_ctx_orig
        Positions that the model was trained for before its context was stretched.
    rope_layers
        Whether each layer rotates queries and keys; empty: all do.
    n_swa, swa_layers
        Positions that a layer with a sliding window sees, and which layers have one; empty: none has.
    attention_scale
        What products of queries and keys are multiplied by; 0: by 1 / sqrt(head_dim).
    embedding_scale, residual_scale, logit_scale
        Multipliers of the embedding, of what is added to the residual stream, and of the logits; 0: none.
    attn_softcap, final_softcap
        Largest absolute value of attention scores and of logits, approached by a tangent; 0: none.
    n_expert, n_expert_used, n_ff_exp, n_ff_shexp
        Experts of a layer, those that each token uses, and values inside one and inside the shared one.
    parallel_residual
        Whether attention and feed-forward network have the same input.
    n_token_types
        Rows of the embedding of token types.
    pooling
        How the vectors of a text's tokens become its embedding, one of ``POOLINGS``; empty: the file does not say.
    n_ff_arr, n_head_arr, n_head_kv_arr
        ``n_ff``, ``n_head`` and ``n_head_kv`` of each layer, if they differ; see :meth:`layer`.
    """

    architecture: str
    name: str
    n_layer: int
    n_embd: int
    n_ff: int
    n_head: int
    n_head_kv: int
    head_dim: int
    value_dim: int
    n_vocab: int
    n_ctx_train: int
    norm_eps: float
    n_rot: int
    rope_freq_base: float
    rope_freq_scale: float
    rope_freq_base_swa: float = 10000.0
    rope_freq_scale_swa: float = 1.0
    rope_scaling: str = "linear"
    rope_attn_factor: float = 1.0
    n_ctx_orig: int = 0
    rope_layers: tuple[bool, ...] = ()
    n_swa: int = 0
    swa_layers: tuple[bool, ...] = ()
    attention_scale: float = 0.0
    embedding_scale: float = 0.0
    residual_scale: float = 0.0
    logit_scale: float = 0.0
    attn_softcap: float = 0.0
    final_softcap: float = 0.0
    n_expert: int = 0
    n_expert_used: int = 0
    n_ff_exp: int = 0
    n_ff_shexp: int = 0
    parallel_residual: bool = False
    n_token_types: int = 0
    pooling: str = ""
    n_ff_arr: tuple[int, ...] = ()
    n_head_arr: tuple[int, ...] = ()
    n_head_kv_arr: tuple[int, ...] = ()

    def layer(self, i: int) -> ModelConfig:
        """The configuration with layer ``i``'s numbers of heads and of values inside its feed-forward network."""
        if not self.n_head_arr:
            return self
        return replace(self, n_ff=self.n_ff_arr[i], n_head=self.n_head_arr[i], n_head_kv=self.n_head_kv_arr[i])

    @property
    def rope_theta_scale(self) -> np.float32:
        """Ratio of the angles of neighbouring pairs, ``powf(freq_base, -2 / n_rot)``."""
        return self.theta_scale(self.rope_freq_base)

    def theta_scale(self, base: float) -> np.float32:
        """Ratio of the angles of neighbouring pairs with another base."""
        from minillama.kernels.reference.libm import powf  # here, so that reading a configuration needs no kernels

        return np.float32(powf(np.float32(base), np.float32(np.float32(-2) / np.float32(self.n_rot))))

    @property
    def kq_scale(self) -> np.float32:
        """What products of queries and keys are multiplied by."""
        if self.attention_scale:
            return np.float32(self.attention_scale)
        return np.float32(np.float32(1) / np.sqrt(np.float32(self.head_dim)))

    def window(self, layer: int) -> int:
        """Positions that a layer sees, the token's own included; 0: all."""
        return self.n_swa if self.swa_layers and self.swa_layers[layer] else 0

    def rotates(self, layer: int) -> bool:
        """Whether a layer rotates queries and keys."""
        return not self.rope_layers or self.rope_layers[layer]


@dataclass(frozen=True)
class Rules:
    """How the metadata of an architecture is read, where architectures differ.

    Attributes
    ----------
    sees_all
        It is an encoder: tokens see those after them too.
    layer_norm
        Its norms are LayerNorms, whose epsilon has a key of its own.
    window_period
        Of so many layers in a row the last sees everything and the others have a sliding window; 0: none has.
    window
        Size of the window if the file has none: 0 for a model without windows, None if the key must be there.
    rope
        Layers that rotate: ``"all"``, ``"windows"`` (those with a window), ``"three_of_four"``, or ``"finetuned"``
        (all, or none if the key of that name is false).
    swa_base
        Rotary base of layers with a window if the file has none, and their angles are never scaled; None: base and
        scale are those of the other layers.
    logit_scale
        There may be a multiplier of the logits (``"maybe"``), or there must be (``"always"``).
    scales
        It has other multipliers too (the Granite family).
    softcaps
        Default caps of attention scores and of logits, if it has any; a default of 0 for scores: it has none.
    parallel_residual
        Whether the residual is parallel is written in the file.
    own_experts
        Experts have a size of their own, or share out that of the feed-forward network.
    shared_expert
        There may be an expert that every token uses (``"maybe"``), or there always is (``"always"``).
    n_layer_wide
        With so many layers, attention is scaled by the width of the model over its heads (the 27B models of Gemma).
    """

    sees_all: bool = False
    layer_norm: bool = False
    window_period: int = 0
    window: int | None = 0
    rope: str = "all"
    swa_base: float | None = None
    logit_scale: str = ""
    scales: bool = False
    softcaps: tuple[float, float] | None = None
    parallel_residual: bool = False
    own_experts: bool = False
    shared_expert: str = ""
    n_layer_wide: int = 0


RULES: Mapping[str, Rules] = {
    "smollm3": Rules(rope="three_of_four"),
    "granite": Rules(rope="finetuned", logit_scale="always", scales=True, shared_expert="maybe"),
    "granitemoe": Rules(logit_scale="always", scales=True, shared_expert="maybe"),
    "qwen2moe": Rules(own_experts=True, shared_expert="always"),
    "qwen3moe": Rules(own_experts=True),
    "gemma2": Rules(window_period=2, window=4096, softcaps=(50.0, 30.0), n_layer_wide=46),
    "gemma3": Rules(window_period=6, swa_base=10000.0, softcaps=(0.0, 0.0), n_layer_wide=62),
    "olmo2": Rules(window_period=4),
    "cohere2": Rules(layer_norm=True, window_period=4, window=None, rope="windows", logit_scale="always"),
    "gpt-oss": Rules(window_period=2, window=None, own_experts=True),
    "command-r": Rules(layer_norm=True, logit_scale="maybe"),
    "gptneox": Rules(layer_norm=True, parallel_residual=True),
    **dict.fromkeys(("bert", "nomic-bert"), Rules(layer_norm=True, sees_all=True)),
    **dict.fromkeys(("gpt2", "starcoder2", "stablelm"), Rules(layer_norm=True)),
}


def read_config(file: GGUFFile) -> ModelConfig:
    """Read the configuration of a model.

    Raises
    ------
    GGUFError
        A key is missing, has the wrong type, or the sizes contradict each other.
    UnsupportedError
        The file uses a feature that is not implemented: numbers of heads that differ from layer to layer where no layer
        of the family may, or an unknown rotary scaling.
    """
    keys = Keys(file)
    rules = RULES.get(keys.architecture, Rules())
    n_embd, n_layer = keys.integer("embedding_length"), keys.integer("block_count")
    sizes = _layer_sizes(keys, n_layer)
    n_head = sizes["n_head"]
    head_dim = keys.integer("attention.key_length", n_embd // n_head)
    n_ctx_train = keys.integer("context_length")
    eps = "attention.layer_norm_epsilon" if rules.layer_norm else "attention.layer_norm_rms_epsilon"
    config = ModelConfig(
        architecture=keys.architecture,
        name=file.get("general.name", str, file.path.stem),
        n_layer=n_layer,
        n_embd=n_embd,
        head_dim=head_dim,
        value_dim=keys.integer("attention.value_length", n_embd // n_head),
        n_vocab=_embedding_rows(file),
        n_ctx_train=n_ctx_train,
        norm_eps=keys.number(eps),
        n_rot=keys.integer("rope.dimension_count", head_dim),
        n_ctx_orig=keys.integer("rope.scaling.original_context_length", n_ctx_train),
        parallel_residual=rules.parallel_residual and keys.flag("use_parallel_residual"),
        n_token_types=file.get("tokenizer.ggml.token_type_count", int, 0),
        pooling=keys.choice("pooling_type", POOLINGS),
        **sizes,
        **_rope(keys, rules),
        **_windows(keys, rules, n_layer),
        **_multipliers(keys, rules, n_layer, n_embd // n_head),
        **_experts(keys, rules),
    )
    _check(config, file)
    if keys.flag("attention.causal", not rules.sees_all) == rules.sees_all:
        raise UnsupportedError(
            f"{keys.path}: attention.causal is {str(rules.sees_all).lower()}, which is not supported in "
            f"{keys.architecture}"
        )
    return config


def _layer_sizes(keys: Keys, n_layer: int) -> dict[str, Any]:
    """Numbers of heads and widths of feed-forward networks: the first layer's, and all of them if they differ."""
    heads = keys.per_layer("attention.head_count", n_layer)
    found = {
        "n_ff": keys.per_layer("feed_forward_length", n_layer, (0,) * n_layer),
        "n_head": heads,
        "n_head_kv": keys.per_layer("attention.head_count_kv", n_layer, heads),
    }
    first = {name: values[0] for name, values in found.items()}
    differing = [name for name, values in found.items() if len(set(values)) > 1]
    if not differing:
        return first
    if keys.architecture not in PER_LAYER:
        raise UnsupportedError(
            f"{keys.path}: {', '.join(differing)} differ from layer to layer, which is supported in"
            f" {', '.join(PER_LAYER)}, not in {keys.architecture}"
        )
    return {**first, **{f"{name}_arr": values for name, values in found.items()}}


def _embedding_rows(file: GGUFFile) -> int:
    if "token_embd.weight" not in file.tensors:
        raise GGUFError("tensor 'token_embd.weight' is missing", path=str(file.path))
    return file.tensors["token_embd.weight"].shape[0]


def _rope(keys: Keys, rules: Rules) -> dict[str, Any]:
    scaling = keys.text("rope.scaling.type", "linear")
    if scaling not in ROPE_SCALINGS:
        raise UnsupportedError(
            f"{keys.path}: rotary scaling {scaling!r} is not supported, supported are {', '.join(ROPE_SCALINGS)}"
        )
    factor = keys.number("rope.scaling.factor", keys.number("rope.scale_linear", 0.0))
    base = keys.number("rope.freq_base", 10000.0)
    scale = float(np.float32(1) / np.float32(factor)) if factor and scaling != "none" else 1.0
    return {
        "rope_scaling": scaling,
        "rope_freq_base": base,
        "rope_freq_base_swa": keys.number("rope.freq_base_swa", base if rules.swa_base is None else rules.swa_base),
        "rope_freq_scale": scale,
        "rope_freq_scale_swa": scale if rules.swa_base is None else 1.0,
        "rope_attn_factor": keys.number("rope.scaling.attn_factor", 1.0),
    }


def _windows(keys: Keys, rules: Rules, n_layer: int) -> dict[str, Any]:
    size = keys.integer("attention.sliding_window", rules.window) if rules.window_period else 0
    has_window: tuple[bool, ...] = ()
    if size:
        pattern = keys.integer_or_array("attention.sliding_window_pattern", rules.window_period, n_layer)
        if isinstance(pattern, int):
            pattern = [i % pattern < pattern - 1 for i in range(n_layer)]
        has_window = tuple(map(bool, pattern))
    every_fourth = tuple((i + 1) % 4 != 0 for i in range(n_layer))
    rotates = {
        "all": (),
        "windows": has_window,
        "three_of_four": every_fourth,
        "finetuned": () if keys.flag("rope.scaling.finetuned", True) else (False,) * n_layer,
    }
    return {"n_swa": size, "swa_layers": has_window, "rope_layers": rotates[rules.rope]}


def _multipliers(keys: Keys, rules: Rules, n_layer: int, width: int) -> dict[str, Any]:
    found = {}
    if rules.softcaps is not None:
        attn_softcap, final_softcap = rules.softcaps
        found["final_softcap"] = keys.number("final_logit_softcapping", final_softcap)
        found["attn_softcap"] = keys.number("attn_logit_softcapping", attn_softcap) if attn_softcap else 0.0
    if rules.logit_scale:
        found["logit_scale"] = keys.number("logit_scale", None if rules.logit_scale == "always" else 0.0)
    if rules.scales:
        found |= {name: keys.number(name, 0.0) for name in ("residual_scale", "embedding_scale")}
        found["attention_scale"] = keys.number("attention.scale", 0.0)
    if n_layer == rules.n_layer_wide:
        found["attention_scale"] = float(np.float32(1) / np.sqrt(np.float32(width)))
    return found


def _experts(keys: Keys, rules: Rules) -> dict[str, Any]:
    n_expert = keys.integer("expert_count", 0)
    if not n_expert:
        return {}
    n_used, n_ff = keys.integer("expert_used_count"), keys.integer("feed_forward_length", 0)
    n_ff_shexp = keys.integer("expert_shared_feed_forward_length", 0) if rules.shared_expert else 0
    return {
        "n_expert": n_expert,
        "n_expert_used": n_used,
        "n_ff_exp": (keys.integer("expert_feed_forward_length", 0) or n_ff // n_used) if rules.own_experts else n_ff,
        "n_ff_shexp": n_ff_shexp or (n_ff if rules.shared_expert == "always" else 0),
    }


def _check(config: ModelConfig, file: GGUFFile) -> None:
    path = str(file.path)
    for layer in map(config.layer, range(config.n_layer)):
        if layer.n_head % layer.n_head_kv:
            heads, heads_kv = layer.n_head, layer.n_head_kv
            raise GGUFError(f"head_count {heads} is not a multiple of head_count_kv {heads_kv}", path=path)
    if config.n_rot % 2 or config.n_rot > config.head_dim:
        raise GGUFError(
            f"rope.dimension_count is {config.n_rot}, an even number up to the head's {config.head_dim} is wanted",
            path=path,
        )
    if config.n_expert_used > config.n_expert:
        raise GGUFError(f"expert_used_count {config.n_expert_used} is more than {config.n_expert} experts", path=path)
