"""One side of a comparison: a process that has a model loaded and times runs when asked; between runs it sleeps."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import minillama
from minillama.bench.memory import Memory, memory_of
from minillama.errors import MinillamaError
from minillama.verify import LlamaCpp

# A prompt that is computed while the process starts.
FIRST_IDS = (1, 2, 3, 4, 5)
THEIR_KV_TYPE = "f16"
_AUTOMATIC = -1


class Side:
    """A timing process; use it in a ``with`` block.

    Parameters
    ----------
    name
        Whose it is, for errors.
    command, env
        The program, which gets the name of a file with the request, and its environment.
    request
        What it is to load.

    Attributes
    ----------
    load_seconds
        From the file's name to a model that is ready.
    first_token_seconds
        From the start of the process to the logits of a short prompt.
    cache_bytes_per_position
        Memory of a position's keys and values, if the process says so.
    """

    def __init__(self, name: str, command: Sequence[str], env: Mapping[str, str], request: Mapping[str, Any]) -> None:
        self.name = name
        self._length = 0
        self._folder = tempfile.TemporaryDirectory()
        path = Path(self._folder.name) / "request.json"
        path.write_text(json.dumps({**request, "ids": FIRST_IDS}))
        self._errors = (Path(self._folder.name) / "errors").open("w+")
        start = time.perf_counter()
        self._process = subprocess.Popen(
            [*command, str(path)], env=env, cwd=self._folder.name, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
        )  # fmt: skip
        try:
            ready = self._answer()
        except BaseException:
            self.close()
            raise
        self.first_token_seconds = time.perf_counter() - start
        self.load_seconds: float = ready["load_seconds"]
        self.cache_bytes_per_position: int | None = ready.get("cache_bytes_per_position")

    def __enter__(self) -> Side:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def prompt(self, ids: Sequence[int]) -> float:
        """Seconds from nothing to the logits of the last of ``ids``."""
        return self._run(ids, at=0, one_by_one=False)

    def decode(self, ids: Sequence[int], at: int) -> float:
        """Seconds for ``ids`` one by one, each with its logits, after ``at`` positions (made first if need be)."""
        if self._length < at:
            self._run([ids[i % len(ids)] for i in range(at - self._length)], at=self._length, one_by_one=False)
        return self._run(ids, at=at, one_by_one=True)

    def memory(self) -> Memory | None:
        """Memory of the process."""
        return memory_of(self._process.pid)

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()
        self._errors.close()
        self._folder.cleanup()

    def _run(self, ids: Sequence[int], *, at: int, one_by_one: bool) -> float:
        assert self._process.stdin is not None  # opened as a pipe
        try:
            self._process.stdin.write(json.dumps({"ids": list(ids), "at": at, "one_by_one": one_by_one}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._died() from None
        self._length = at + len(ids)
        seconds: float = self._answer()["seconds"]
        return seconds

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None  # opened as a pipe
        line = self._process.stdout.readline()
        if not line:
            raise self._died()
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _died(self) -> MinillamaError:
        status = self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().strip().splitlines() or [f"exit status {status}"]
        return MinillamaError(f"{self.name} failed: {lines[-1]}")


def our_side(request: Mapping[str, Any]) -> Side:
    """Our own process; see worker.py."""
    root = str(Path(minillama.__file__).parents[1])
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))}
    return Side("minillama", [sys.executable, "-m", "minillama.bench.worker"], env, request)


def their_side(llama: LlamaCpp, request: Mapping[str, Any]) -> Side:
    """llama.cpp's process, with its defaults: f16 keys and values, flash attention as it likes, batches of 512."""
    settings = {"task": "time", "kv_type": THEIR_KV_TYPE, "ubatch": 512, "flash_attention": _AUTOMATIC}
    return Side("llama.cpp", llama.command, llama.environment, {**request, **settings})
