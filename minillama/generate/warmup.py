"""Compiling what a model needs before it is needed."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Sequence

from minillama.errors import TokenizerError, UnsupportedError
from minillama.generate.language_model import LanguageModel, load
from minillama.kernels.jit import before_compiling
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
    loaded = load(model)
    for kv_type in ("f32",) if loaded.is_encoder else kv_types:  # encoders keep no cache
        loaded = load(model, kv_type=kv_type)
        cache = loaded.new_cache()
        for ids in (_PROMPT, _TOKEN):
            for watch in (None, lambda _name, _value: None):
                loaded.forward(ids, loaded.new_cache() if loaded.is_encoder else cache, logits="all", watch=watch)
        for weight in {weight.type: weight for weight in loaded.weights.values()}.values():
            (weight[:1] if weight.ndim == 2 else weight).dequantize()
    _encode_long_text(loaded)


def share_compilation(model: str | os.PathLike[str], *, kv_type: str = "f32") -> None:
    """Let a second process help if kernels turn out to be missing: it compiles those of a model from the last one on.

    Parameters
    ----------
    model
        Path of its file.
    kv_type
        Type of cache, as for :func:`load`.
    """
    if (os.cpu_count() or 1) < 2:
        return
    program = "import sys; from minillama.generate.warmup import compile_from_the_end as f; f(*sys.argv[1:])"
    command = [sys.executable, "-c", program, os.fspath(model), kv_type]

    def start() -> None:
        with contextlib.suppress(OSError):  # then this process does it all
            nothing = subprocess.DEVNULL
            _HELPERS.append(subprocess.Popen(command, stdin=nothing, stdout=nothing, stderr=nothing))

    before_compiling(start)


_HELPERS: list[subprocess.Popen[bytes]] = []  # kept, for Python warns of a process that runs on and cannot be asked


def compile_from_the_end(model: str, kv_type: str) -> None:
    """Compile the kernels of a forward pass: attention's, which takes longest, then the last operation's first."""
    loaded = load(model, kv_type=kv_type)
    driver, _ = loaded.deferred_pass(_PROMPT, loaded.new_cache())
    last_first = driver.operations[::-1]
    for operation in sorted(last_first, key=lambda operation: "attention" not in operation.kernel.__name__):
        operation.call()


def _encode_long_text(model: LanguageModel) -> None:
    try:
        tokenizer = model.tokenizer
    except (TokenizerError, UnsupportedError):
        return  # the model still works on ids
    tokenizer.count("a " * LONG_TEXT, add_special=False)
