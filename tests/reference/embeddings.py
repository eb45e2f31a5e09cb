"""Record embeddings by llama.cpp's baseline build: ``python -m tests.reference.embeddings``."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np

from minillama.verify import LlamaCpp
from tests.reference.build_llama_cpp import ensure
from tests.reference.test_logits import position_hashes
from tests.tiny_families import ENCODERS, FAMILIES, file_hash

PATH = Path(__file__).with_name("embeddings.json")
POOLINGS = ("none", "mean", "cls", "last")  # by llama.cpp's numbers
DECODERS = ("llama", "qwen2", "gemma3", "gpt2", "olmoe")
MODELS = {**ENCODERS, **{name: FAMILIES[name] for name in DECODERS}}
CASES = [(name, types) for name, tiny in MODELS.items() for types in tiny.types]

# Lengths around the fours of the softmax, and more than two blocks of the cache.
_IDS = np.random.default_rng(7).integers(0, 256, 150).tolist()
TEXTS = [_IDS[:n] for n in (1, 2, 3, 4, 5, 17, 64, 150)]


def main() -> None:
    """Write the file."""
    llama, runs = LlamaCpp(ensure("baseline")), []
    with tempfile.TemporaryDirectory() as folder:
        for name, types in CASES:
            path = MODELS[name].write(Path(folder) / "tiny.gguf", types)
            hashes = {}
            for number, pooling in enumerate(POOLINGS):
                vectors = llama.embed(path, TEXTS, pooling=number)
                hashes[pooling] = position_hashes(np.concatenate([np.atleast_2d(v) for v in vectors]))
            runs.append({"model": name, "types": types, "file": file_hash(path), "sha": hashes})
    PATH.write_text(json.dumps({"runs": runs}, indent=0) + "\n")


if __name__ == "__main__":
    main()
