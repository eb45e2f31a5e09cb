"""A file has one damaged byte. `verify` names the tensor, and stepping finds where the damage enters the pass.

python examples/corrupted_tensor.py [FOLDER FOR PICTURES]
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

import minillama as ml
from minillama.hub import resolve
from minillama.trace.blocks import block_of, nonfinite_blocks
from minillama.trace.conditions import differs_from, not_finite
from minillama.trace.inspection import summary
from minillama.verify import compare as verify

PROMPT = "The capital of France is"
TENSOR, ROW, BLOCK = "blk.12.ffn_down.weight", 100, 7


def damage(path: Path) -> None:
    """Set the upper byte of one block's scale, a half, so that it is a NaN."""
    with ml.gguf.open(path) as file:
        tensor = file.tensors[TENSOR]
        block_bytes = tensor.data.shape[1] // (tensor.shape[1] // 32)
        place = tensor.offset + ROW * tensor.data.shape[1] + BLOCK * block_bytes + 1
    with path.open("r+b") as raw:
        raw.seek(place)
        raw.write(b"\x7c")


def main(_folder: Path) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "damaged.gguf"
        shutil.copy(resolve("smollm2-135m"), path)
        damage(path)

        (level,) = verify(path, levels=["tensors"]).levels
        bad = [tensor for tensor in level.tensors if tensor.n_nonfinite]
        print(
            "verify:", *(f"{t.name}: {t.n_nonfinite} values NaN or infinite, first in {t.first_nonfinite}" for t in bad)
        )

        good, model = ml.load("smollm2-135m"), ml.load(path)
        stepper = model.step(PROMPT)
        stepper.until(condition=not_finite)
        print(f"first NaN or infinity: {stepper.name}\n  {summary(stepper.value)}\n  {stepper.where()}")
        recorded = good.trace(PROMPT, "*")
        stepper.back("token_embd")
        stepper.until(condition=differs_from(recorded))
        print("first difference from a good run:", stepper.diff(recorded))

        weight = model.weights[TENSOR]
        for row, index in nonfinite_blocks(weight):
            block = block_of(weight, row, index)
            print(f"{block.type} block [{row}, {index}] of {block.weight}:")
            for name, raw, number in block.fields:
                print(f"  {name:3} {raw.hex()}" + ("" if number is None else f" = {number:g}"))
        stepper.abort()


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
