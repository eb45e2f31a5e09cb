"""Which type each tensor of a file gets: llama.cpp's standard mixes.

A mix has one type for most matrices and others for those that cost most when they are coarse: the output, values and
the feed-forward's second matrix, in the first, last and every third layer. The rules are those of ``llama-quant.cpp``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from minillama.errors import GGUFError, UnsupportedError
from minillama.gguf import BLOCK_SIZE, GGMLType, GGUFFile, TensorInfo

_Q = GGMLType


@dataclass(frozen=True)
class Mix:
    """A mix: its name, its number in ``general.file_type``, and the type of most matrices."""

    name: str
    file_type: int
    base: GGMLType


MIXES: Mapping[str, Mix] = {
    mix.name: mix
    for mix in (
        Mix("F32", 0, _Q.F32),
        Mix("F16", 1, _Q.F16),
        Mix("BF16", 32, _Q.BF16),
        Mix("Q8_0", 7, _Q.Q8_0),
        Mix("Q4_0", 2, _Q.Q4_0),
        Mix("Q4_1", 3, _Q.Q4_1),
        Mix("Q5_0", 8, _Q.Q5_0),
        Mix("Q5_1", 9, _Q.Q5_1),
        Mix("Q2_K", 10, _Q.Q2_K),
        Mix("Q3_K_S", 11, _Q.Q3_K),
        Mix("Q3_K_M", 12, _Q.Q3_K),
        Mix("Q3_K_L", 13, _Q.Q3_K),
        Mix("Q4_K_S", 14, _Q.Q4_K),
        Mix("Q4_K_M", 15, _Q.Q4_K),
        Mix("Q5_K_S", 16, _Q.Q5_K),
        Mix("Q5_K_M", 17, _Q.Q5_K),
        Mix("Q6_K", 18, _Q.Q6_K),
    )
}
_FLOATS = (_Q.F32, _Q.F16, _Q.BF16)


def mix_named(name: str) -> Mix:
    """The mix of a name in any case.

    Raises
    ------
    UnsupportedError
        There is no such mix; the message lists those there are.
    """
    mix = MIXES.get(name.upper())
    if mix is None:
        raise UnsupportedError(f"mix {name!r} is not supported, supported are {', '.join(MIXES)}")
    return mix


@dataclass(frozen=True)
class _Facts:
    """What the rules ask of a model."""

    n_layer: int
    heads_per_kv_head: int
    is_70b: bool
    has_importance: bool
    is_tied: bool  # the embedding is the output too
    n_values: int  # matrices of values


@dataclass(frozen=True)
class _Place:
    """How many tensors of its kind come before a tensor, and of how many."""

    index: int
    count: int

    def gets_more_bits(self) -> bool:
        """In the first and last eighth, and every third between."""
        eighth = self.count // 8
        return self.index < eighth or self.index >= 7 * self.count // 8 or (self.index - eighth) % 3 == 2

    def is_among_the_first(self, part: int) -> bool:
        """In the first of ``part`` equal parts."""
        return self.index < self.count // part


def _more_bits(base: GGMLType) -> Callable[[_Place, _Facts], GGMLType]:
    return lambda place, _: _Q.Q6_K if place.gets_more_bits() else base


_Rule = Callable[[_Place, _Facts], GGMLType]

# What a mix does differently from its base, by kind of tensor.
_VALUES: dict[str, _Rule] = {
    "Q2_K": lambda _, facts: _Q.Q4_K if facts.heads_per_kv_head >= 4 else _Q.Q3_K,
    "Q3_K_M": lambda place, _: _Q.Q5_K if place.index < 2 else _Q.Q4_K,
    "Q3_K_L": lambda *_: _Q.Q5_K,
    "Q4_K_S": lambda place, _: _Q.Q5_K if place.index < 4 else _Q.Q4_K,
    "Q4_K_M": _more_bits(_Q.Q4_K),
    "Q5_K_M": _more_bits(_Q.Q5_K),
}
_FFN_DOWN: dict[str, _Rule] = {
    "Q4_0": lambda place, facts: _Q.Q4_1 if facts.has_importance and place.is_among_the_first(8) else _Q.Q4_0,
    "Q5_0": lambda place, facts: _Q.Q5_1 if facts.has_importance and place.is_among_the_first(8) else _Q.Q5_0,
    "Q2_K": lambda *_: _Q.Q3_K,
    "Q3_K_M": lambda place, _: _Q.Q5_K if place.is_among_the_first(16) else _Q.Q4_K,
    "Q3_K_L": lambda *_: _Q.Q5_K,
    "Q4_K_S": lambda place, _: _Q.Q5_K if place.is_among_the_first(8) else _Q.Q4_K,
    "Q4_K_M": _more_bits(_Q.Q4_K),
    "Q5_K_M": _more_bits(_Q.Q5_K),
}
_ATTENTION_OUTPUT = {"Q2_K": _Q.Q3_K, "Q3_K_M": _Q.Q4_K, "Q3_K_L": _Q.Q5_K}

_EMBEDDINGS = ("token_embd.weight", "per_layer_token_embd.weight")
_VALUE_NAMES = ("attn_qkv.weight", "attn_kv_b.weight", "attn_v.weight")

# Matrices that stay as they are: small or sensitive ones, of any architecture.
_KEPT = (
    "_norm.weight", "ffn_gate_inp.weight", "ffn_gate_tid2eid.weight", "altup", "laurel", "per_layer_model_proj",
    "ssm_conv1d", "shortconv.conv.weight", "indexer.k_proj.weight", "indexer.q_proj.weight", "time_mix_first.weight",
    "time_mix_w0.weight", "time_mix_w1.weight", "time_mix_w2.weight", "time_mix_v0.weight", "time_mix_v1.weight",
    "time_mix_v2.weight", "time_mix_a0.weight", "time_mix_a1.weight", "time_mix_a2.weight", "time_mix_g1.weight",
    "time_mix_g2.weight", "time_mix_decay_w1.weight", "time_mix_decay_w2.weight", "time_mix_lerp_fused.weight",
    "attn_rel_b.weight", ".position_embd", "sam.pos_embd", "sam.neck.", "sam.net_", ".rel_pos", ".patch_embd",
    ".patch_merger", "a.rvq.codebook", "mm.a.code_embd",
)  # fmt: skip
_KEPT_NAMES = ("position_embd.weight", "token_types.weight")
_OTHER_RULES = ("falcon", "glm5-next")  # architectures with exceptions of their own

# For rows that are not whole blocks; where these do not fit either, F16.
_FALLBACKS = {_Q.Q2_K: _Q.Q4_0, _Q.Q3_K: _Q.Q4_0, _Q.Q4_K: _Q.Q5_0, _Q.Q5_K: _Q.Q5_1, _Q.Q6_K: _Q.Q8_0}


def in_llama_cpp_order(tensors: Iterable[TensorInfo]) -> list[TensorInfo]:
    """Tensors in the order of llama.cpp's quantizer: those of no layer first, then layer by layer, by name."""

    def key(tensor: TensorInfo) -> tuple[int, bytes]:
        layer = re.match(r"blk\.(\d+)\.", tensor.name)
        return int(layer[1]) if layer else -1, tensor.name.encode()

    return sorted(tensors, key=key)


