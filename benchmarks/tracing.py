"""What tracing costs while decoding: each kind in turn with an untraced pass, token by token.

python -m benchmarks.tracing [MODEL] [TOKENS]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np

import minillama as ml

Kinds = dict[str, Callable[[], "ml.Trace | None"]]
PROMPT = "The capital of France is"


def kinds_of(model: ml.LanguageModel) -> Kinds:
    layers = model.config.n_layer
    middle, third = layers // 2, layers // 3
    return {
        "nothing": lambda: None,
        "1 point": lambda: ml.Trace(model, f"blk.{middle}.l_out"),
        "3 points": lambda: ml.Trace(model, [f"blk.{third}.l_out", f"blk.{middle}.l_out", "result_norm"]),
        f"residual stream of all {layers} layers": lambda: ml.Trace(model, "blk.*.l_out"),
        "attention pattern of a layer": lambda: ml.Trace(model, f"blk.{middle}.kq_soft_max"),
        "attention patterns of all layers": lambda: ml.Trace(model, "blk.*.kq_soft_max"),
        "one edit": lambda: ml.Trace(model, edits={f"blk.{third}.l_out": lambda _value, _site: None}),
        "every named value": lambda: ml.Trace(model, "*"),
    }


def overhead(model: ml.LanguageModel, make: Callable[[], ml.Trace | None], n_tokens: int) -> tuple[float, float]:
    """Median milliseconds of an untraced token, and median share by which a traced one takes longer."""
    ids = model.tokenizer.encode(PROMPT)
    caches, probes = [model.new_cache() for _ in range(2)], [None, make()]
    for cache in caches:
        model.forward(ids, cache)
    seconds = np.zeros((n_tokens, 2))
    for i in range(n_tokens):
        for which in (0, 1) if i % 2 else (1, 0):
            start = time.perf_counter()
            model.forward([1000 + i], caches[which], watch=probes[which])
            seconds[i, which] = time.perf_counter() - start
    settled = seconds[n_tokens // 5 :]
    return float(np.median(settled[:, 0])) * 1e3, float(np.median(settled[:, 1] / settled[:, 0])) - 1


def main(name: str, n_tokens: int) -> None:
    model = ml.load(name)
    for kind, make in kinds_of(model).items():
        milliseconds, share = overhead(model, make, n_tokens)
        print(f"{kind:40} {share:+7.1%}   of {milliseconds:.2f} ms")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m", int(sys.argv[2]) if len(sys.argv) > 2 else 100)
