"""Random LoRA adapters for tiny models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from minillama import gguf
from minillama.gguf import GGMLType, Writer
from tests.tiny_models import random_packed

EMBEDDING = "token_embd.weight"
RANK = 32  # rows of 32 values: the least that Q8_0 allows


def updatable(model: Path, *, leave_out: Iterable[str] = ()) -> dict[str, tuple[int, ...]]:
    """Shapes of a model's matrices that llama.cpp updates, by name."""
    tensors = gguf.open(model).tensors
    left_out = {*leave_out, "position_embd.weight", *([] if "output.weight" in tensors else [EMBEDDING])}
    names = [
        name
        for name in tensors
        if name.endswith(".weight") and not name.endswith("norm.weight") and name not in left_out
    ]
    return {name: tensors[name].shape for name in names if len(tensors[name].shape) > 1}


def write_adapter(
    path: Path,
    model: Path,
    *,
    types: tuple[GGMLType, ...] = (GGMLType.F32,),
    rank: int = RANK,
    alpha: float | None = 16.0,
    seed: int = 0,
    names: Iterable[str] | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> Path:
    """Write an adapter that updates a model's weights, by default all of them; types are taken in turn."""
    shapes = updatable(model)
    rng = np.random.default_rng(seed)
    with Writer(path, gguf.open(model).metadata["general.architecture"]) as writer:
        described = {"general.type": "adapter", "adapter.type": "lora", "adapter.lora.alpha": alpha, **(metadata or {})}
        for key, value in described.items():
            if value is not None:
                writer.add(key, value)
        for i, name in enumerate(shapes if names is None else names):
            *experts, rows, n = shapes[name]
            halves = {"a": (*experts, rank, n), "b": (*experts, rows, rank)}
            if name == EMBEDDING:
                halves = {"a": (rows, rank), "b": (n, rank)}
            for j, (half, shape) in enumerate(halves.items()):
                type_ = types[(i + j) % len(types)]
                packed = random_packed(type_, int(np.prod(shape[:-1])), shape[-1], rng)
                writer.add_tensor(f"{name}.lora_{half}", packed, type_, shape)
    return path