def choose_types(file: GGUFFile, mix: Mix, *, has_importance: bool) -> dict[str, GGMLType]:
    """The type of every tensor that changes or stays, by name, in the order of :func:`in_llama_cpp_order`.

    Raises
    ------
    UnsupportedError
        The model has experts or an architecture whose exceptions are not known here, or a tensor's type is not known.
    GGUFError
        The file lacks a number that the rules need.
    """
    ordered = in_llama_cpp_order(file.tensors.values())
    facts = _facts(file, ordered, has_importance) if mix.base not in _FLOATS else None
    chosen: dict[str, GGMLType] = {}
    counts = {"values": 0, "ffn_down": 0}
    for tensor in ordered:
        if tensor.type is None:
            raise UnsupportedError(f"{file.path}: tensor {tensor.name!r} has {tensor.type_name}")
        if not _is_quantized(tensor):
            chosen[tensor.name] = tensor.type
        elif facts is None:
            chosen[tensor.name] = mix.base
        else:
            chosen[tensor.name] = _fitting(_mixed_type(tensor, mix, facts, counts), tensor.shape[-1])
    return chosen


def _is_quantized(tensor: TensorInfo) -> bool:
    """Whether a tensor is a matrix that mixes change; one row is no matrix."""
    name = tensor.name
    if math.prod(tensor.shape[:-1]) < 2 or not name.endswith("weight") or name in _KEPT_NAMES:
        return False
    return not any(part in name for part in _KEPT)


