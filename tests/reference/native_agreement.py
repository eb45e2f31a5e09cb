"""How far llama.cpp's native build agrees, running freely, with the recorded greedy continuations (ours, bit for bit).

    python -m tests.reference.native_agreement         # needs the native build: build_llama_cpp.py native

For information only: the native build is not one number (its logits change with ubatch and threads).
"""

from __future__ import annotations

import json

from minillama.hub import pull
from minillama.verify import LlamaCpp
from tests.reference.build_llama_cpp import ensure
from tests.reference.record_logits import MODELS, N_PREDICT, PATH
from tests.reference.texts import TEXTS


def main() -> None:
    """Print a line per model and text: tokens that agree before the first that differs."""
    llama = LlamaCpp(ensure("native"))
    runs = json.loads(PATH.read_text())["runs"]
    for model in MODELS:
        answers = llama.evaluate(pull(model), list(TEXTS.values()), n_predict=N_PREDICT)
        total = 0
        for name, answer in zip(TEXTS, answers, strict=True):
            (run,) = [r for r in runs if (r["model"], r["kv_type"], r["text"]) == (model, "f32", name)]
            ours, theirs = run["ids"][run["n_prompt"] :], answer["ids"][answer["n_prompt"] :]
            agreed = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b), N_PREDICT)
            total += agreed
            print(f"{model:20} {name:10} {agreed:3} of {N_PREDICT}")
        print(f"{model:20} {'all':10} {total:3} of {N_PREDICT * len(TEXTS)}")


if __name__ == "__main__":
    main()
