"""Record what llama.cpp's baseline build computes: a hash of every position's logits.

    python -m tests.reference.record_logits                    # writes logits.json; about half an hour on two cores
    python -m tests.reference.record_logits gemma3-270m long   # of one model, of some texts; the rest is kept

The recording is committed, so that anyone can compare without building llama.cpp.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from minillama.hub import pull
from minillama.verify import LlamaCpp
from tests.reference.build_llama_cpp import FLAGS, VERSION, ensure
from tests.reference.texts import TEXTS, WINDOW_TEXTS

PATH = Path(__file__).with_name("logits.json")
MODELS = {
    "smollm2-135m": ("f32", "f16"),
    "qwen2.5-coder-0.5b": ("f32",),
    "qwen2.5-coder-1.5b": ("f32",),
    "gemma3-270m": ("f32", "f16"),
}
WITH_WINDOWS = ("gemma3-270m",)
N_PREDICT = 48


def texts_of(model: str) -> dict[str, str]:
    """Texts by name: all, and a longer one for models with sliding windows."""
    return {**TEXTS, **(WINDOW_TEXTS if model in WITH_WINDOWS else {})}


def wanted() -> list[tuple[str, str, str]]:
    """Model, cache type and text of every run."""
    return [(model, kv_type, text) for model, kv in MODELS.items() for kv_type in kv for text in texts_of(model)]


def record(llama: LlamaCpp, model: str, kv_type: str, text: str) -> dict[str, Any]:
    """Record one run."""
    print(model, kv_type, text, file=sys.stderr, flush=True)
    (answer,) = llama.evaluate(pull(model), [texts_of(model)[text]], n_predict=N_PREDICT, kv_type=kv_type)
    return {
        "model": model, "kv_type": kv_type, "text": text, "n_prompt": answer["n_prompt"], "ids": answer["ids"],
        "sha": answer["sha"], "last_head": answer["head"][-1],
    }  # fmt: skip


def main(only: Sequence[str]) -> None:
    """Record every model and cache type, or one model, or some of its texts."""
    llama = LlamaCpp(ensure("baseline"))
    kept = {(r["model"], r["kv_type"], r["text"]): r for r in json.loads(PATH.read_text())["runs"]} if only else {}
    runs = []
    for model, kv_type, text in wanted():
        again = not only or (model == only[0] and (len(only) == 1 or text in only[1:]))
        if again:
            runs.append(record(llama, model, kv_type, text))
        elif (model, kv_type, text) in kept:
            runs.append(kept[model, kv_type, text])
    made_with = {"llama-cpp-python": VERSION, "cmake_args": FLAGS["baseline"], "flash_attention": "off", "ubatch": 512}
    lines = ",\n".join(json.dumps(run) for run in runs)
    PATH.write_text(f'{{"made_with": {json.dumps(made_with)},\n"runs": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main(sys.argv[1:])
