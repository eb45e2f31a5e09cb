"""The eager driver: every operation of the forward pass runs when it is called and returns its result.

The forward pass is written in terms of these operations (``x = ops.rms_norm(x, ...)``). Each takes the name of its
result, and a watcher, if there is one, is shown every named value as it is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from minillama.gguf.constants import GGMLType
from minillama.kernels.layouts import LAYOUTS
from minillama.kernels.registry import KernelSet
from minillama.kernels.scratch import BLOCK_BYTES, DOT_BYTES
from minillama.kernels.types import F32, I64, U8
from minillama.runtime.batch import Batch
from minillama.runtime.threads import ThreadTeam

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


class Eager:
    """Runs operations one by one, each shared out over a team of threads.

    Parameters
    ----------
    kernels
        The backend's kernels.
    team
        Threads to run them on.
    watch
        Called as ``watch(name, value)`` with each named result; it must not keep or change the array.
    """

    def __init__(self, kernels: KernelSet, team: ThreadTeam, watch: Watcher | None = None) -> None:
        self.kernels = kernels
        self.team = team
        self._watch = watch
        self._prefix = ""

    def watched_by(self, watch: Watcher | None) -> Eager:
        """The same driver with a watcher."""
        return Eager(self.kernels, self.team, watch)

    @contextmanager
    def block(self, index: int) -> Iterator[None]:
        """Names given inside belong to layer ``index``: ``attn_norm`` becomes ``blk.0.attn_norm``."""
        self._prefix = f"blk.{index}."
        try:
            yield
        finally:
            self._prefix = ""

    def _named(self, name: str, value: F32) -> F32:
        if self._watch is not None:
            self._watch(self._prefix + name, value)
        return value

    def get_rows(self, weight: PackedMatrix, ids: I64, *, name: str) -> F32:
        """Rows of a weight, decoded: float32 [n, n_values]."""
        out = np.empty((len(ids), weight.shape[1]), np.float32)
        kernel = self.kernels.get_rows[weight.type]
        self.team.run(
            kernel, len(ids), weight.packed, ids, out, scratch_bytes=BLOCK_BYTES, work_per_item=weight.shape[1]
        )
        return self._named(name, out)

    def select_rows(self, x: F32, rows: I64, *, name: str) -> F32:
        """Rows of an array of values."""
        return self._named(name, x[rows])

    def rms_norm(self, x: F32, weight: F32, eps: float, *, name: str) -> F32:
        """Root-mean-square norm of every row, times a weight: float32 of x's shape."""
        out = np.empty_like(x)
        self.team.run(self.kernels.rms_norm, len(x), x, weight, np.float32(eps), out, work_per_item=4 * x.shape[1])
        return self._named(name, out)

    def mul_mat(self, x: F32, weight: PackedMatrix, *, name: str) -> F32:
        """``x @ weight.T`` on the packed blocks: float32 [n_tokens, n_rows].

        As in ggml, x is first converted to the type that the weight's dot product takes.
        """
        n_rows, n = weight.shape
        activation_type = LAYOUTS[weight.type].activation
        assert activation_type is not None  # weights of other types are refused when they are bound
        activation = np.empty((len(x), LAYOUTS[activation_type].row_bytes(n)), np.uint8)
        self.team.run(self.kernels.quantize[activation_type], len(x), x, activation, work_per_item=8 * n)
        out = np.empty((len(x), n_rows), np.float32)
        scratch = DOT_BYTES + 8 * len(x) * -(-n // 32)
        kernel = self.kernels.mul_mat[weight.type]
        self.team.run(
            kernel, n_rows, weight.packed, activation, n, out, scratch_bytes=scratch, work_per_item=n * len(x)
        )
        return self._named(name, out)

    def linear(self, x: F32, weight: PackedMatrix, bias: F32 | None, *, name: str) -> F32:
        """``x @ weight.T``, plus the bias if there is one."""
        if bias is None:
            return self.mul_mat(x, weight, name=name)
        product = self.mul_mat(x, weight, name=f"{name}_no_bias")
        out = np.empty_like(product)
        self.team.run(self.kernels.add_bias, len(x), product, bias, out, work_per_item=len(bias))
        return self._named(name, out)

    def add(self, x: F32, y: F32, *, name: str) -> F32:
        """``x + y``."""
        out = np.empty_like(x)
        self.team.run(self.kernels.add, len(x), x, y, out, work_per_item=x.shape[1])
        return self._named(name, out)

    def swiglu(self, gate: F32, up: F32, *, name: str) -> F32:
        """``silu(gate) * up``."""
        out = np.empty_like(gate)
        self.team.run(self.kernels.swiglu, len(gate), gate, up, out, work_per_item=32 * gate.shape[1])
        return self._named(name, out)

    def rope_table(self, position: I64, theta_scale: np.float32, freq_scale: np.float32, factors: F32) -> F32:
        """Cosine and sine of every token's rotary angles: float32 [n_tokens, n_rot / 2, 2]."""
        out = np.empty((len(position), len(factors), 2), np.float32)
        self.team.run(self.kernels.rope_table, len(position), position, theta_scale, freq_scale, factors, out)
        return out

    def rope(self, x: F32, table: F32, n_head: int, pairing: str, *, name: str) -> F32:
        """Rotary embedding of every head; ``pairing`` is ``"norm"`` (neighbours) or ``"neox"`` (halves)."""
        out = np.empty_like(x)
        kernel = self.kernels.rope_neox if pairing == "neox" else self.kernels.rope_norm
        self.team.run(kernel, len(x), x, table, n_head, out, work_per_item=4 * x.shape[1])
        return self._named(name, out)

    def attention(self, q: F32, k: F32, v: F32, batch: Batch, layer: int, n_head: int, *, name: str) -> F32:
        """Store keys and values in the cache, then attend: float32 [n_tokens, n_head * value_dim]."""
        pool = batch.pool
        keys, values = pool.keys[layer], pool.values[layer]
        place = (batch.table, batch.sequence, batch.position)
        self.team.run(
            self.kernels.store_kv[pool.dtype], batch.n_tokens, k, v, *place, keys, values, work_per_item=4 * k.shape[1]
        )
        head_dim, value_dim = keys.shape[2], values.shape[3]
        scale = np.float32(np.float32(1) / np.sqrt(np.float32(head_dim)))
        out = np.empty((batch.n_tokens, n_head * value_dim), np.float32)
        n_items = self.kernels.attention_items(batch.n_tokens, n_head)
        work = 4 * batch.n_kv * head_dim * n_head * batch.n_tokens
        self.team.run(
            self.kernels.attention[pool.dtype], n_items, q, keys, values, *place, n_head, scale, out,
            scratch_bytes=self.kernels.attention_scratch(batch.n_kv, head_dim), work_per_item=work // n_items,
        )  # fmt: skip
        return self._named(name, out)
