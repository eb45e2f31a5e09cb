"""Run by test_tiers.py in a process for each tier: whether the fast kernels give the plain ones' logits."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from minillama.gguf import open as open_gguf
from minillama.kernels import tiers
from minillama.model.model import Model

IDS = [5, 77, 200, 13, 1, 0, 255, 9, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40]


def main(folder: str) -> None:
    """Print the tier, and for each file whether the fast kernels' logits are the plain ones'."""
    print(tiers.current_tier().name)
    for path in sorted(Path(folder).glob("*.gguf")):
        fast, plain = (Model(open_gguf(path), backend=backend, threads=2) for backend in ("cpu", "reference"))
        same = np.array_equal(fast.logits(IDS), plain.logits(IDS))
        cache = fast.new_cache()
        steps = np.stack([fast.forward([token], cache).reshape(-1) for token in IDS[:4]])
        print(path.stem, same and np.array_equal(steps, plain.logits(IDS[:4])))


if __name__ == "__main__":
    main(sys.argv[1])
