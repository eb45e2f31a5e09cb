"""A tiny model of every family, with the family's special features switched on, that llama.cpp loads as well."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from minillama.gguf import GGMLType, Writer
from tests.tiny_models import random_packed, vocabulary, vocabulary_metadata

E, FF, HEAD, HEAD_KV = 256, 512, 4, 2  # rows of 256 values: the least that K-quants allow
N_VOCAB, N_CTX = len(vocabulary()), 512
Shapes = dict[str, tuple[int, ...]]

# Types of matrices, in turn; the experts of gpt-oss are MXFP4.
TYPES = {
    "f16": (GGMLType.F16,),
    "quantized": (GGMLType.Q4_K, GGMLType.Q6_K, GGMLType.Q8_0),
    "mxfp4": (GGMLType.Q8_0, GGMLType.Q4_K, GGMLType.Q6_K),
}


_LAYER_NORM = ("gpt2", "gptneox", "starcoder2", "stablelm", "command-r", "cohere2", "bert", "nomic-bert")


@dataclass(frozen=True)
class TinyFamily:
    """What to write.

    Attributes
    ----------
    architecture
        ``general.architecture``.
    features
        What the table of families says about it.
    layer
        Shapes of a layer's tensors; a name without ``.bias`` gets ``.weight``.
    model
        Shapes of the tensors that belong to no layer, besides the embedding and the output norm.
    metadata
        Keys under the architecture's prefix, besides those that all models have.
    n_layer
        Number of layers.
    layers
        Shapes of tensors of single layers that differ from ``layer``.
    types
        Names of ``TYPES`` to write it with.
    """

    architecture: str
    features: str
    layer: Shapes
    model: Shapes = field(default_factory=lambda: {"output": (N_VOCAB, E)})
    metadata: Mapping[str, Any] = field(default_factory=dict)
    n_layer: int = 2
    layers: Mapping[int, Shapes] = field(default_factory=dict)
    types: tuple[str, ...] = ("f16", "quantized")

    def write(self, path: Path, types: str) -> Path:
        """Write the file with matrices of one kind of types."""
        with Writer(path, self.architecture) as writer:
            for key, value in self._metadata().items():
                writer.add(key, value)
            rng = np.random.default_rng(list(f"{self.architecture} {self.features} {types}".encode()))
            for i, (name, shape) in enumerate(self._tensors().items()):
                if _is_packed(name, shape):
                    type_ = TYPES[types][i % len(TYPES[types])]
                    if types == "mxfp4" and "_exps" in name:
                        type_ = GGMLType.MXFP4
                    rows = int(np.prod(shape[:-1]))
                    writer.add_tensor(name, random_packed(type_, rows, shape[-1], rng), type_, shape)
                else:
                    writer.add_tensor(name, _values(name, shape, rng))
        return path

    def _metadata(self) -> dict[str, Any]:
        common = {
            "block_count": self.n_layer,
            "context_length": N_CTX,
            "embedding_length": E,
            "feed_forward_length": FF,
            "attention.head_count": HEAD,
            "attention.head_count_kv": HEAD_KV,
        }
        layer_norm = self.architecture in _LAYER_NORM
        common["attention.layer_norm_epsilon" if layer_norm else "attention.layer_norm_rms_epsilon"] = 1e-5
        named = {f"{self.architecture}.{key}": value for key, value in {**common, **self.metadata}.items()}
        types = (
            {"tokenizer.ggml.token_type_count": 2} if "token_types" in self.model or "bert" in self.architecture else {}
        )
        return {**named, **types, **vocabulary_metadata()}

    def _tensors(self) -> Shapes:
        is_encoder = "token_embd_norm" in self.model  # those have no norm at the end
        listed: Shapes = {"token_embd": (N_VOCAB, E), **({} if is_encoder else {"output_norm": (E,)}), **self.model}
        for i in range(self.n_layer):
            shapes = {**self.layer, **self.layers.get(i, {})}
            listed |= {f"blk.{i}.{name}": shape for name, shape in shapes.items()}
        return {name if name.endswith(".bias") else f"{name}.weight": shape for name, shape in listed.items()}


def _is_packed(name: str, shape: tuple[int, ...]) -> bool:
    kept_as_floats = ("norm.weight", ".bias", "ffn_gate_inp.weight", "position_embd.weight", "token_types.weight")
    return len(shape) > 1 and not name.endswith(kept_as_floats)


def _values(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    if name.startswith("rope_"):
        return rng.uniform(1, 8, shape).astype(np.float32)
    if name.endswith("norm.weight"):
        return (1 + 0.1 * rng.standard_normal(shape)).astype(np.float32)
    return (0.1 * rng.standard_normal(shape)).astype(np.float32)


def attention(
    head_dim: int = E // HEAD, *, bias: bool = False, fused: bool = False, output_bias: bool = False
) -> Shapes:
    """Shapes of the projections of attention."""
    n_q, n_kv = HEAD * head_dim, HEAD_KV * head_dim
    rows = {"attn_qkv": n_q + 2 * n_kv} if fused else {"attn_q": n_q, "attn_k": n_kv, "attn_v": n_kv}
    shapes: Shapes = {name: (n, E) for name, n in rows.items()}
    if bias:
        shapes |= {f"{name}.bias": (n,) for name, n in rows.items()}
    shapes["attn_output"] = (E, n_q)
    return shapes | ({"attn_output.bias": (E,)} if output_bias else {})


def norms(*names: str, size: int = E, bias: bool = False) -> Shapes:
    """Shapes of norms of one size."""
    return dict.fromkeys(names, (size,)) | ({f"{name}.bias": (size,) for name in names} if bias else {})


def gated(*, bias: bool = False) -> Shapes:
    """Shapes of a gated feed-forward network."""
    shapes: Shapes = {"ffn_gate": (FF, E), "ffn_up": (FF, E), "ffn_down": (E, FF)}
    return shapes | ({f"{name}.bias": shape[:1] for name, shape in shapes.items()} if bias else {})


def plain() -> Shapes:
    """Shapes of a feed-forward network without a gate, with biases."""
    return {"ffn_up": (FF, E), "ffn_up.bias": (FF,), "ffn_down": (E, FF), "ffn_down.bias": (E,)}


def experts(n: int, n_ff: int = FF, *, bias: bool = False) -> Shapes:
    """Shapes of experts and their router."""
    shapes: Shapes = {
        "ffn_gate_inp": (n, E), "ffn_gate_exps": (n, n_ff, E), "ffn_up_exps": (n, n_ff, E),
        "ffn_down_exps": (n, E, n_ff),
    }  # fmt: skip
    return shapes | ({f"{name}.bias": shape[:-1] for name, shape in shapes.items()} if bias else {})


def shared(n_ff: int) -> Shapes:
    """Shapes of a shared expert."""
    return {"ffn_gate_shexp": (n_ff, E), "ffn_up_shexp": (n_ff, E), "ffn_down_shexp": (E, n_ff)}


HEAD_128 = {"attention.key_length": 128, "attention.value_length": 128}
PRE_NORMS = norms("attn_norm", "ffn_norm")
LAYER_NORMS = norms("attn_norm", "ffn_norm", bias=True)
POST_NORMS = norms("post_attention_norm", "post_ffw_norm")
YARN = {
    "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 128,
    "rope.freq_base": 1e6,
}  # fmt: skip
GRANITE = {"logit_scale": 6.0, "residual_scale": 0.22, "embedding_scale": 12.0, "attention.scale": 0.015625}
TIED: Shapes = {}
HEAD_AND_BIAS: Shapes = {"output": (N_VOCAB, E), "output_norm.bias": (E,)}


def qk_norms(q: int, k: int) -> Shapes:
    """Shapes of the norms of queries and keys."""
    return {"attn_q_norm": (q,), "attn_k_norm": (k,)}


def _llama(features: str, metadata: Mapping[str, Any], **options: Any) -> TinyFamily:
    return TinyFamily("llama", features, {**PRE_NORMS, **attention(), **gated()}, metadata=metadata, **options)


FAMILIES: Mapping[str, TinyFamily] = {
    "llama": TinyFamily(
        "llama", "biases everywhere, heads of 128", metadata=HEAD_128,
        layer={**PRE_NORMS, **attention(128, bias=True, output_bias=True), **gated(bias=True)},
    ),
    "llama-3.1": _llama(
        "rotary frequency factors, tied head", {"rope.freq_base": 5e5}, model={"rope_freqs": (E // HEAD // 2,)}
    ),
    "llama-linear": _llama("linear rotary scaling", {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}),
    "llama-yarn": _llama("YaRN", {**YARN, "rope.scaling.attn_factor": 1.1}),
    "mistral": _llama("window in the metadata, which llama.cpp does not apply", {"attention.sliding_window": 6}),
    "smollm3": TinyFamily(
        "smollm3", "every fourth layer without rotation", {**PRE_NORMS, **attention(), **gated()}, n_layer=4, model=TIED
    ),
    "deci": TinyFamily(
        "deci", "heads and widths that differ from layer to layer", n_layer=3, metadata={
            "attention.head_count": [HEAD, 2, 6], "attention.head_count_kv": [HEAD_KV, 2, 1],
            "feed_forward_length": [FF, 768, 256],
        },
        layer={**PRE_NORMS, **attention(), **gated()},
        layers={
            1: {"attn_q": (128, E), "attn_output": (E, 128), "ffn_gate": (768, E), "ffn_up": (768, E),
                "ffn_down": (E, 768)},
            2: {"attn_q": (384, E), "attn_k": (64, E), "attn_v": (64, E), "attn_output": (E, 384),
                "ffn_gate": (256, E), "ffn_up": (256, E), "ffn_down": (E, 256)},
        },
    ),
    "qwen2": TinyFamily(
        "qwen2", "biases of queries, keys, values and the head; YaRN", metadata=YARN,
        layer={**PRE_NORMS, **attention(bias=True), **gated()},
        model={"output": (N_VOCAB, E), "output.bias": (N_VOCAB,)},
    ),
    "qwen3": TinyFamily(
        "qwen3", "norms of query and key heads, heads of 128", metadata=HEAD_128, model=TIED,
        layer={**PRE_NORMS, **attention(128), **qk_norms(128, 128), **gated()},
    ),
    "gemma": TinyFamily(
        "gemma", "scaled embedding, GELU gate, heads of 128, tied head", metadata=HEAD_128, model=TIED,
        layer={**PRE_NORMS, **attention(128), **gated()},
    ),
    "gemma2": TinyFamily(
        "gemma2", "as gemma; norms after each part, windows in turn, capped scores and logits", model=TIED, n_layer=3,
        metadata={
            **HEAD_128, "attention.sliding_window": 6, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0,
        },
        layer={**PRE_NORMS, **POST_NORMS, **attention(128), **gated()},
    ),
    "gemma3": TinyFamily(
        "gemma3", "as gemma; norms after each part, of query and key heads; windows with a rotary base of their own; "
        "linear scaling elsewhere", model=TIED, n_layer=7,
        metadata={
            **HEAD_128, "attention.sliding_window": 6, "rope.freq_base": 1e6, "rope.scaling.type": "linear",
            "rope.scaling.factor": 8.0,
        },
        layer={**PRE_NORMS, **POST_NORMS, **qk_norms(128, 128), **attention(128), **gated()},
    ),
    "phi3": TinyFamily(
        "phi3", "one matrix for queries, keys and values, one for gate and up, LongRoPE (short), partial rotation",
        metadata={"rope.dimension_count": 48, "rope.scaling.type": "longrope", "rope.scaling.attn_factor": 1.19},
        layer={**PRE_NORMS, **attention(fused=True), "ffn_up": (2 * FF, E), "ffn_down": (E, FF)},
        model={"output": (N_VOCAB, E), "rope_factors_long": (24,), "rope_factors_short": (24,)},
    ),
    "phi3-long": TinyFamily(
        "phi3", "LongRoPE (long), biases, window in the metadata, which llama.cpp does not apply", model={
            "rope_factors_long": (32,), "rope_factors_short": (32,),
        },
        metadata={
            "rope.scaling.type": "longrope", "rope.scaling.attn_factor": 1.19, "attention.sliding_window": 6,
            "rope.scaling.original_context_length": 64,
        },
        layer={**PRE_NORMS, **attention(fused=True, bias=True), "ffn_up": (2 * FF, E), "ffn_down": (E, FF)},
    ),
    "olmo2": TinyFamily(
        "olmo2", "norms only after each part, norms of all query and all key heads",
        layer={**POST_NORMS, **attention(), **qk_norms(E, E // 2), **gated()},
    ),
    "olmo3": TinyFamily(
        "olmo2", "as olmo2; sliding windows without YaRN, the other layers with it", n_layer=3,
        metadata={**YARN, "attention.sliding_window": 6, "attention.sliding_window_pattern": [True, True, False]},
        layer={**POST_NORMS, **attention(), **qk_norms(E, E // 2), **gated()},
    ),
    "granite": TinyFamily(
        "granite", "multipliers of embedding, attention, residual and logits", metadata=GRANITE, model=TIED,
        layer={**PRE_NORMS, **attention(), **gated()},
    ),
    "granite-nope": TinyFamily(
        "granite", "as granite; no rotation", metadata={**GRANITE, "rope.scaling.finetuned": False},
        layer={**PRE_NORMS, **attention(), **gated()},
    ),
    "starcoder2": TinyFamily(
        "starcoder2", "LayerNorm with biases, GELU without gate, biases everywhere", model=HEAD_AND_BIAS,
        layer={
            **LAYER_NORMS, **attention(bias=True, output_bias=True), **plain(),
        },
    ),
    "gpt2": TinyFamily(
        "gpt2", "learned positions, LayerNorm with biases, one matrix for queries, keys and values",
        model={"output_norm.bias": (E,), "position_embd": (N_CTX, E)},
        layer={
            **LAYER_NORMS, **attention(fused=True, bias=True, output_bias=True), **plain(),
        },
    ),
    "gptneox": TinyFamily(
        "gptneox", "parallel residual, partial rotation", model=HEAD_AND_BIAS,
        metadata={"use_parallel_residual": True, "rope.dimension_count": 16},
        layer={
            **LAYER_NORMS, **attention(fused=True, bias=True, output_bias=True), **plain(),
        },
    ),
    "gptneox-sequential": TinyFamily(
        "gptneox", "sequential residual", metadata={"use_parallel_residual": False}, model=HEAD_AND_BIAS,
        layer={
            **LAYER_NORMS, **attention(fused=True, bias=True, output_bias=True), **plain(),
        },
    ),
    "stablelm": TinyFamily(
        "stablelm", "LayerNorm with biases, partial rotation, biases", model=HEAD_AND_BIAS,
        metadata={"rope.dimension_count": 16},
        layer={**norms("attn_norm", "ffn_norm", bias=True), **attention(bias=True), **gated()},
    ),
    "stablelm2-12b": TinyFamily(
        "stablelm", "as stablelm; LayerNorms of heads, each with its weights, parallel residual", model=HEAD_AND_BIAS,
        layer={
            **norms("attn_norm", bias=True), **attention(), **gated(), "attn_q_norm": (HEAD, 64),
            "attn_k_norm": (HEAD_KV, 64),
        },
    ),
    "command-r": TinyFamily(
        "command-r", "LayerNorm without bias, parallel residual, scaled logits", metadata={"logit_scale": 0.0625},
        model=TIED, layer={**norms("attn_norm"), **attention(bias=True), **gated()},
    ),
    "cohere2": TinyFamily(
        "cohere2", "as command-r; rotation in layers with a sliding window only", n_layer=5, model=TIED,
        metadata={"logit_scale": 0.25, "attention.sliding_window": 6},
        layer={**norms("attn_norm"), **attention(), **gated()},
    ),
    "llama-moe": TinyFamily(
        "llama", "2 of 4 experts (Mixtral)", metadata={"expert_count": 4, "expert_used_count": 2},
        layer={**PRE_NORMS, **attention(), **experts(4)},
    ),
    "qwen2moe": TinyFamily(
        "qwen2moe", "3 of 6 experts of a size of their own, shared expert with a gate",
        metadata={
            "expert_count": 6, "expert_used_count": 3, "expert_feed_forward_length": 256,
            "expert_shared_feed_forward_length": 768,
        },
        layer={
            **PRE_NORMS, **attention(bias=True), **experts(6, 256), **shared(768), "ffn_gate_inp_shexp": (E,),
        },
    ),
    "qwen3moe": TinyFamily(
        "qwen3moe", "3 of 21 experts, norms of query and key heads",
        metadata={**HEAD_128, "expert_count": 21, "expert_used_count": 3, "expert_feed_forward_length": 256},
        layer={**PRE_NORMS, **attention(128), **qk_norms(128, 128), **experts(21, 256)},
    ),
    "olmoe": TinyFamily(
        "olmoe", "2 of 7 experts, weights that do not add up to 1, norms of all heads",
        metadata={"expert_count": 7, "expert_used_count": 2, "attention.head_count_kv": HEAD},
        layer={
            **PRE_NORMS, **attention(), **experts(7), "attn_k": (E, E), "attn_v": (E, E), **qk_norms(E, E),
        },
    ),
    "granitemoe": TinyFamily(
        "granitemoe", "1 of 5 experts and a shared one, multipliers", model=TIED, metadata={
            **GRANITE, "expert_count": 5, "expert_used_count": 1, "expert_shared_feed_forward_length": 256,
        },
        layer={**PRE_NORMS, **attention(), **experts(5), **shared(256)},
    ),
    "gpt-oss": TinyFamily(
        "gpt-oss", "attention sinks, sliding windows in turn, 4 of 9 experts with biases, clamped gate, YaRN",
        types=("f16", "mxfp4"), n_layer=3,
        metadata={
            **YARN, **HEAD_128, "attention.sliding_window": 6, "expert_count": 9, "expert_used_count": 4,
            "expert_feed_forward_length": 256,
        },
        layer={
            **norms("attn_norm", "post_attention_norm"), **attention(128, bias=True, output_bias=True),
            "attn_sinks": (HEAD,), **experts(9, 256, bias=True),
        },
    ),
}  # fmt: skip

_BERT_NORMS = norms("attn_output_norm", "layer_output_norm", bias=True)
_BERT_MODEL: Shapes = {"token_types": (2, E), **norms("token_embd_norm", bias=True)}
_ENCODER = {"attention.head_count_kv": HEAD, "attention.causal": False}


def _every_head(*, bias: bool = False) -> Shapes:
    """Shapes of projections of as many key heads as query heads."""
    shapes = dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_output"), (E, E))
    return shapes | ({f"{name}.bias": (E,) for name in shapes} if bias else {})


ENCODERS: Mapping[str, TinyFamily] = {
    "bert": TinyFamily(
        "bert", "learned positions, token types, GELU, biases everywhere", model={
            **_BERT_MODEL, "position_embd": (N_CTX, E),
        },
        metadata={**_ENCODER, "pooling_type": 1},
        layer={**_BERT_NORMS, **_every_head(bias=True), **plain()},
    ),
    "bert-cls": TinyFamily(
        "bert", "as bert; the first token's vector, no token types, no biases of projections", n_layer=3, model={
            **norms("token_embd_norm", bias=True), "position_embd": (N_CTX, E),
        },
        metadata={**_ENCODER, "pooling_type": 2},
        layer={**_BERT_NORMS, **_every_head(), **plain()},
    ),
    "nomic-bert": TinyFamily(
        "nomic-bert", "rotation, one matrix for queries, keys and values, SwiGLU", model=_BERT_MODEL,
        metadata={**_ENCODER, "pooling_type": 1, "rope.freq_base": 1000.0},
        layer={**_BERT_NORMS, "attn_qkv": (3 * E, E), "attn_output": (E, E), **gated()},
    ),
}  # fmt: skip

CASES = [(name, types) for name, tiny in FAMILIES.items() for types in tiny.types]


def file_hash(path: Path) -> str:
    """First 16 hex digits of the SHA-256 of a file: whether the same file was written as when logits were recorded."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
