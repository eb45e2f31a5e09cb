"""Which layers lose most to quantization? Two files of the same weights, point by point and layer by layer.

python examples/compare_quantizations.py [FOLDER FOR PICTURES]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import minillama as ml
from minillama.hub import resolve
from minillama.quantization import quantize_file
from minillama.trace import compare, layer_errors
from minillama.trace.figures import error_figure

PROMPT = "The capital of France is Paris. The capital of Italy is Rome. The capital of Spain is"
MIX = "Q4_0"


def main(folder: Path) -> None:
    original = ml.load("smollm2-135m")  # its matrices are Q4_1; here they are what the others are measured against
    with tempfile.TemporaryDirectory() as temporary:
        path = quantize_file(resolve("smollm2-135m"), Path(temporary) / "small.gguf", MIX, allow_requantize=True)
        small = ml.load(path)
        ours, theirs = (model.trace(PROMPT, "*") for model in (small, original))
        found = compare(ours, theirs)
        print(f"first difference: {found.first_difference}")
        print(f"KL at the head: mean {found.mean_kl:.4f}, max {found.max_kl:.4f}")
        print(f"same likeliest token at {found.n_same_top} of {found.n_positions} positions")
        for point in found.points:
            if point.name.endswith("l_out") and int(point.name.split(".")[1]) % 6 == 5:
                print(f"  {point.name:13} cosine {point.cosine:.6f}  relative error {point.relative:.4f}")

        errors = layer_errors(small, theirs)
        worst = sorted(errors, key=lambda name: -errors[name])[:3]
        print("layers that lose most by themselves:", ", ".join(f"{name} {errors[name]:.3f}" for name in worst))
        error_figure(errors, f"SmolLM2 as {MIX}: error of what each layer writes").savefig(
            folder / "compare_quantizations.png", dpi=110
        )


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
