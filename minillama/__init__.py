"""GGUF inference in pure Python, bit-equal to llama.cpp's portable build.

Everything is imported on first use, so that ``import minillama`` costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minillama import errors, gguf
    from minillama.chat import ChatTemplate
    from minillama.errors import (
        AdapterError,
        CacheFileError,
        ChatTemplateError,
        ContextFullError,
        GGUFError,
        HubError,
        InvalidInputError,
        MinillamaError,
        MissingDependencyError,
        TokenizerError,
        TraceBudgetError,
        UnknownPointError,
        UnsupportedError,
    )
    from minillama.generate import Conversation, Generation, LanguageModel, Piece, load
    from minillama.quantization import dequantize, quantize
    from minillama.sampling import SamplingParams
    from minillama.tokenizer import Tokenizer
    from minillama.trace import Trace

__version__ = "0.1.0"

_HOME = {
    "chat": ("ChatTemplate",),
    "errors": (
        "AdapterError",
        "CacheFileError",
        "ChatTemplateError",
        "ContextFullError",
        "GGUFError",
        "HubError",
        "InvalidInputError",
        "MinillamaError",
        "MissingDependencyError",
        "TokenizerError",
        "TraceBudgetError",
        "UnknownPointError",
        "UnsupportedError",
    ),
    "generate": ("Conversation", "Generation", "LanguageModel", "Piece", "load"),
    "quantization": ("dequantize", "quantize"),
    "sampling": ("SamplingParams",),
    "tokenizer": ("Tokenizer",),
    "trace": ("Trace",),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}
_SUBMODULES = ("errors", "gguf")

__all__ = [
    "AdapterError",
    "CacheFileError",
    "ChatTemplate",
    "ChatTemplateError",
    "ContextFullError",
    "Conversation",
    "GGUFError",
    "Generation",
    "HubError",
    "InvalidInputError",
    "LanguageModel",
    "MinillamaError",
    "MissingDependencyError",
    "Piece",
    "SamplingParams",
    "Tokenizer",
    "TokenizerError",
    "Trace",
    "TraceBudgetError",
    "UnknownPointError",
    "UnsupportedError",
    "dequantize",
    "errors",
    "gguf",
    "load",
    "quantize",
]


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name in _MODULE_OF:
        return getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
