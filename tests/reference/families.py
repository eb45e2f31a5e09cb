"""Measure a tiny model of every family against llama.cpp's baseline build.

    python -m tests.reference.families       # writes docs/families.md and tests/reference/families.json

The recording lets anyone check the bits without building llama.cpp.
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from minillama import gguf
from minillama.model.families import FAMILIES as SUPPORTED
from minillama.model.model import Model
from minillama.verify import LlamaCpp
from tests.reference.build_llama_cpp import FLAGS, VERSION, ensure
from tests.reference.embeddings import TEXTS
from tests.tiny_families import CASES, ENCODERS, FAMILIES, file_hash

PATH = Path(__file__).with_name("families.json")
TABLE = Path(__file__).parents[2] / "docs" / "families.md"
TEXT = "the cat and the dog, in the end. " * 4  # more than one block of the cache
N_PREDICT = 16

_INTRODUCTION = f"""# Model families

Made by `python -m tests.reference.families`; do not edit. Each row is a tiny random model of the family
(tests/tiny_families.py) that llama.cpp loads too, with matrices of the types named, computed by minillama and by
llama.cpp's baseline build: llama-cpp-python {VERSION}, flash attention off, f32 cache, `swa_full` (its default: layers
with a sliding window keep every position, in order). The difference is the largest of any logit at any position of
prompt and continuation; greedy is how many of {N_PREDICT} tokens agree. Rows of one architecture differ in what is
switched on. Of encoders (bert, nomic-bert) the vectors of all tokens of eight texts are compared
(tests/reference/test_embeddings.py has every pooling).

Any other architecture is refused with an `UnsupportedError` that lists these: {", ".join(SUPPORTED)}.

| family | architecture | features | matrices | positions equal in bits | largest difference | greedy |
| --- | --- | --- | --- | --- | --- | --- |
"""


@dataclass(frozen=True)
class Measured:
    """One row: the recording, and how far our logits are from it."""

    name: str
    types: str
    recording: dict[str, Any]
    n_equal: int
    largest: float
    n_greedy: int

    def row(self) -> str:
        """The row of the table."""
        tiny, n = FAMILIES[self.name], len(self.recording["ids"])
        return (
            f"| {self.name} | {tiny.architecture} | {tiny.features} | {self.types} | {self.n_equal} of {n} "
            f"| {self.largest:g} | {self.n_greedy} of {N_PREDICT} |"
        )


def greedy(model: Model, prompt: list[int]) -> list[int]:
    """Our own greedy continuation, token by token."""
    cache, ids = model.new_cache(), list(prompt)
    new = prompt
    for _ in range(N_PREDICT):
        logits = model.forward(new, cache)
        assert logits is not None
        new = [int(logits.argmax())]
        ids += new
    return ids


def measure(llama: LlamaCpp, name: str, types: str) -> Measured:
    """Compute one tiny model with both."""
    with tempfile.TemporaryDirectory() as folder:
        path = FAMILIES[name].write(Path(folder) / "tiny.gguf", types)
        (answer,) = llama.evaluate(path, [TEXT], n_predict=N_PREDICT)
        (theirs,) = llama.logits(path, [answer["ids"]])
        model = Model(gguf.open(path))
        ours = model.logits(answer["ids"])
        continued = greedy(model, answer["ids"][: answer["n_prompt"]])
        recording = {
            "family": name, "types": types, "file": file_hash(path), "n_prompt": answer["n_prompt"],
            "ids": answer["ids"], "sha": answer["sha"],
        }  # fmt: skip
    return Measured(
        name=name,
        types=types,
        recording=recording,
        n_equal=int((ours.view(np.uint32) == theirs.view(np.uint32)).all(axis=1).sum()),
        largest=float(np.abs(ours - theirs).max()),
        n_greedy=sum(a == b for a, b in zip(continued, answer["ids"], strict=True)) - answer["n_prompt"],
    )


def encoder_row(llama: LlamaCpp, name: str, types: str) -> str:
    """The row of an encoder: vectors of all tokens of some texts."""
    with tempfile.TemporaryDirectory() as folder:
        path = ENCODERS[name].write(Path(folder) / "tiny.gguf", types)
        theirs, model = np.concatenate(llama.embed(path, TEXTS, pooling=0)), Model(gguf.open(path))
        ours = np.concatenate([vectors for text in TEXTS for vectors in model.hidden([text], [model.new_cache()])])
    tiny, n_equal = ENCODERS[name], int((ours.view(np.uint32) == theirs.view(np.uint32)).all(axis=1).sum())
    return (
        f"| {name} | {tiny.architecture} | {tiny.features} | {types} | {n_equal} of {len(theirs)} "
        f"| {np.abs(ours - theirs).max():g} | no text |"
    )


def main() -> None:
    """Measure, and write recording and table."""
    llama = LlamaCpp(ensure("baseline"))
    assert llama.is_baseline
    measured = []
    for name, types in CASES:
        measured.append(measure(llama, name, types))
        print(measured[-1].row(), file=sys.stderr, flush=True)
    made_with = {"llama-cpp-python": VERSION, "cmake_args": FLAGS["baseline"], "flash_attention": "off"}
    lines = ",\n".join(json.dumps(m.recording) for m in measured)
    PATH.write_text(f'{{"made_with": {json.dumps(made_with)},\n"runs": [\n{lines}\n]}}\n')
    encoders = [encoder_row(llama, name, types) for name, tiny in ENCODERS.items() for types in tiny.types]
    TABLE.write_text(_INTRODUCTION + "\n".join([*(m.row() for m in measured), *encoders]) + "\n")


if __name__ == "__main__":
    main()
