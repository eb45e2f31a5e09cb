"""llama.cpp, asked in processes of its own: an abort there ends only that process, and builds can be side by side."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from minillama.errors import MinillamaError, MissingDependencyError
from minillama.kernels.types import F32

_WORKER = Path(__file__).with_name("worker.py")
_SIMD = ("SSE3", "AVX", "FMA", "F16C", "NEON", "LLAMAFILE", "REPACK")

HOW_TO_INSTALL = "pip install 'minillama[reference]' (it compiles llama.cpp)"


class LlamaCpp:
    """One build of llama.cpp, through llama-cpp-python.

    Parameters
    ----------
    site
        Folder that ``llama_cpp`` is imported from; None: the one installed in this environment.

    Raises
    ------
    MissingDependencyError
        It is not there.
    """

    def __init__(self, site: Path | None = None) -> None:
        self._site = site
        self._description = self._ask({"task": "describe"})

    @property
    def version(self) -> str:
        """Version of llama-cpp-python."""
        return str(self._description["version"])

    @functools.cached_property
    def features(self) -> tuple[str, ...]:
        """Instruction sets and libraries it was compiled with."""
        listed = str(self._description["features"]).replace(":", "|").split("|")
        return tuple(part.split("=")[0].strip() for part in listed if part.strip().endswith("= 1"))

    @property
    def is_baseline(self) -> bool:
        """Whether it is the build whose bits minillama has: no instruction set beyond x86-64's baseline."""
        return not any(feature.startswith(_SIMD) for feature in self.features)

    @property
    def command(self) -> list[str]:
        """The program that answers the request in the file named as its last argument; to be run in an empty folder."""
        # By its text, so that no file beside the worker can hide a module it imports.
        return [sys.executable, "-c", _WORKER.read_text()]

    @property
    def environment(self) -> dict[str, str]:
        """The program's environment."""
        return {**os.environ, **({} if self._site is None else {"PYTHONPATH": str(self._site)})}

    def tokenize(
        self, model: Path, texts: Sequence[str], *, add_special: bool = True, parse_special: bool = False
    ) -> list[list[int]]:
        """Ids of texts."""
        request = {
            "task": "tokenize", "model": str(model), "texts": list(texts), "add_special": add_special,
            "parse_special": parse_special,
        }  # fmt: skip
        ids: list[list[int]] = self._ask(request)
        return ids

    def evaluate(
        self, model: Path, texts: Sequence[str], *, n_predict: int = 48, **settings: Any
    ) -> list[dict[str, Any]]:
        """Ids of each text and its greedy continuation, with a hash of every position's logits; see worker.py."""
        request = {"task": "evaluate", "texts": list(texts), "n_predict": n_predict, **_settings(model, **settings)}
        answers: list[dict[str, Any]] = self._ask(request)
        return answers

    def logits(self, model: Path, ids: Sequence[Sequence[int]], **settings: Any) -> list[F32]:
        """Logits of every position: float32 [n_tokens, n_vocab] for each list of ids."""
        saved = self._saved({"task": "logits", "ids": [list(part) for part in ids], **_settings(model, **settings)})
        return [saved[str(i)] for i in range(len(ids))]

    def embed(self, model: Path, ids: Sequence[Sequence[int]], *, pooling: int = -1, **settings: Any) -> list[F32]:
        """Vectors of texts, by a number of llama.cpp's poolings (-1: the model's own); not normalized."""
        request = {"task": "embed", "ids": [list(part) for part in ids], "pooling": pooling}
        saved = self._saved({**request, **_settings(model, **settings)})
        return [saved[str(i)] for i in range(len(ids))]

    def tensors(self, model: Path, ids: Sequence[int], **settings: Any) -> dict[str, F32]:
        """Every float32 tensor of an evaluation, in graph order; a name that occurs again gets ``#1``, ``#2``, ..."""
        return self._saved({"task": "tensors", "ids": [list(ids)], **_settings(model, **settings)})

    def _saved(self, request: dict[str, Any]) -> dict[str, F32]:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "answer.npz"
            self._ask({**request, "save": str(path)})
            with np.load(path) as saved:
                return dict(saved)

    def _ask(self, request: dict[str, Any]) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "request.json"
            path.write_text(json.dumps(request))
            command = [*self.command, str(path)]
            done = subprocess.run(
                command, env=self.environment, cwd=folder, capture_output=True, text=True, check=False
            )
        if "No module named 'llama_cpp'" in done.stderr:
            raise MissingDependencyError(f"llama-cpp-python is needed: {HOW_TO_INSTALL}")
        if done.returncode:
            lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
            raise MinillamaError(f"llama.cpp failed: {lines[-1]}")
        return json.loads(done.stdout)


def _settings(
    model: Path, *, kv_type: str = "f32", threads: int = 2, ubatch: int = 512, flash_attention: bool = False,
    adapters: Sequence[tuple[Path, float]] = (),
) -> dict[str, Any]:  # fmt: skip
    return {
        "model": str(model), "kv_type": kv_type, "threads": threads, "ubatch": ubatch,
        "flash_attention": int(flash_attention), "adapters": [(str(path), scale) for path, scale in adapters],
    }  # fmt: skip
