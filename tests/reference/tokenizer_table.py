"""Compare every vocabulary with llama.cpp on at least 20,000 strings, and write the table into ``docs/tokenizers.md``.

Usage::

    python -m tests.reference.tokenizer_table                 # all vocabularies, a process each
    python -m tests.reference.tokenizer_table qwen2 rwkv      # only these; the other rows stay
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import tempfile
from pathlib import Path

from minillama.tokenizer import Tokenizer
from tests.reference import tokenizer_made
from tests.reference.tokenizer_comparison import (
    REAL_MODELS,
    VOCABS,
    Comparison,
    compare,
    long_requests,
    short_requests,
    vocabulary,
)

_STRINGS = 20_000
_PAGE = Path(__file__).parents[2] / "docs" / "tokenizers.md"
_ROWS = Path(__file__).with_name("tokenizer_table.json")
_BEGIN, _END = "<!-- comparison: written by tests/reference/tokenizer_table.py -->", "<!-- end of comparison -->"
_HEADER = (
    "| vocabulary | kind | strings | of 5 KB and more | differences | of them explained |\n"
    "| --- | --- | --: | --: | --: | --- |\n"
)
_KINDS = {"injected": "llama.cpp finds a control token in plain text", "died": "llama.cpp ends the process"}


def _compared(name: str) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        if name in tokenizer_made.MADE:
            path = tokenizer_made.write(Path(folder, "made.gguf"), tokenizer_made.MADE[name]())
            tokenizer = Tokenizer.from_gguf(path)
        else:
            tokenizer, path = vocabulary(name)
        short = compare(tokenizer, path, short_requests(tokenizer, _STRINGS))
        requests = long_requests()
        long = compare(tokenizer, path, requests)
    explained = {kind: getattr(short, kind) + getattr(long, kind) for kind in _KINDS}
    return {
        "kind": f"{tokenizer.model}, {tokenizer.pre}" if tokenizer.model in ("gpt2", "whitespace") else tokenizer.model,
        "made": name in tokenizer_made.MADE,
        "strings": _strings(short) + _strings(long),
        "large": sum(len(request.text) >= 5000 for request in requests),
        "different": len(short.different) + len(long.different),
        **{kind: n for kind, n in explained.items() if n},
    }


def _strings(result: Comparison) -> int:
    return result.compared - result.refused


def _line(name: str, row: dict[str, object]) -> str:
    explained = "; ".join(f"{row[kind]}: {why}" for kind, why in _KINDS.items() if kind in row)
    total = int(str(row["different"])) + sum(int(str(row.get(kind, 0))) for kind in _KINDS)
    shown = f"{name} (made for this)" if row["made"] else name
    return f"| {shown} | {row['kind']} | {row['strings']:,} | {row['large']} | {total:,} | {explained or '-'} |"


def main(names: list[str]) -> None:
    """Compare, keep the results, and write the table."""
    rows = json.loads(_ROWS.read_text(encoding="utf-8")) if _ROWS.exists() else {}
    for name in names:
        command = [sys.executable, "-m", "tests.reference.tokenizer_table", "--one", name]
        rows[name] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
        print(_line(name, rows[name]), flush=True)
        _ROWS.write_text(json.dumps(rows, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    order = [name for name in [*VOCABS, *REAL_MODELS, *tokenizer_made.MADE] if name in rows]
    page = _PAGE.read_text(encoding="utf-8")
    before, after = page[: page.index(_BEGIN)], page[page.index(_END) :]
    lines = "\n".join(_line(name, rows[name]) for name in order)
    _PAGE.write_text(f"{before}{_BEGIN}\n\n{_HEADER}{lines}\n\n{after}", encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        logging.disable(logging.WARNING)
        print(json.dumps(_compared(sys.argv[2])))
    else:
        main(sys.argv[1:] or [*VOCABS, *REAL_MODELS, *tokenizer_made.MADE])
