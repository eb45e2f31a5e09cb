"""Which architectures are supported, and the file that implements each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from minillama.errors import UnsupportedError
from minillama.kernels.types import F32
from minillama.model import llama


@dataclass(frozen=True)
class Family:
    """How to bind the weights of an architecture, and its forward pass."""

    bind: Callable[..., Any]
    forward: Callable[..., F32]


FAMILIES: Mapping[str, Family] = {
    "llama": Family(llama.bind, partial(llama.forward, pairing="norm")),
    "qwen2": Family(llama.bind, partial(llama.forward, pairing="neox")),
}


def family(architecture: str) -> Family:
    """The family of an architecture.

    Raises
    ------
    UnsupportedError
        The architecture is not implemented; the message lists those that are.
    """
    if architecture not in FAMILIES:
        raise UnsupportedError(f"architecture {architecture!r} is not supported, supported are {', '.join(FAMILIES)}")
    return FAMILIES[architecture]
