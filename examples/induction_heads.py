"""Which heads copy? In a repeated random text an induction head looks at what followed the token the last time.

python examples/induction_heads.py [FOLDER FOR PICTURES]
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import minillama as ml
from minillama.trace import edits, log_softmax
from minillama.trace.figures import attention_figure

LENGTH = 12


def main(folder: Path) -> None:
    model = ml.load("smollm2-135m")
    once = np.random.default_rng(0).choice(np.arange(1000, 20000), LENGTH, replace=False)
    ids = [int(token) for token in (*once, *once)]

    trace = model.trace(ids, "blk.*.kq_soft_max")
    queries = np.arange(LENGTH, 2 * LENGTH)
    scores = np.array([value[queries, :, queries - LENGTH + 1].mean(axis=0) for value in trace.values()])
    order = np.argsort(-scores, axis=None)[:5]
    print("weight on the token after the same token, the five strongest heads:")
    for layer, head in zip(*np.unravel_index(order, scores.shape), strict=True):
        print(f"  layer {layer:2} head {head}  {scores[layer, head]:.2f}")

    def surprise(changes: dict[str, object]) -> float:
        logits = model.trace(ids, edits=changes).logits
        return float(-np.log2(np.exp(log_softmax(logits)[queries[:-1], once[1:]])).mean())

    strong: dict[str, list[int]] = {}
    for layer, head in zip(*np.unravel_index(order, scores.shape), strict=True):
        strong.setdefault(f"blk.{layer}.kqv", []).append(int(head))
    n_head = model.config.n_head
    without = {name: edits.zero(heads=heads, n_head=n_head) for name, heads in strong.items()}
    others = {
        name: edits.zero(heads=[(head + 1) % n_head for head in heads], n_head=n_head) for name, heads in strong.items()
    }
    print(
        f"bits of surprise in the second half: {surprise({}):.2f}; without those heads {surprise(without):.2f}, ",
        end="",
    )
    print(f"without their neighbours {surprise(others):.2f}")

    layer, head = (int(i) for i in np.unravel_index(order[0], scores.shape))
    tokens = [model.tokenizer.decode([token], continues=True) for token in ids]
    figure = attention_figure(trace[f"blk.{layer}.kq_soft_max"], tokens, heads=[head])
    figure.suptitle(f"layer {layer}")
    figure.savefig(folder / "induction_heads.png", dpi=110)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
