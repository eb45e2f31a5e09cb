"""LoRA adapters: GGUF files whose low-rank updates are applied beside the packed weights, which stay as they are.

The format is llama.cpp's: ``general.type`` is ``adapter``, ``adapter.type`` is ``lora``, and a weight's update is two
tensors, ``<weight>.lora_a`` and ``<weight>.lora_b``.
"""

from __future__ import annotations

import functools
import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from minillama.errors import AdapterError, InvalidInputError, UnsupportedError
from minillama.gguf import GGUFFile, TensorInfo
from minillama.model.weights import ExpertsView, MatrixView, Weight, sample_digest
from minillama.runtime.eager import Eager
from minillama.runtime.low_rank import LowRank, Scaled

log = logging.getLogger("minillama.model")

EMBEDDING = "token_embd.weight"
_ENDINGS = (".lora_a", ".lora_b")
# What an adapter may hold besides: norms that llama.cpp passes over.
_PASSED_OVER = "_norm.weight"

_Half = MatrixView | ExpertsView


@dataclass(frozen=True)
class Base:
    """The model that adapters are made for.

    Attributes
    ----------
    architecture
        Its architecture.
    tensors
        Of its file.
    products
        Weights that an adapter can update, and their shapes.
    driver
        Decodes and multiplies.
    """

    architecture: str
    tensors: Mapping[str, TensorInfo]
    products: Mapping[str, tuple[int, ...]]
    driver: Eager


