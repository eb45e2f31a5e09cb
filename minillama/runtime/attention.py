"""Attention and the cache, of the operations that a forward pass is written in."""

from __future__ import annotations

from typing import Any

import numpy as np

from minillama.kernels.reference.attention_window import attention_window_scratch
from minillama.kernels.types import F32
from minillama.runtime.batch import Batch
from minillama.runtime.driven import Driven
from minillama.runtime.plan import Ahead
from minillama.runtime.probe import PATTERN, SCORES, STORE

_NO_SINKS = np.zeros(0, np.float32)

# Of attention: window, softcap, sinks.
_Limits = tuple[int, np.float32, F32]


class Attention(Driven):
    """Operations on keys and values."""

    def attention(
        self, q: F32, k: F32, v: F32, batch: Batch, layer: int, n_head: int, scale: np.float32, *, name: str,
        window: int = 0, softcap: float = 0.0, sinks: F32 | None = None, sees_all: bool = False,
    ) -> F32:  # fmt: skip
        """Store keys and values in the cache, then attend: float32 [n_tokens, n_head * value_dim].

        Parameters
        ----------
        q, k, v
            Queries, keys and values of the batch, each float32 [n_tokens, heads * values of a head].
        batch
            Where the tokens belong.
        layer
            Whose cache it is.
        n_head
            Query heads.
        scale
            What products of queries and keys are multiplied by.
        name
            Name of the result.
        window
            Positions that a token sees, its own included; 0: all.
        softcap
            Cap of the products, before they are scaled; 0: none.
        sinks
            A score for each head that takes part in the softmax and has no value, float32 [n_head].
        sees_all
            Tokens see those after them too, as in encoders; of float32 caches, without window, cap and sinks.
        """
        pool, at, table = batch.place(layer)
        q, k = (self.hadamard(x, pool.key_rotation(at), name=name) for x in (q, k))
        v = self.hadamard(v, pool.value_rotation(at), name=name)
        keys, values = pool.keys[at], pool.values[at]
        place = (table, batch.sequence, batch.position)
        store_kv = self.kernels.store_kv[pool.kind]
        self._run(STORE, store_kv, batch.n_tokens, k, v, *place, keys, values, work_per_item=4 * k.shape[1])
        limits = None if sees_all else (window, np.float32(softcap), _NO_SINKS if sinks is None else sinks)
        out = self._attend(q, batch, layer, n_head, scale, limits, name)
        return self._named(name, self.hadamard(out, pool.value_rotation(at), name=name))

    def hadamard(self, x: F32, size: int, *, name: str) -> F32:
        """Heads rotated as those of quantized caches are, ``size`` values at a time; 0: as they are. No named value."""
        if not size:
            return x
        out = self._empty(x.shape)
        self._run(f"{name}_hadamard", self.kernels.hadamard, len(x), x, size, out, work_per_item=8 * x.shape[1])
        return out

    def _attend(
        self, q: F32, batch: Batch, layer: int, n_head: int, scale: np.float32, limits: _Limits | None, name: str,
    ) -> F32:  # fmt: skip
        """Attention to what the cache holds, by the kernel for such caches and limits; None: every token sees all."""
        pool, at, table = batch.place(layer)
        keys, values, value_dim = pool.keys[at], pool.values[at], pool.shapes[at][2]
        if any(self._wants(self._prefix + part) for part in (SCORES, PATTERN)):
            return self._attend_in_parts(q, batch, layer, n_head, scale, limits, name)
        out = self._empty((batch.n_tokens, n_head * value_dim))
        seen = batch.last if limits is None else batch.position
        cached: tuple[Any, ...] = (q, keys, values, table, batch.sequence, seen, n_head, scale)
        longest = batch.longest
        work = 2 * batch.n_kv * q.shape[1] * batch.n_tokens
        n_items = self.kernels.attention_items(batch.n_tokens, n_head)
        scratch = self.kernels.attention_scratch(longest, q.shape[1] // n_head)
        if limits is None:
            kernel = self.kernels.attention_all
        elif not isinstance(pool.kind, np.dtype):
            kernel, n_items = self.kernels.attention_of_any_kind[pool.kind], batch.n_tokens * n_head
            scratch = attention_window_scratch(longest, q.shape[1] // n_head, value_dim)
            cached += limits
        elif _limits_nothing(limits, longest):
            kernel = self.kernels.attention[pool.kind]
        else:
            kernel = self.kernels.attention_window[pool.kind]
            n_items = self.kernels.attention_window_items(batch.n_tokens, n_head)
            scratch = self.kernels.attention_window_scratch(longest, q.shape[1] // n_head, value_dim)
            cached += limits
        group = n_head // pool.shapes[at][0] if batch.n_tokens == 1 else 1  # heads that read the same keys and values
        self._run(
            name, kernel, n_items, *cached, out, scratch_bytes=scratch, work_per_item=work // n_items, group=group,
            ahead=Ahead(keys, table) if _sees_first(limits, longest) else None,
        )  # fmt: skip
        return out

    def _attend_in_parts(
        self, q: F32, batch: Batch, layer: int, n_head: int, scale: np.float32, limits: _Limits | None, name: str,
    ) -> F32:  # fmt: skip
        """Attention whose products and weights, float32 [n_tokens, n_head, n_kv], are values of their own."""
        (pool, at, table), n_items = batch.place(layer), batch.n_tokens * n_head
        seen = batch.last if limits is None else batch.position
        place = (table, batch.sequence, seen)
        shape, work = (batch.n_tokens, n_head, self._n_kv(batch)), batch.n_kv * (q.shape[1] // n_head)
        scores, kernel = self._empty(shape), self.kernels.attention_scores[pool.key_format.kind]
        self._run(SCORES, kernel, n_items, q, pool.keys[at], *place, n_head, scores, work_per_item=work)
        scores = self._named(SCORES, scores)
        weights = self._empty(shape)
        softmax = self.kernels.attention_soft_max_all if limits is None else self.kernels.attention_soft_max
        self._run(PATTERN, softmax, n_items, scores, seen, n_head, scale, *(limits or ()), weights)
        weights = self._named(PATTERN, weights)
        out = self._empty((batch.n_tokens, n_head * pool.shapes[at][2]))
        kernel = self.kernels.attention_outputs[pool.value_format.kind]
        self._run(name, kernel, n_items, weights, pool.values[at], *place, n_head, out, work_per_item=work)
        return out


def _sees_first(limits: _Limits | None, longest: int) -> bool:
    """Whether all tokens see the first: a plan fits texts of up to ``longest`` positions, and no longer ones."""
    return limits is None or not limits[0] or limits[0] >= longest


def _limits_nothing(limits: _Limits, longest: int) -> bool:
    """Whether tokens see all before them, and nothing else is done to scores."""
    _, softcap, sinks = limits
    return _sees_first(limits, longest) and not softcap and not len(sinks)
