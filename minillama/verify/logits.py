"""Level 3: named values and logits, ours and llama.cpp's.

Against the baseline build every bit must be equal. Any other build is not one number: there the distance is reported,
beside that build's own distance from itself when it computes the prompt token by token.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from minillama.generate import LanguageModel
from minillama.kernels.types import F32
from minillama.verify.llama_cpp import LlamaCpp
from minillama.verify.points import points, tensor_of
from minillama.verify.report import Distance, Level, PointDifference

PROMPTS = (
    "The capital of France is",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "从前有一座山，山里有一座庙 🍕 1234",
)
N_GREEDY = 16


def verify_logits(model: LanguageModel, path: Path, llama: LlamaCpp) -> Level:
    """Compare the prompts' named values and logits, and greedy continuations."""
    kind = "baseline" if llama.is_baseline else f"not the baseline build: {', '.join(llama.features)}"
    level = Level("logits", against=f"llama-cpp-python {llama.version} ({kind})")
    if model.is_encoder:
        return _verify_vectors(level, model, path, llama)
    settings = {"kv_type": model.kv_type, "threads": model.n_threads}
    ids = [model.tokenizer.encode(prompt) for prompt in PROMPTS]
    theirs = llama.logits(path, ids, **settings)
    ours = [model.logits(part) for part in ids]
    level.distance = distance(ours, theirs)
    level.greedy = _greedy(model, path, llama)
    if llama.is_baseline:
        level.first_point, level.n_points = first_difference(model, ids[0], llama.tensors(path, ids[0], **settings))
        level.passed = level.distance.n_equal == level.distance.n_positions and level.first_point is None
        equal = f"{level.distance.n_equal} of {level.distance.n_positions} positions bit-equal"
        level.summary = f"{equal}, {level.n_points} named values; greedy: {level.greedy}"
        return level
    level.own_distance = distance(llama.logits(path, ids, ubatch=1, **settings), theirs)
    level.passed = None
    level.summary = (
        f"largest difference {level.distance.largest:.3g}, its own between ubatch 1 and 512 "
        f"{level.own_distance.largest:.3g}; greedy: {level.greedy}"
    )
    return level


def _verify_vectors(level: Level, model: LanguageModel, path: Path, llama: LlamaCpp) -> Level:
    """Compare the vectors of the prompts' tokens: an encoder has no logits."""
    ids = [model.tokenizer.encode(prompt) for prompt in PROMPTS]
    theirs = np.concatenate(llama.embed(path, ids, pooling=0, threads=model.n_threads))
    ours = np.concatenate(model.hidden(ids, [model.new_cache() for _ in ids]))
    equal = int((ours.view(np.uint32) == theirs.view(np.uint32)).all(axis=1).sum())
    largest = float(np.abs(ours.astype(np.float64) - theirs).max())
    level.passed = equal == len(ours) if llama.is_baseline else None
    level.summary = f"{equal} of {len(ours)} token vectors bit-equal, largest difference {largest:.3g}"
    return level


def distance(ours: Sequence[F32], theirs: Sequence[F32]) -> Distance:
    """How far two sets of logits are apart."""
    a, b = np.concatenate(ours), np.concatenate(theirs)
    log_a, log_b = _log_softmax(a), _log_softmax(b)
    divergence = np.maximum((np.exp(log_b) * (log_b - log_a)).sum(axis=1), 0)
    return Distance(
        n_positions=len(a),
        n_equal=int((a.view(np.uint32) == b.view(np.uint32)).all(axis=1).sum()),
        largest=float(np.abs(a.astype(np.float64) - b).max()),
        n_argmax=int((a.argmax(axis=1) != b.argmax(axis=1)).sum()),
        mean_kl=float(divergence.mean()),
        max_kl=float(divergence.max()),
    )


def _log_softmax(logits: F32) -> npt.NDArray[np.float64]:
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    result: npt.NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return result


def _greedy(model: LanguageModel, path: Path, llama: LlamaCpp) -> str:
    answers = llama.evaluate(path, PROMPTS, n_predict=N_GREEDY, kv_type=model.kv_type, threads=model.n_threads)
    equal = 0
    for answer in answers:
        prompt = answer["ids"][: answer["n_prompt"]]
        ours = model.generate(prompt, max_tokens=N_GREEDY, ignore_eos=False).tokens
        theirs = answer["ids"][answer["n_prompt"] :]
        equal += next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), len(ours))
    return f"{equal} tokens agree"


def first_difference(
    model: LanguageModel, ids: Sequence[int], theirs: dict[str, F32]
) -> tuple[PointDifference | None, int]:
    """The first point that differs, and how many were compared; points llama.cpp has no tensor for are passed over."""
    ours: dict[str, F32] = {}
    model.forward(ids, model.new_cache(), logits="all", watch=lambda name, value: ours.update({name: value.copy()}))
    compared = 0
    for point in points(model.config.n_layer, ours):
        tensor = tensor_of(point, theirs)
        if tensor is None:
            continue
        value = ours[point.name].reshape(len(ours[point.name]), -1)
        expected = tensor.reshape(value.shape)
        compared += 1
        unequal = value.view(np.uint32) != expected.view(np.uint32)
        if unequal.any():
            row, index = (int(i) for i in np.argwhere(unequal)[0])
            bits = [int(np.float32(v).view(np.int32)) for v in (value[row, index], expected[row, index])]
            return PointDifference(
                point.name, point.tensor, int(unequal.sum()), unequal.size, row, index,
                float(value[row, index]), float(expected[row, index]), abs(bits[0] - bits[1]), point.likely_causes,
            ), compared  # fmt: skip
    return None, compared
