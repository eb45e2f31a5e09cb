"""Tokenizers of minillama, llama.cpp and Hugging Face on the same text: MB/s, adversarial text, and loading.

    python -m benchmarks.tokenizers [--rounds 3] [--vocabs gpt-2 qwen2 ...]

Needs `pip install 'minillama[benchmark]'` and llama.cpp's native build. Each side runs in a process of its own, one
after the other; the best of the rounds counts. Results are kept in ``benchmarks/tokenizers.json``, where those of
other vocabularies stay, and written as tables into ``docs/tokenizers.md``.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.reference import tokenizer_texts
from tests.reference.build_llama_cpp import ensure
from tests.reference.tokenizer_comparison import VOCABS
from tests.reference.tokenizer_vocabs import ensure_vocabs

_PAGE = Path(__file__).parents[1] / "docs" / "tokenizers.md"
_RESULTS = Path(__file__).with_suffix(".json")
_BEGIN, _END = "<!-- speed: written by benchmarks/tokenizers.py -->", "<!-- end of speed -->"
_DEFAULT = [
    "gpt-2", "llama-bpe", "qwen2", "falcon", "deepseek-llm", "llama-spm", "gemma-4", "nomic-bert-moe", "bert-bge",
]  # fmt: skip
_ADVERSARIAL = {"letter": b"a", "spaces": b" ", "ab": b"ab"}
_SIZE = 1_000_000
SIDES = ("minillama", "llama.cpp", "hugging face")


def mixed_text() -> bytes:
    """1 MB of this repository's text and of texts in all scripts, in pieces that are shuffled."""
    parts = tokenizer_texts.repository_texts() + tokenizer_texts.valid_texts(["<s>"])
    random.Random(1).shuffle(parts)
    joined = "\n".join(parts).encode()
    return (joined * (_SIZE // len(joined) + 1))[:_SIZE].decode(errors="ignore").encode()


def measure(side: str, vocab: Path, text: bytes, rounds: int) -> dict[str, Any]:
    """Seconds to load, and to encode the text and a megabyte of each adversarial one."""
    texts = {"mixed": text} | {name: unit * (_SIZE // len(unit)) for name, unit in _ADVERSARIAL.items()}
    with tempfile.TemporaryDirectory() as folder:
        for name, data in texts.items():
            Path(folder, name).write_bytes(data)
        command = [sys.executable, "-m", "benchmarks.tokenizer_sides", side, str(vocab), folder, str(rounds)]
        env = dict(os.environ)
        if side == "llama.cpp":
            env["PYTHONPATH"] = f"{ensure('native')}{os.pathsep}{env.get('PYTHONPATH', '.')}"
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"{side}, {vocab.name}: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
        return {}
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def _speed(result: dict[str, Any], name: str) -> str:
    return f"{_SIZE / result[name] / 1e6:.2f}" if result.get(name) else "-"


def tables(results: dict[str, dict[str, dict[str, Any]]]) -> str:
    """Both tables in Markdown."""
    lines = [
        "1 MB of mixed text (code, prose, every script), MB/s; one thread each, best of the rounds. `load` is what the",
        "tokenizer adds to opening the file, in seconds (llama.cpp: the whole of a vocabulary-only load).\n",
        "| vocabulary | minillama | llama.cpp | Hugging Face | load: minillama | llama.cpp |",
        "| --- | --: | --: | --: | --: | --: |",
    ]
    for name, sides in sorted(results.items()):
        ours, theirs, other = (sides.get(side, {}) for side in SIDES)
        loads = " | ".join(f"{side['load']:.2f}" if side else "-" for side in (ours, theirs))
        lines.append(f"| {name} | {' | '.join(_speed(side, 'mixed') for side in (ours, theirs, other))} | {loads} |")
    lines += [
        "\n1 MB of one thing, seconds (minillama / llama.cpp / Hugging Face):\n",
        f"| vocabulary | {' | '.join(_ADVERSARIAL)} |",
        f"| --- {'| --: ' * len(_ADVERSARIAL)}|",
    ]
    for name, sides in sorted(results.items()):
        cells = [
            " / ".join(f"{sides[side][kind]:.2f}" if sides.get(side, {}).get(kind) else "-" for side in SIDES)
            for kind in _ADVERSARIAL
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure all sides and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--vocabs", nargs="+", default=_DEFAULT, choices=list(VOCABS))
    arguments = parser.parse_args()
    text = mixed_text()
    results: dict[str, Any] = json.loads(_RESULTS.read_text(encoding="utf-8")) if _RESULTS.exists() else {}
    for name in arguments.vocabs:
        vocab = ensure_vocabs() / f"ggml-vocab-{name}.gguf"
        results[name] = {side: measure(side, vocab, text, arguments.rounds) for side in SIDES}
        print(name, results[name], flush=True)
    _RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    page = _PAGE.read_text(encoding="utf-8")
    before, after = page[: page.index(_BEGIN)], page[page.index(_END) :]
    _PAGE.write_text(f"{before}{_BEGIN}\n\n{tables(results)}\n\n{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
