"""What caches need of the model that made them: who it is, and how it rotates keys."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from minillama.gguf import TensorInfo
from minillama.kernels.types import F32, I64
from minillama.model.config import ModelConfig
from minillama.model.weights import sample_digest
from minillama.runtime.batch import Batch
from minillama.runtime.block_pool import CacheMemory
from minillama.runtime.eager import Eager, Forward
from minillama.runtime.key_rotation import KeyRotation, KeyRotations
from minillama.runtime.kv_cache import KVCache
from minillama.runtime.kv_file import read_cache
from minillama.runtime.low_rank import Scaled
from minillama.runtime.mapped_cache import MappedCache, open_mapped

_LONG_FACTORS = "rope_factors_long.weight"


class Caches:
    """A model's memory of keys and values; makes caches, and is their owner (:class:`CacheOwner`).

    Parameters
    ----------
    config, tensors
        Of the model.
    forward
        Its pass.
    eager
        Runs operations.
    n_ctx
        Positions that a cache may hold.
    kv_type
        How keys and values are stored.
    window_only
        Layers with a sliding window keep only that.
    """

    def __init__(
        self, config: ModelConfig, tensors: Mapping[str, TensorInfo], forward: Forward, eager: Eager, n_ctx: int,
        kv_type: str | tuple[str, str], *, window_only: bool,
    ) -> None:  # fmt: skip
        self._config, self._tensors, self._forward, self._eager, self._n_ctx = config, tensors, forward, eager, n_ctx
        layers = [(config.layer(i).n_head_kv, config.head_dim, config.value_dim) for i in range(config.n_layer)]
        windows = [config.window(i) for i in range(config.n_layer)] if window_only else []
        self.memory = CacheMemory.of(layers, kv_type, windows)

    def new(self, adapters: tuple[Scaled, ...] = ()) -> KVCache:
        """An empty cache."""
        return KVCache(self.memory, self._n_ctx, self, adapters)

    def load(self, path: Path, adapters: tuple[Scaled, ...]) -> KVCache:
        """A cache that was saved."""
        return read_cache(path, self.new(adapters))

    def open(self, path: Path, adapters: tuple[Scaled, ...]) -> MappedCache:
        """A cache in a memory-mapped file."""
        return open_mapped(path, self.new(adapters))

    @functools.cached_property
    def rotations(self) -> dict[int, KeyRotation]:
        """How keys are rotated, by layer."""
        cache = self.new()
        cache.reserve(1)
        return KeyRotations(self._eager.kernels).find(self._forward, Batch.of([np.zeros(1, np.int64)], [cache], "all"))

    def rotate_keys(self, layer: int, keys: F32, moved: I64) -> F32 | None:
        """Stored keys as if they stood ``moved`` positions later; what was done to store them is undone meanwhile."""
        if layer not in self.rotations:
            return None
        pool, at = self.memory.places[layer]
        rotation, size, ops = self.rotations[layer], self.memory.pools[pool].key_rotation(at), self._eager
        flat = ops.hadamard(keys.reshape(len(keys), -1), size, name="k_shift")
        table = ops.rope_table(moved, rotation.rotary)
        flat = ops.rope(flat, table, keys.shape[1], rotation.pairing, name="k_shift")
        return ops.hadamard(flat, size, name="k_shift").reshape(keys.shape)

    @functools.cached_property
    def identity(self) -> str:
        """SHA-256 of the configuration, and of the name, type, shape and first bytes of every tensor."""
        digest = hashlib.sha256(repr(replace(self._config, name="")).encode())
        if _LONG_FACTORS in self._tensors:  # which factors rotate the keys is a matter of the context
            digest.update(f"{self._n_ctx > self._config.n_ctx_orig}".encode())
        sample_digest(digest, self._tensors)
        return digest.hexdigest()
