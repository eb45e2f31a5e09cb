"""What a model is: its sizes and constants, read from GGUF metadata and checked."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from minillama.errors import GGUFError, UnsupportedError
from minillama.gguf import GGUFFile


@dataclass(frozen=True)
class ModelConfig:
    """Hyperparameters of a llama-shaped transformer, named as in llama.cpp.

    Attributes
    ----------
    architecture
        ``general.architecture``.
    name
        ``general.name``, or the file's name.
    n_layer, n_embd, n_ff, n_head, n_head_kv
        Numbers of layers, of values per token, of values inside the feed-forward network, of query and of key heads.
    head_dim, value_dim
        Values per key head and per value head.
    n_vocab
        Rows of the token embedding.
    n_ctx_train
        Positions the model was trained for.
    rms_eps
        Epsilon of the norms.
    n_rot
        Values of a head that are rotated.
    rope_freq_base, rope_freq_scale
        Base of the rotary frequencies, and what angles are multiplied by (1 / factor with linear scaling).
    """

    architecture: str
    name: str
    n_layer: int
    n_embd: int
    n_ff: int
    n_head: int
    n_head_kv: int
    head_dim: int
    value_dim: int
    n_vocab: int
    n_ctx_train: int
    rms_eps: float
    n_rot: int
    rope_freq_base: float
    rope_freq_scale: float

    @property
    def rope_theta_scale(self) -> np.float32:
        """Ratio of the angles of neighbouring pairs, ``powf(freq_base, -2 / n_rot)``."""
        from minillama.kernels.reference.libm import powf  # here, so that reading a configuration needs no kernels

        return np.float32(powf(np.float32(self.rope_freq_base), np.float32(np.float32(-2) / np.float32(self.n_rot))))


def architecture_of(file: GGUFFile) -> str:
    """``general.architecture`` of a file."""
    return file.get("general.architecture", str)


def read_config(file: GGUFFile) -> ModelConfig:
    """Read the configuration of a llama-shaped model.

    Raises
    ------
    GGUFError
        A key is missing, has the wrong type, or the sizes contradict each other.
    UnsupportedError
        The file uses a feature that is not implemented: experts, per-layer heads, a rotary scaling other than linear.
    """
    reader = _Reader(file)
    if reader.integer("expert_count", 0) > 0:
        raise UnsupportedError(f"{file.path}: mixture-of-experts models are not supported yet")
    n_embd, n_head = reader.integer("embedding_length"), reader.integer("attention.head_count")
    n_head_kv = reader.integer("attention.head_count_kv", n_head)
    head_dim = reader.integer("attention.key_length", n_embd // n_head)
    config = ModelConfig(
        architecture=reader.architecture,
        name=file.get("general.name", str, file.path.stem),
        n_layer=reader.integer("block_count"),
        n_embd=n_embd,
        n_ff=reader.integer("feed_forward_length"),
        n_head=n_head,
        n_head_kv=n_head_kv,
        head_dim=head_dim,
        value_dim=reader.integer("attention.value_length", n_embd // n_head),
        n_vocab=_embedding_rows(file),
        n_ctx_train=reader.integer("context_length"),
        rms_eps=reader.number("attention.layer_norm_rms_epsilon"),
        n_rot=reader.integer("rope.dimension_count", head_dim),
        rope_freq_base=reader.number("rope.freq_base", 10000.0),
        rope_freq_scale=reader.rope_freq_scale(),
    )
    _check(config, file)
    return config


def _embedding_rows(file: GGUFFile) -> int:
    if "token_embd.weight" not in file.tensors:
        raise GGUFError("tensor 'token_embd.weight' is missing", path=str(file.path))
    return file.tensors["token_embd.weight"].shape[0]


def _check(config: ModelConfig, file: GGUFFile) -> None:
    if config.n_head % config.n_head_kv:
        raise GGUFError(
            f"head_count {config.n_head} is not a multiple of head_count_kv {config.n_head_kv}", path=str(file.path)
        )
    if config.n_rot % 2 or config.n_rot > config.head_dim:
        raise GGUFError(
            f"rope.dimension_count is {config.n_rot}, an even number up to the head's {config.head_dim} is wanted",
            path=str(file.path),
        )


class _Reader:
    """Typed access to the keys under the architecture's prefix."""

    def __init__(self, file: GGUFFile) -> None:
        self._file = file
        self.architecture = architecture_of(file)

    def integer(self, key: str, default: int | None = None) -> int:
        full = f"{self.architecture}.{key}"
        if isinstance(self._file.metadata.get(full), np.ndarray):
            raise UnsupportedError(f"{self._file.path}: {full} is an array; a value per layer is not supported yet")
        value = self._file.get(full, int) if default is None else self._file.get(full, int, default)
        least = 0 if default == 0 else 1
        if not least <= value < 2**31:
            raise GGUFError(f"{full} is {value}, a number from {least} to 2^31 is wanted", path=str(self._file.path))
        return value

    def number(self, key: str, default: float | None = None) -> float:
        full = f"{self.architecture}.{key}"
        value = self._file.get(full, float) if default is None else self._file.get(full, float, default)
        if not (np.isfinite(value) and value > 0):
            raise GGUFError(f"{full} is {value}, a positive number is wanted", path=str(self._file.path))
        return value

    def rope_freq_scale(self) -> float:
        kind = self._file.get(f"{self.architecture}.rope.scaling.type", str, "linear")
        if kind == "none":
            return 1.0
        if kind != "linear":
            raise UnsupportedError(
                f"{self._file.path}: rotary scaling {kind!r} is not supported yet, supported are none and linear"
            )
        old = self._file.get(f"{self.architecture}.rope.scale_linear", float, 0.0)
        factor = self._file.get(f"{self.architecture}.rope.scaling.factor", float, old)
        if not (np.isfinite(factor) and factor >= 0):
            raise GGUFError(f"the rotary scaling factor is {factor}, a positive number is wanted")
        return float(np.float32(1) / np.float32(factor)) if factor else 1.0
