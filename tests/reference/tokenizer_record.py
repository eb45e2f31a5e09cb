"""Record llama.cpp's token ids for the real models in ``tokenizer_expected.json``.

Usage: ``python -m tests.reference.tokenizer_record MODEL.gguf ...``.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

from tests.reference import build_llama_cpp, tokenizer_texts
from tests.reference.tokenizer_live import Request, llama_cpp_ids

_OUTPUT = Path(__file__).with_name("tokenizer_expected.json")
_SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "<|fim_prefix|>", "<reponame>", "</s>"]
_CHAT = "<|im_start|>user\nSay <|im_end|> twice.<|im_end|>\n<|im_start|>assistant\n"


def _texts() -> list[str]:
    texts = tokenizer_texts.valid_texts(_SPECIAL)
    return [_CHAT, *random.Random(3).sample([text for text in texts if 0 < len(text) < 60], 120)]


def main(paths: list[str]) -> None:
    """Write the ids of all models."""
    models = {}
    for path in sorted(paths):
        requests = [(text, parse) for text in _texts() for parse in (False, True)]
        ids = llama_cpp_ids(Path(path), [Request(text.encode(), True, parse) for text, parse in requests])
        models[Path(path).name] = [[*request, tokens] for request, tokens in zip(requests, ids, strict=True)]
    rows = {name: "[\n" + ",\n".join(json.dumps(row) for row in recorded) + "\n]" for name, recorded in models.items()}
    body = ",\n".join(f"{json.dumps(name)}: {recorded}" for name, recorded in rows.items())
    _OUTPUT.write_text(f'{{"llama_cpp_python": "{build_llama_cpp.VERSION}", "models": {{\n{body}\n}}}}\n')


if __name__ == "__main__":
    main(sys.argv[1:])
