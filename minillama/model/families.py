"""Which architectures are supported, and the file that implements each."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from minillama.errors import UnsupportedError
from minillama.kernels.types import F32


@dataclass(frozen=True)
class Family:
    """How to bind the weights of an architecture, and its forward pass.

    Attributes
    ----------
    bind, forward
        The functions.
    is_encoder
        Every token sees the whole text, and the result is a vector for each instead of logits.
    """

    bind: Callable[..., Any]
    forward: Callable[..., F32]
    is_encoder: bool


@dataclass(frozen=True)
class Declaration:
    """An architecture as a module and what its two functions are told besides: variations are declared here.

    Attributes
    ----------
    module
        Name of the module in ``minillama.model``, imported when a model is made, so that asking what is supported costs
        nothing.
    bind, forward
        Arguments of the module's functions of these names.
    is_encoder
        As in :class:`Family`.
    """

    module: str
    bind: Mapping[str, Any] = field(default_factory=dict)
    forward: Mapping[str, Any] = field(default_factory=dict)
    is_encoder: bool = False


_NORM, _NEOX = {"pairing": "norm"}, {"pairing": "neox"}
_QK_NORM = {"qk_norm": "head"}

FAMILIES: Mapping[str, Declaration] = {
    "llama": Declaration("llama", forward=_NORM),
    "deci": Declaration("llama", forward=_NORM),
    "qwen2": Declaration("llama", forward=_NEOX),
    "qwen3": Declaration("llama", bind=_QK_NORM, forward=_NEOX),
    "smollm3": Declaration("llama", forward=_NORM),
    "granite": Declaration("llama", forward=_NORM),
    "gemma": Declaration("gemma"),
    "gemma2": Declaration("gemma", bind={"post_norms": True}),
    "gemma3": Declaration("gemma", bind={"post_norms": True, "qk_norms": True}),
    "olmo2": Declaration("olmo2"),
    "phi3": Declaration("phi3"),
    "gpt2": Declaration("gpt", bind={"learned_positions": True}, forward={"rotate": False}),
    "gptneox": Declaration("gpt"),
    "starcoder2": Declaration("gpt", bind={"fused": False}),
    "stablelm": Declaration("stablelm"),
    "command-r": Declaration("cohere"),
    "cohere2": Declaration("cohere"),
    "granitemoe": Declaration("llama", forward=_NORM),
    "olmoe": Declaration("llama", bind={"qk_norm": "row"}, forward={**_NEOX, "normalize": False}),
    "qwen2moe": Declaration("llama", forward={**_NEOX, "normalize": False}),
    "qwen3moe": Declaration("llama", bind=_QK_NORM, forward=_NEOX),
    "gpt-oss": Declaration("gpt_oss"),
    "bert": Declaration("bert", is_encoder=True),
    "nomic-bert": Declaration("bert", bind={"is_gated": True}, is_encoder=True),
}


def check_supported(architecture: str) -> None:
    """Raise if an architecture is not implemented.

    Raises
    ------
    UnsupportedError
        The message lists those that are.
    """
    if architecture not in FAMILIES:
        raise UnsupportedError(f"architecture {architecture!r} is not supported, supported are {', '.join(FAMILIES)}")


def family(architecture: str) -> Family:
    """The family of an architecture; an :class:`UnsupportedError` if there is none."""
    check_supported(architecture)
    declared = FAMILIES[architecture]
    module = importlib.import_module(f"minillama.model.{declared.module}")
    bind, forward = partial(module.bind, **declared.bind), partial(module.forward, **declared.forward)
    return Family(bind, forward, declared.is_encoder)
