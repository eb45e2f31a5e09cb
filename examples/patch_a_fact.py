"""Where is a fact kept? Patch single values of one prompt's run into another's and see which bring the answer along.

python examples/patch_a_fact.py [FOLDER FOR PICTURES]
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import minillama as ml
from minillama.trace import logit_difference, patch_grid
from minillama.trace.figures import patch_figure

CLEAN, CORRUPTED = "The capital of France is the city of", "The capital of Italy is the city of"
ANSWERS = " Paris", " Rome"


def main(folder: Path) -> None:
    model = ml.load("smollm2-135m")
    encode = model.tokenizer.encode
    clean, corrupted = encode(CLEAN), encode(CORRUPTED)
    paris, rome = (encode(answer, add_special=False)[0] for answer in ANSWERS)

    metric = logit_difference(paris, rome)
    grid = patch_grid(model, clean, corrupted, metric)
    print(f"{ANSWERS[0]!r} minus {ANSWERS[1]!r}:")
    print(f"  {grid.clean:+.2f} after {CLEAN!r}\n  {grid.corrupted:+.2f} after {CORRUPTED!r}")

    tokens = [model.tokenizer.decode([token], continues=True) for token in corrupted]
    shares = grid.recovered
    country = next(i for i, (a, b) in enumerate(zip(clean, corrupted, strict=True)) if a != b)
    for position in (country, len(corrupted) - 1):
        layers = np.flatnonzero(shares[:, position] > 0.5)
        span = f"layers {layers[0]} to {layers[-1]}" if len(layers) else "no layer"
        print(f"patching {tokens[position]!r} brings back more than half of it in {span}")
    patch_figure(grid, tokens).savefig(folder / "patch_a_fact.png", dpi=110)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
