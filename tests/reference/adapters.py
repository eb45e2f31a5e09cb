"""Record what llama.cpp's baseline build computes with LoRA adapters: ``python -m tests.reference.adapters``."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from minillama.gguf import GGMLType
from minillama.verify import LlamaCpp
from tests.reference.build_llama_cpp import ensure
from tests.reference.test_logits import position_hashes
from tests.tiny_adapters import write_adapter
from tests.tiny_families import FAMILIES, file_hash

PATH = Path(__file__).with_name("adapters.json")
IDS = [3, 104, 101, 32, 120, 5, 77, 101, 9, 104, 33, 2]
TYPES = {"f32": (GGMLType.F32,), "f16": (GGMLType.F16,), "mixed": (GGMLType.Q8_0, GGMLType.Q4_0, GGMLType.BF16)}
# Dense, with experts, with one matrix for queries, keys and values, with biases, with a head of its own or tied.
RECORDED = ("llama", "qwen2", "gemma2", "phi3", "gpt2", "olmoe", "qwen2moe", "gpt-oss")


def written(folder: Path, family: str, types: str) -> tuple[Path, list[tuple[Path, float]]]:
    """A tiny model of a family, and two adapters with their scales."""
    model = FAMILIES[family].write(folder / f"{family}.gguf", FAMILIES[family].types[-1])
    first = write_adapter(folder / f"{family}-first.gguf", model, types=TYPES[types], seed=1)
    second = write_adapter(folder / f"{family}-second.gguf", model, types=TYPES[types], seed=2, alpha=None)
    return model, [(first, 0.7), (second, -0.25)]


def main() -> None:
    """Write the file."""
    llama, runs = LlamaCpp(ensure("baseline")), []
    with tempfile.TemporaryDirectory() as folder:
        for family in RECORDED:
            for types in TYPES:
                model, adapters = written(Path(folder), family, types)
                (logits,) = llama.logits(model, [IDS], adapters=adapters)
                files = [file_hash(path) for path in (model, *(path for path, _ in adapters))]
                runs.append({"family": family, "types": types, "files": files, "sha": position_hashes(logits)})
    PATH.write_text(json.dumps({"runs": runs}, indent=1) + "\n")


if __name__ == "__main__":
    main()