class Adapter:
    """A LoRA adapter for one model; made by ``model.load_adapter``.

    Attributes
    ----------
    name
        ``general.name``, or the file's name.
    alpha
        ``adapter.lora.alpha``: an update is scaled by alpha / rank, times the user's scale; 0: by that alone.
    """

    def __init__(self, file: GGUFFile, base: Base) -> None:
        self._file, self._base = file, base
        self._check_metadata()
        self.name = str(file.metadata.get("general.name") or file.path.name)
        self.alpha = float(file.metadata.get("adapter.lora.alpha", 0.0))
        self._pairs = {weight: self._pair(weight, *halves) for weight, halves in self._halves().items()}
        if not self._pairs:
            raise self._error("holds no updates (tensors that end in .lora_a and .lora_b)")

    def __repr__(self) -> str:
        ranks = sorted({pair[1].shape[-1] for pair in self._pairs.values()})
        return f"<Adapter {self.name!r}: {len(self)} weights, rank {', '.join(map(str, ranks))}, alpha {self.alpha:g}>"

    def __len__(self) -> int:
        return len(self._pairs)

    @property
    def weights(self) -> tuple[str, ...]:
        """Names of the weights that it updates."""
        return tuple(self._pairs)

    @property
    def base(self) -> Base:
        """The model it was loaded for."""
        return self._base

    @functools.cached_property
    def identity(self) -> str:
        """SHA-256 of alpha, and of the name, type, shape and first bytes of every tensor."""
        digest = hashlib.sha256(f"{self.alpha!r}".encode())
        sample_digest(digest, self._file.tensors)
        return digest.hexdigest()

    def check(self) -> None:
        """Check that the mapped file is as it was.

        Raises
        ------
        GGUFError
            It was cut short or written to.
        """
        self._file.check()

    def update(self, weight: str, scale: float) -> LowRank | None:
        """The update of a weight, scaled as llama.cpp's ``get_scale`` does it, in float32."""
        if weight not in self._pairs:
            return None
        a, b = self._pairs[weight]
        factor, rank = np.float32(scale), np.float32(b.shape[-1])
        return LowRank(a, b, factor * np.float32(self.alpha) / rank if self.alpha else factor)

    def _error(self, message: str) -> AdapterError:
        return AdapterError(f"{self._file.path}: {message}")

    def _check_metadata(self) -> None:
        metadata = self._file.metadata
        wanted = {"general.type": "adapter", "adapter.type": "lora", "general.architecture": self._base.architecture}
        for key, value in wanted.items():
            if metadata.get(key) != value:
                raise self._error(f"{key} is {metadata.get(key)!r}, {value!r} is wanted")
        alpha = metadata.get("adapter.lora.alpha", 0.0)
        if not isinstance(alpha, float | int) or not np.isfinite(alpha):
            raise self._error(f"adapter.lora.alpha is {alpha!r}, a number is wanted")
        if "adapter.alora.invocation_tokens" in metadata:
            raise UnsupportedError(
                f"{self._file.path}: it is switched on by tokens of the text (aLoRA), only plain LoRA is supported"
            )

    def _halves(self) -> dict[str, tuple[TensorInfo, TensorInfo]]:
        """Tensors ``lora_a`` and ``lora_b`` of each weight."""
        tensors, weights = self._file.tensors, {}
        for name in tensors:
            weight = name.removesuffix(_ENDINGS[0]).removesuffix(_ENDINGS[1])
            if weight != name:
                weights[weight] = [tensors.get(weight + ending) for ending in _ENDINGS]
            elif name.endswith(_PASSED_OVER):
                log.warning("%s: %r not used: llama.cpp passes over norms as well", self._file.path.name, name)
            else:
                raise self._error(f"tensor {name!r} is no half of an update, .lora_a or .lora_b is wanted at its end")
        found = {}
        for weight, (a, b) in weights.items():
            if a is None or b is None:
                raise self._error(f"{weight!r} has no {_ENDINGS[0 if a is None else 1]}, it takes both")
            found[weight] = a, b
        return found

    def _pair(self, weight: str, a: TensorInfo, b: TensorInfo) -> tuple[_Half, _Half]:
        *experts, rows, n = self._shape(weight)
        rank = b.shape[-1]
        wanted = {a.name: (*experts, rank, n), b.name: (*experts, rows, rank)}
        if weight == EMBEDDING:  # a's rows are looked up, as the embedding's are
            wanted = {a.name: (rows, rank), b.name: (n, rank)}
        for tensor in (a, b):
            # GGUF drops outer sizes of 1.
            if (1,) * (len(wanted[tensor.name]) - len(tensor.shape)) + tensor.shape != wanted[tensor.name]:
                raise self._error(
                    f"tensor {tensor.name!r} has shape {tensor.shape}, the model wants {wanted[tensor.name]}"
                )
        return self._packed(a, wanted[a.name]), self._packed(b, wanted[b.name])

    def _packed(self, tensor: TensorInfo, shape: tuple[int, ...]) -> _Half:
        weight = Weight.of(tensor, self._base.driver)
        return weight.matrix() if len(shape) == 2 else weight.experts((shape[0], shape[1], shape[2]))

    def _shape(self, weight: str) -> tuple[int, ...]:
        """Shape of a weight that can be updated."""
        base = self._base
        if weight not in base.tensors:
            raise self._error(f"it updates {weight!r}, which the model does not have")
        if weight not in base.products:
            raise UnsupportedError(
                f"{self._file.path}: it updates {weight!r}, which no product is made with: it cannot be updated"
            )
        if weight == EMBEDDING and "output.weight" not in base.tensors:
            raise UnsupportedError(
                f"{self._file.path}: it updates {weight!r}, which is the head as well in this model; "
                "llama.cpp cannot do that either"
            )
        return base.products[weight]


# An adapter, with scale 1 or its own.
AdapterLike = Adapter | tuple[Adapter, float]


def scaled(adapters: Sequence[AdapterLike], base: Base) -> tuple[Scaled, ...]:
    """Adapters with their scales, checked; those with scale 0 are left out, as in llama.cpp.

    Raises
    ------
    InvalidInputError
        One is none, is another model's, is given twice, or its scale is no number.
    """
    if isinstance(adapters, Adapter):
        raise InvalidInputError("adapters is one adapter, a list of adapters or of (adapter, scale) is wanted")
    found: dict[Adapter, float] = {}
    for entry in adapters:
        adapter, scale = entry if isinstance(entry, tuple) and len(entry) == 2 else (entry, 1.0)
        if not isinstance(adapter, Adapter):
            raise InvalidInputError(f"an adapter is {adapter!r}, what load_adapter returns is wanted")
        if adapter.base is not base:
            raise InvalidInputError(f"{adapter!r} was loaded for another model")
        if adapter in found:
            raise InvalidInputError(f"{adapter!r} is given twice")
        if isinstance(scale, bool) or not isinstance(scale, float | int) or not np.isfinite(scale):
            raise InvalidInputError(f"the scale of {adapter!r} is {scale!r}, a number is wanted")
        found[adapter] = float(np.float32(scale))
    return tuple((adapter, scale) for adapter, scale in found.items() if scale)
