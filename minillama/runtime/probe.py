"""What looks at the named values of a pass while it runs, and may put others in their place."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy.typing as npt

from minillama.gguf.constants import GGMLType
from minillama.runtime.batch import Batch

Values = npt.NDArray[Any]
Watcher = Callable[[str, Values], None]

# Values that exist only when they are asked for: attention's products and weights, and rows in the blocks that the
# dot products of quantized weights take.
SCORES, PATTERN = "kq", "kq_soft_max"
STORE = "store_kv"  # writing keys and values to the cache; no value
PACKED_TYPES = (GGMLType.Q8_0, GGMLType.Q8_1, GGMLType.Q8_K)
_PACKED = tuple(f".{type_.name.lower()}" for type_ in PACKED_TYPES)


def is_attention(name: str) -> bool:
    """Whether a value is attention's products or weights, [n_tokens, n_head, n_kv]."""
    return name.endswith((f".{SCORES}", f".{PATTERN}"))


def is_packed(name: str) -> bool:
    """Whether a value is another one's rows as packed blocks."""
    return name.endswith(_PACKED)


def is_on_demand(name: str) -> bool:
    """Whether a value is computed only for a probe that wants it."""
    return is_attention(name) or is_packed(name)


def packed_name(name: str, type_: GGMLType) -> str:
    """Name of a value's rows as blocks of ``type_``."""
    return f"{name}.{type_.name.lower()}"


class Probe(ABC):
    """Looks at named values, and may replace them.

    Attributes
    ----------
    reads
        Names of the values that it wants, if they can be told beforehand: a recorded plan then serves it. None: it must
        be asked about each value as it is made.
    changes
        Those of them that it must be shown as soon as they are made, because it may replace them or end the pass.
    """

    reads: frozenset[str] | None = None
    changes: frozenset[str] = frozenset()

    @abstractmethod
    def wants(self, name: str) -> bool:
        """Whether :meth:`take` is to be called with the value of this name."""

    def begin(self, n_tokens: Sequence[int]) -> None:  # noqa: B027 - most have nothing to do here
        """A call begins that computes so many tokens of each sequence, in one pass or several."""

    def kept_bytes(self, batch: Batch) -> int:
        """About how much memory the values take that it reads of a pass."""
        return 0

    def start(self, batch: Batch) -> None:  # noqa: B027 - most have nothing to do here
        """A pass over a batch begins."""

    @abstractmethod
    def take(self, name: str, value: Values) -> Values | None:
        """A value is there; it must not be kept or changed. An array returned takes its place."""

    def check(self) -> None:  # noqa: B027 - most have nothing to do here
        """All calls are over: raise if something that was to happen has not."""


class Watching(Probe):
    """A function that is shown every value, those on demand aside."""

    def __init__(self, watch: Watcher) -> None:
        self._watch = watch

    def wants(self, name: str) -> bool:
        """Everything that is there anyway."""
        return not is_on_demand(name)

    def take(self, name: str, value: Values) -> None:
        """Show it."""
        self._watch(name, value)


def probe_of(watch: Watcher | Probe | None) -> Probe | None:
    """A function as a probe; a probe as it is."""
    return watch if watch is None or isinstance(watch, Probe) else Watching(watch)
