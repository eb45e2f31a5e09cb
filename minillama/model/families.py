"""Which architectures are supported, and the file that implements each."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from minillama.errors import UnsupportedError
from minillama.kernels.types import F32


@dataclass(frozen=True)
class Family:
    """How to bind the weights of an architecture, and its forward pass."""

    bind: Callable[..., Any]
    forward: Callable[..., F32]


# The module of each architecture, and what its forward pass is told besides: variations are declared here. Modules are
# imported when a model is made, so that asking what is supported costs nothing.
FAMILIES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "llama": ("llama", {"pairing": "norm"}),
    "qwen2": ("llama", {"pairing": "neox"}),
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
    name, variation = FAMILIES[architecture]
    module = importlib.import_module(f"minillama.model.{name}")
    return Family(module.bind, partial(module.forward, **variation))
