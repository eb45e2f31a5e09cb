"""How far llama.cpp is from itself: the yardstick for every distance that is not zero.

    python -m tests.reference.spread smollm2-135m      # measures one model, rewrites its rows in docs/exactness.md

Needs both builds: build_llama_cpp.py baseline, and native. The native build's figures depend on the machine.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from minillama import Tokenizer
from minillama.hub import pull
from minillama.kernels.types import F32
from minillama.verify import LlamaCpp
from minillama.verify.logits import distance
from tests.reference.build_llama_cpp import ensure
from tests.reference.document import read_table, write_table
from tests.reference.texts import TEXTS

MODELS = ("smollm2-135m", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b")
HEAD = ("model", "compared", "positions", "equal", "largest", "mean KL", "max KL", "other argmax")
_LENGTH = 150
_SHORT = ("english", "code", "chinese", "emoji", "chat", "numbers", "languages")

Evaluate = Callable[..., F32]


def token_ids(path: Path) -> list[list[int]]:
    """Two texts of about 150 tokens: prose, and a mixture of languages, code and symbols."""
    tokenizer = Tokenizer.from_gguf(path)
    mixture = "\n".join(TEXTS[name] for name in _SHORT)
    return [tokenizer.encode(text)[:_LENGTH] for text in (TEXTS["long"], mixture)]


def comparisons(native: Evaluate, baseline: Evaluate) -> Iterator[tuple[str, F32, F32]]:
    """Logits that are the same by any definition but their bits."""
    usual, portable = native(), baseline()
    yield "native, baseline", usual, portable
    yield "native, ubatch 1 and 512", native(ubatch=1), usual
    yield "native, flash attention on and off", native(flash_attention=True), usual
    yield "baseline, ubatch 7 and 512", baseline(ubatch=7), portable


def measure(model: str) -> Iterator[Sequence[str]]:
    """The rows of one model."""
    path = pull(model)
    ids = token_ids(path)

    def evaluate(build: str) -> Evaluate:
        llama = LlamaCpp(ensure(build))
        return lambda **settings: np.concatenate(llama.logits(path, ids, **settings))

    for compared, ours, theirs in comparisons(evaluate("native"), evaluate("baseline")):
        d = distance([ours], [theirs])
        figures = (f"{d.largest:.3g}", f"{d.mean_kl:.2g}", f"{d.max_kl:.2g}", str(d.n_argmax))
        yield model, compared, str(d.n_positions), str(d.n_equal), *figures


def main() -> None:
    """Measure the models named, all by default."""
    for model in sys.argv[1:] or MODELS:
        rows = {name: [row for row in read_table("spread")[1] if row[0] == name] for name in MODELS}
        rows[model] = [list(row) for row in measure(model)]
        write_table("spread", HEAD, [row for name in MODELS for row in rows[name]])


if __name__ == "__main__":
    main()
