"""Compiling what a model needs before it is needed."""

from __future__ import annotations

import os
from collections.abc import Sequence

from minillama.errors import TokenizerError, UnsupportedError
from minillama.generate.language_model import LanguageModel, load
from minillama.runtime import execute
from minillama.tokenizer.text_model import LONG_TEXT

# One step of a prompt of several tokens, and one of decoding.
_PROMPT, _TOKEN = (0, 0, 0), (0,)


def compile_kernels(model: str | os.PathLike[str], *, kv_types: Sequence[str] = ("f32", "f16")) -> None:
    """Compile and keep all kernels of a model's forward pass and its tokenizer; those kept already are only loaded.

    Parameters
    ----------
    model
        As for :func:`load`.
    kv_types
        Types of cache to compile for.
    """
    execute.stop(0, 0)  # else compiled when Ctrl-C is first pressed
    for kv_type in kv_types:
        loaded = load(model, kv_type=kv_type)
        cache = loaded.new_cache()
        for ids in (_PROMPT, _TOKEN):
            loaded.forward(ids, cache, logits="all")
            loaded.forward(ids, cache, watch=lambda _name, _value: None)
        for weight in {weight.type: weight for weight in loaded.weights.values()}.values():
            (weight[:1] if weight.ndim == 2 else weight).dequantize()
    _encode_long_text(loaded)


def _encode_long_text(model: LanguageModel) -> None:
    try:
        tokenizer = model.tokenizer
    except (TokenizerError, UnsupportedError):
        return  # the model still works on ids
    tokenizer.count("a " * LONG_TEXT, add_special=False)
