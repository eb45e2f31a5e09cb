"""In which layer does an answer appear? The logit lens reads the residual stream after each one.

python examples/answer_layer.py [FOLDER FOR PICTURES]
"""

from __future__ import annotations

import sys
from pathlib import Path

import minillama as ml
from minillama.trace import logit_lens
from minillama.trace.figures import lens_figure

PROMPT, ANSWER = "The capital of France is", " Paris"


def main(folder: Path) -> None:
    model = ml.load("smollm2-135m")
    ids = model.tokenizer.encode(PROMPT)
    (answer,) = model.tokenizer.encode(ANSWER, add_special=False)

    lens = logit_lens(model, ids, k=3)
    print(f"{PROMPT!r}, the likeliest next tokens after each layer:")
    for name, tokens, logprobs in zip(lens.layers, lens.tokens[:, -1], lens.logprobs[:, -1], strict=True):
        texts = [model.tokenizer.decode([int(token)], continues=True) for token in tokens]
        print(f"  {name:12} {2.718281828 ** logprobs[0]:6.1%}  {'  '.join(map(repr, texts))}")

    first = lens.first_layer(answer)
    print(f"{ANSWER!r} is the likeliest from layer {first} on")
    names = {int(token): model.tokenizer.decode([int(token)], continues=True) for token in {*lens.tokens.flat, *ids}}
    lens_figure(lens, names).savefig(folder / "answer_layer.png", dpi=110)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
