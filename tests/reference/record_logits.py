"""Record what llama.cpp's baseline build computes: a hash of every position's logits.

    python -m tests.reference.record_logits            # writes logits.json; takes about half an hour on two cores

The recording is committed, so that anyone can compare without building llama.cpp.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from minillama.hub import pull
from minillama.verify import LlamaCpp
from tests.reference.build_llama_cpp import FLAGS, VERSION, ensure
from tests.reference.texts import TEXTS

PATH = Path(__file__).with_name("logits.json")
MODELS = {"smollm2-135m": ("f32", "f16"), "qwen2.5-coder-0.5b": ("f32",), "qwen2.5-coder-1.5b": ("f32",)}
N_PREDICT = 48


def main() -> None:
    """Record every model and cache type."""
    llama = LlamaCpp(ensure("baseline"))
    runs = []
    for model, kv_types in MODELS.items():
        for kv_type in kv_types:
            for name, text in TEXTS.items():
                print(model, kv_type, name, file=sys.stderr, flush=True)
                (answer,) = llama.evaluate(pull(model), [text], n_predict=N_PREDICT, kv_type=kv_type)
                runs.append(
                    {
                        "model": model, "kv_type": kv_type, "text": name, "n_prompt": answer["n_prompt"],
                        "ids": answer["ids"], "sha": answer["sha"], "last_head": answer["head"][-1],
                    }
                )  # fmt: skip
    made_with = {"llama-cpp-python": VERSION, "cmake_args": FLAGS["baseline"], "flash_attention": "off", "ubatch": 512}
    lines = ",\n".join(json.dumps(run) for run in runs)
    PATH.write_text(f'{{"made_with": {json.dumps(made_with)},\n"runs": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