def _mixed_type(tensor: TensorInfo, mix: Mix, facts: _Facts, counts: dict[str, int]) -> GGMLType:
    name = tensor.name
    if name == "output.weight" or (facts.is_tied and name in _EMBEDDINGS):
        if tensor.shape[-1] % BLOCK_SIZE[mix.base] or mix.base is _Q.Q8_0:
            return _Q.Q8_0
        return _Q.Q6_K
    if any(part in name for part in _VALUE_NAMES):
        place = _Place(counts["values"], facts.n_values)
        counts["values"] += 1
        type_ = _VALUES[mix.name](place, facts) if mix.name in _VALUES else mix.base
        return _Q.Q5_K if facts.is_70b and type_ in (_Q.Q3_K, _Q.Q4_K) else type_
    if "attn_output.weight" in name:
        return _ATTENTION_OUTPUT.get(mix.name, mix.base)
    if "ffn_down" in name:
        place = _Place(counts["ffn_down"], facts.n_layer)
        counts["ffn_down"] += 1
        if mix.name in _FFN_DOWN:
            return _FFN_DOWN[mix.name](place, facts)
    return mix.base


def _fitting(type_: GGMLType, n: int) -> GGMLType:
    """The type, or what takes its place when rows of ``n`` values are not whole blocks of it."""
    if n % BLOCK_SIZE[type_]:
        type_ = _FALLBACKS.get(type_, type_)
    return _Q.F16 if n % BLOCK_SIZE[type_] else type_


def _facts(file: GGUFFile, tensors: list[TensorInfo], has_importance: bool) -> _Facts:
    architecture = file.get("general.architecture", str)
    if architecture in _OTHER_RULES:
        raise UnsupportedError(
            f"{file.path}: the mixes of architecture {architecture!r} are not known, nor those of"
            f" {', '.join(name for name in _OTHER_RULES if name != architecture)}; all others are"
        )
    if file.get(f"{architecture}.expert_count", int, 0) > 1:
        raise UnsupportedError(f"{file.path}: the mixes of models with experts are not known, only of dense models")
    n_layer = file.get(f"{architecture}.block_count", int)
    n_head = _first(file, f"{architecture}.attention.head_count")
    n_head_kv = _first(file, f"{architecture}.attention.head_count_kv", n_head)
    return _Facts(
        n_layer=n_layer,
        heads_per_kv_head=n_head // n_head_kv if n_head_kv else 0,
        is_70b=architecture == "llama" and n_layer == 80 and n_head != n_head_kv,
        has_importance=has_importance,
        is_tied="output.weight" not in file.tensors,
        n_values=sum(any(part in tensor.name for part in _VALUE_NAMES) for tensor in tensors),
    )


def _first(file: GGUFFile, key: str, default: int | None = None) -> int:
    """A whole number, or the first layer's where there is one per layer."""
    value = file.metadata.get(key, default)
    if hasattr(value, "tolist"):
        value = next(iter(value.tolist()), None)
    if isinstance(value, bool) or not isinstance(value, int):
        raise GGUFError(f"key {key!r}: a whole number is wanted to choose types", path=str(file.path))
    return value
