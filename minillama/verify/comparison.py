"""The three levels of a verification, one after the other."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from minillama.errors import InvalidInputError, MissingDependencyError, UnsupportedError
from minillama.generate import LanguageModel
from minillama.gguf import GGUFFile
from minillama.gguf import open as open_gguf
from minillama.hub import resolve
from minillama.kernels.registry import kernel_set
from minillama.runtime.eager import Eager
from minillama.runtime.threads import ThreadTeam
from minillama.verify.llama_cpp import LlamaCpp
from minillama.verify.logits import verify_logits
from minillama.verify.report import Level, Report
from minillama.verify.tensors import verify_tensors
from minillama.verify.tokens import verify_tokens

LEVELS = ("tensors", "tokens", "logits")

Progress = Callable[[int, int, str], None]


def compare(
    model: str | os.PathLike[str] = "smollm2-135m",
    *,
    levels: Sequence[str] = LEVELS,
    llama_cpp: str | os.PathLike[str] | None = None,
    kv_type: str = "f32",
    threads: int | None = None,
    progress: Progress | None = None,
) -> Report:
    """Verify a model against ggml and llama.cpp.

    Parameters
    ----------
    model
        As for :func:`minillama.load`.
    levels
        Which of ``"tensors"`` (decoding, against ggml), ``"tokens"`` (ids of awkward texts) and ``"logits"`` (named
        values, logits and greedy tokens) to run.
    llama_cpp
        Folder that ``llama_cpp`` is imported from; None: the one installed in this environment. Bits are only to be
        expected of the baseline build; with any other, distances are reported and the level gives no verdict.
    kv_type, threads
        As for :func:`minillama.load`.
    progress
        Called as ``progress(done, total, what)``.

    Returns
    -------
    Report
        A level whose library is missing says so and how to install it, and counts neither way.
    """
    unknown = [level for level in levels if level not in LEVELS]
    if unknown:
        raise InvalidInputError(f"level {unknown[0]!r} does not exist, there are {', '.join(LEVELS)}")
    path = resolve(model)
    report = Report(str(model))
    llama: LlamaCpp | None = None
    with open_gguf(path) as file:
        for name in LEVELS:
            if name not in levels:
                continue
            if name == "tensors":
                driver = Eager(kernel_set("cpu"), ThreadTeam(threads))
                report.levels.append(verify_tensors(file, driver, progress))
                continue
            try:
                llama = LlamaCpp(None if llama_cpp is None else Path(llama_cpp)) if llama is None else llama
            except MissingDependencyError as error:
                report.levels.append(Level(name, missing=str(error)))
                continue
            if progress is not None:
                progress(0, 1, name)
            report.levels.append(
                verify_tokens(file, llama) if name == "tokens" else _logits(file, path, llama, kv_type, threads)
            )
    return report


def _logits(file: GGUFFile, path: Path, llama: LlamaCpp, kv_type: str, threads: int | None) -> Level:
    try:
        model = LanguageModel(file, kv_type=kv_type, threads=threads)
    except UnsupportedError as error:
        return Level("logits", missing=str(error))
    return verify_logits(model, path, llama)
