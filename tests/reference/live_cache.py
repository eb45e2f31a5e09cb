"""llama.cpp's cache, asked in a process of its own: shifts, and types of keys and values."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from minillama.verify import LlamaCpp, llama_cpp

_WORKER = Path(__file__).with_name("cache_worker.py")


class LlamaCppError(Exception):
    """The process failed; the message is the last line it wrote."""


def logits_after(
    llama: LlamaCpp, model: Path, ids: Sequence[int], more: Sequence[int] = (), *, parts: Sequence[int] = (),
    shifts: Sequence[tuple[int, int]] = (), kv_type: str = "f32", repack: bool = True,
    environment: dict[str, str] | None = None,
) -> np.ndarray:  # fmt: skip
    """Logits of ``ids`` and then, after shifts (n_keep, n_discard), of ``more`` in parts: [n_tokens, n_vocab]."""
    with tempfile.TemporaryDirectory() as folder:
        save, request = Path(folder) / "answer.npz", Path(folder) / "request.json"
        details: dict[str, Any] = {
            "model": str(model), "kv_type": kv_type, "threads": 2, "ubatch": 512, "ids": [int(i) for i in ids],
            "more": [int(i) for i in more], "parts": list(parts) or ([len(more)] if len(more) else []),
            "shifts": list(shifts), "repack": repack, "save": str(save),
        }  # fmt: skip
        request.write_text(json.dumps(details))
        command = [sys.executable, str(_WORKER), str(Path(llama_cpp.__file__).with_name("worker.py")), str(request)]
        done = subprocess.run(
            command, env={**llama.environment, **(environment or {})}, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise LlamaCppError((done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1])
        with np.load(save) as saved:
            return saved["logits"]
