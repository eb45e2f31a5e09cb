"""The operations that a forward pass is written in, the same for every driver.

A driver says where results are put and when operations run (:class:`minillama.runtime.eager.Eager`: at once;
:class:`minillama.runtime.capture.Recorder`: later, as a plan). Each operation takes the name of its result.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from minillama.gguf.constants import GGMLType
from minillama.kernels.jit import Kernel
from minillama.kernels.layouts import LAYOUTS
from minillama.kernels.reference.attention import BLOCK
from minillama.kernels.registry import KernelSet
from minillama.kernels.scratch import BLOCK_BYTES
from minillama.kernels.types import F32, I64, U8
from minillama.runtime.batch import Batch
from minillama.runtime.plan import Operation

Watcher = Callable[[str, npt.NDArray[Any]], None]


class PackedMatrix(Protocol):
    """A weight as the operations see it: packed rows, their type and their true shape."""

    @property
    def packed(self) -> U8:
        """Packed rows, uint8 [n_rows, row_bytes]."""

    @property
    def type(self) -> GGMLType:
        """Type of the blocks."""

    @property
    def shape(self) -> tuple[int, int]:
        """``(n_rows, n_values)``."""


class Operations(ABC):
    """What a forward pass can do.

    Parameters
    ----------
    kernels
        The backend's kernels.
    """

    def __init__(self, kernels: KernelSet) -> None:
        self.kernels = kernels
        self._prefix = ""
        # Inside a block: the last rows in the form that products take. Elsewhere the caller may change them in place.
        self._activated: tuple[F32, GGMLType, U8] | None = None
        self._keeps_activated = False

    @abstractmethod
    def _empty(self, shape: tuple[int, ...], dtype: npt.DTypeLike = np.float32) -> npt.NDArray[Any]:
        """Memory for a result."""

    @abstractmethod
    def _do(self, operation: Operation) -> None:
        """Run an operation, or note it down."""

    @abstractmethod
    def _result(self, name: str, value: F32) -> F32:
        """A value has its name."""

    @contextmanager
    def block(self, index: int) -> Iterator[None]:
        """Names given inside belong to layer ``index``: ``attn_norm`` becomes ``blk.0.attn_norm``."""
        self._prefix, self._keeps_activated = f"blk.{index}.", True
        try:
            yield
        finally:
            self._prefix, self._keeps_activated, self._activated = "", False, None

    def _named(self, name: str, value: F32) -> F32:
        return self._result(self._prefix + name, value)

    def _run(self, name: str, kernel: Kernel, n_items: int, *arguments: Any, **details: int) -> None:
        if n_items:
            self._do(Operation(self._prefix + name, kernel, arguments, n_items, **details))

    def get_rows(self, weight: PackedMatrix, ids: I64, *, name: str) -> F32:
        """Rows of a weight, decoded: float32 [n, n_values]."""
        out = self._empty((len(ids), weight.shape[1]))
        kernel = self.kernels.get_rows[weight.type]
        self._run(
            name, kernel, len(ids), weight.packed, ids, out, scratch_bytes=BLOCK_BYTES, work_per_item=weight.shape[1]
        )
        return self._named(name, out)

    def select_rows(self, x: F32, rows: I64, *, name: str) -> F32:
        """Rows of an array of values."""
        out = self._empty((len(rows), x.shape[1]))
        self._run(name, self.kernels.select_rows, len(rows), x, rows, out, work_per_item=x.shape[1])
        return self._named(name, out)

    def rms_norm(self, x: F32, weight: F32, eps: float, *, name: str) -> F32:
        """Root-mean-square norm of every row, times a weight: float32 of x's shape."""
        out = self._empty(x.shape)
        self._run(name, self.kernels.rms_norm, len(x), x, weight, np.float32(eps), out, work_per_item=4 * x.shape[1])
        return self._named(name, out)

    def _activation(self, x: F32, type_: GGMLType, name: str) -> U8:
        """Rows in the form that products take; made once for products of the same rows that follow each other."""
        if self._activated is not None and self._activated[0] is x and self._activated[1] is type_:
            return self._activated[2]
        out = self._empty((len(x), self.kernels.activation_bytes(type_, x.shape[1])), np.uint8)
        self._run(f"{name}_quantize", self.kernels.quantize[type_], len(x), x, out, work_per_item=4 * x.shape[1])
        if self._keeps_activated:
            self._activated = x, type_, out
        return out

    def mul_mat(self, x: F32, weight: PackedMatrix, *, name: str) -> F32:
        """``x @ weight.T`` on the packed blocks: float32 [n_tokens, n_rows].

        As in ggml, x is first converted to the type that the weight's dot product takes.
        """
        n_rows, n = weight.shape
        activation_type = LAYOUTS[weight.type].activation
        assert activation_type is not None  # weights of other types are refused when they are bound
        activation = self._activation(x, activation_type, name)
        out = self._empty((len(x), n_rows))
        self._run(
            name, self.kernels.mul_mat[weight.type], n_rows if len(x) else 0, weight.packed, activation, n, out,
            scratch_bytes=self.kernels.mul_mat_scratch(weight.type, n, len(x)), work_per_item=n * len(x),
            granularity=self.kernels.mul_mat_rows(weight.type), n_bytes=weight.packed.nbytes,
        )  # fmt: skip
        return self._named(name, out)

    def linear(self, x: F32, weight: PackedMatrix, bias: F32 | None, *, name: str) -> F32:
        """``x @ weight.T``, plus the bias if there is one."""
        if bias is None:
            return self.mul_mat(x, weight, name=name)
        product = self.mul_mat(x, weight, name=f"{name}_no_bias")
        out = self._empty(product.shape)
        self._run(name, self.kernels.add_bias, len(x), product, bias, out, work_per_item=len(bias))
        return self._named(name, out)

    def add(self, x: F32, y: F32, *, name: str) -> F32:
        """``x + y``."""
        out = self._empty(x.shape)
        self._run(name, self.kernels.add, len(x), x, y, out, work_per_item=x.shape[1])
        return self._named(name, out)

    def swiglu(self, gate: F32, up: F32, *, name: str) -> F32:
        """``silu(gate) * up``."""
        out = self._empty(gate.shape)
        self._run(name, self.kernels.swiglu, len(gate), gate, up, out, work_per_item=32 * gate.shape[1])
        return self._named(name, out)

    def rope_table(self, position: I64, theta_scale: np.float32, freq_scale: np.float32, factors: F32) -> F32:
        """Cosine and sine of every token's rotary angles: float32 [n_tokens, n_rot / 2, 2]."""
        out = self._empty((len(position), len(factors), 2))
        arguments = position, theta_scale, freq_scale, factors, out
        self._run("rope_table", self.kernels.rope_table, len(position), *arguments, work_per_item=100 * len(factors))
        return out

    def rope(self, x: F32, table: F32, n_head: int, pairing: str, *, name: str) -> F32:
        """Rotary embedding of every head; ``pairing`` is ``"norm"`` (neighbours) or ``"neox"`` (halves)."""
        out = self._empty(x.shape)
        kernel = self.kernels.rope_neox if pairing == "neox" else self.kernels.rope_norm
        self._run(name, kernel, len(x), x, table, n_head, out, work_per_item=4 * x.shape[1])
        return self._named(name, out)

    def attention(self, q: F32, k: F32, v: F32, batch: Batch, layer: int, n_head: int, *, name: str) -> F32:
        """Store keys and values in the cache, then attend: float32 [n_tokens, n_head * value_dim]."""
        pool = batch.pool
        keys, values = pool.keys[layer], pool.values[layer]
        place = (batch.table, batch.sequence, batch.position)
        store_kv = self.kernels.store_kv[pool.dtype]
        self._run("store_kv", store_kv, batch.n_tokens, k, v, *place, keys, values, work_per_item=4 * k.shape[1])
        head_dim, value_dim = keys.shape[2], values.shape[3]
        scale = np.float32(np.float32(1) / np.sqrt(np.float32(head_dim)))
        out = self._empty((batch.n_tokens, n_head * value_dim))
        n_items = self.kernels.attention_items(batch.n_tokens, n_head)
        work = 2 * batch.n_kv * head_dim * n_head * batch.n_tokens
        self._run(
            name, self.kernels.attention[pool.dtype], n_items, q, keys, values, *place, n_head, scale, out,
            scratch_bytes=self.kernels.attention_scratch(BLOCK * batch.table.shape[1], head_dim),
            work_per_item=work // n_items,
        )  # fmt: skip
        return self._named(name, out)
