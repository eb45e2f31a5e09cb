"""llama.cpp's answers to questions about tokenizers, from its baseline build in a process of its own."""

from __future__ import annotations

import base64
import json
import os
import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.reference import build_llama_cpp

_WORKER = Path(__file__).with_name("tokenizer_worker.py")


class Request(NamedTuple):
    """A text to encode."""

    text: bytes
    add_special: bool = False
    parse_special: bool = False


def _unlimited_stack() -> None:
    # C++'s regular expressions recurse once per character: with the usual stack a long text ends llama.cpp.
    _, hard = resource.getrlimit(resource.RLIMIT_STACK)
    resource.setrlimit(resource.RLIMIT_STACK, (hard, hard))


def ask(command: str, path: Path, lines: Sequence[str]) -> list[Any]:
    """Answers to the lines, in order; ``None`` where llama.cpp ended the process."""
    # The safe path keeps modules beside the worker from hiding libraries of the same name.
    env = {
        **os.environ,
        "PYTHONPATH": str(build_llama_cpp.ensure("baseline")),
        "PYTHONSAFEPATH": "1",
        "GGML_NO_BACKTRACE": "1",
    }
    answers: list[Any] = []
    while len(answers) < len(lines):
        done = subprocess.run(
            [sys.executable, str(_WORKER), command, str(path)],
            input="\n".join(lines[len(answers) :]) + "\n", env=env, check=False, capture_output=True, text=True,
            preexec_fn=_unlimited_stack,
        )  # fmt: skip
        opened, *answered = done.stdout.splitlines() or [""]
        if opened != "open" or done.returncode > 0:
            raise RuntimeError(f"llama.cpp cannot open {path}: {done.stderr[-500:]}")
        answers += map(json.loads, answered)
        if done.returncode == 0:
            break
        answers.append(None)
    return answers


def describe(path: Path) -> dict[str, Any]:
    """Special ids, end-of-generation ids, and attributes, scores and pieces of all tokens."""
    (description,) = ask("describe", path, [""])
    return description


def llama_cpp_ids(path: Path, requests: Sequence[Request]) -> list[list[int] | None]:
    """llama.cpp's ids for each request."""
    return ask("encode", path, [json.dumps([base64.b64encode(text).decode(), *flags]) for text, *flags in requests])


def llama_cpp_texts(path: Path, requests: Sequence[tuple[list[int], bool, bool]]) -> list[bytes | None]:
    """llama.cpp's bytes for each of ``(ids, remove_special, unparse_special)``."""
    answers = ask("decode", path, [json.dumps(request) for request in requests])
    return [None if answer is None else bytes.fromhex(answer) for answer in answers]
