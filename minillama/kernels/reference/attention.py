"""Grouped-query attention over a block KV cache, in the order of ggml's unfused graph (mul_mat, soft_max_ext, mul_mat).

The cache of a layer is two arrays of blocks of ``BLOCK`` positions::

    keys    [n_blocks, n_head_kv, head_dim, BLOCK]     lanes across positions lie together
    values  [n_blocks, n_head_kv, BLOCK, head_dim]     lanes across the head dimension lie together

float32, or uint16 holding the bits of halves. ``table`` int64 [n_sequences, n] names the block of a sequence's
positions ``BLOCK * i`` and on. ``sequence`` and ``position`` (int64 [n_tokens]) say where each token of the batch
belongs; token t sees positions 0 to ``position[t]`` of its sequence. Kernels for encoders are given the position of
the last token of its sequence instead: every token sees all.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from minillama.kernels.bits import float_to_half, half_to_float
from minillama.kernels.jit import Kernel, jit
from minillama.kernels.reference.libm import exp_lane, expf
from minillama.kernels.types import F32, I64, U8

BLOCK = 64

Cache = npt.NDArray[Any]

_FLOAT: np.dtype[Any] = np.dtype(np.float32)
_HALF: np.dtype[Any] = np.dtype(np.uint16)


@jit
def _keep(value: np.float32) -> np.float32:
    return value


@jit
def _half_bits(value: np.float32) -> np.uint16:
    return np.uint16(float_to_half(value))


@jit
def _half_value(bits: np.uint16) -> np.float32:
    return half_to_float(np.uint32(bits))


# How a cache type stores a float and reads it back. With a cache of halves ggml also rounds the other operand of each
# product to half.
STORE: dict[np.dtype[Any], Kernel] = {_FLOAT: _keep, _HALF: _half_bits}
LOAD: dict[np.dtype[Any], Kernel] = {_FLOAT: _keep, _HALF: _half_value}
SUFFIX: dict[np.dtype[Any], str] = {_FLOAT: "f32", _HALF: "f16"}


def _make_store_kv(dtype: np.dtype[Any]) -> Kernel:
    store = STORE[dtype]

    @jit(name=f"store_kv_{SUFFIX[dtype]}")
    def store_kv(
        k: F32, v: F32, table: I64, sequence: I64, position: I64, keys: Cache, values: Cache, start: int, stop: int
    ) -> None:
        n_head_kv, head_dim = keys.shape[1], keys.shape[2]
        for t in range(start, stop):
            block, slot = table[sequence[t], position[t] // BLOCK], position[t] % BLOCK
            for head in range(n_head_kv):
                for d in range(head_dim):
                    keys[block, head, d, slot] = store(k[t, head * head_dim + d])
                for d in range(values.shape[3]):
                    values[block, head, slot, d] = store(v[t, head * values.shape[3] + d])

    return store_kv


@jit
def soft_max(scores: F32, n: int, scale: np.float32) -> None:
    """``ggml_compute_forward_soft_max_f32`` in place over the first ``n`` scores.

    Exponentials are summed four at a time, (e0 + e1) + (e2 + e3) in float, and the fours in double; llama.cpp pads the
    row with masked positions, which add exact zeros.
    """
    largest = np.float32(-np.inf)
    for j in range(n):
        scores[j] = scores[j] * scale
        largest = max(largest, scores[j])
    total = np.float64(0)
    for j in range(0, n, 4):
        four = np.float32(0)
        pair = np.float32(0)
        for lane in range(4):
            value = np.float32(0)
            if j + lane < n:
                value = exp_lane(np.float32(scores[j + lane] - largest))
                scores[j + lane] = value
            pair = value if lane % 2 == 0 else np.float32(pair + value)
            if lane % 2 == 1:
                four = np.float32(four + pair)
        total += np.float64(four)
    inverse = np.float32(np.float64(1) / total)
    for j in range(n):
        scores[j] = scores[j] * inverse


@jit
def soft_max_all(scores: F32, n: int, scale: np.float32) -> None:
    """As :func:`soft_max` where llama.cpp does not pad the row (encoders have no cache).

    The last n mod 4 exponentials are then libm's, and are added one by one.
    """
    largest = np.float32(-np.inf)
    for j in range(n):
        scores[j] = scores[j] * scale
        largest = max(largest, scores[j])
    total = np.float64(0)
    for j in range(0, n - n % 4, 4):
        for lane in range(4):
            scores[j + lane] = exp_lane(np.float32(scores[j + lane] - largest))
        low, high = np.float32(scores[j] + scores[j + 1]), np.float32(scores[j + 2] + scores[j + 3])
        total += np.float64(np.float32(low + high))
    for j in range(n - n % 4, n):
        scores[j] = expf(np.float32(scores[j] - largest))
        total += np.float64(scores[j])
    inverse = np.float32(np.float64(1) / total)
    for j in range(n):
        scores[j] = scores[j] * inverse


def make_scores(dtype: np.dtype[Any]) -> Kernel:
    """Products of a query with the keys of a head."""
    store, load = STORE[dtype], LOAD[dtype]

    @jit
    def scores_of_head(q: F32, t: int, first: int, keys: Cache, blocks: I64, head_kv: int, n: int, scores: F32) -> None:
        """A double sum over the head dimension, in order, of float products, for each of ``n`` positions."""
        for j in range(n):
            total = np.float64(0)
            for d in range(keys.shape[2]):
                query = load(store(q[t, first + d]))
                total += np.float64(np.float32(load(keys[blocks[j // BLOCK], head_kv, d, j % BLOCK]) * query))
            scores[j] = np.float32(total)

    return scores_of_head


def make_outputs(dtype: np.dtype[Any]) -> Kernel:
    """Sums of the values of a head, weighted."""
    store, load = STORE[dtype], LOAD[dtype]

    @jit
    def outputs_of_head(
        scores: F32, values: Cache, blocks: I64, head_kv: int, n: int, out: F32, t: int, first: int
    ) -> None:
        """A double sum over positions, in order, of float products, for each value of the head."""
        for d in range(values.shape[3]):
            total = np.float64(0)
            for j in range(n):
                value = load(values[blocks[j // BLOCK], head_kv, j % BLOCK, d])
                total += np.float64(np.float32(value * load(store(scores[j]))))
            out[t, first + d] = np.float32(total)

    return outputs_of_head


def make_attention(name: str, scores_of_head: Kernel, outputs_of_head: Kernel, soft_max: Kernel = soft_max) -> Kernel:
    """Attention out of its two products; between them is the softmax."""

    @jit(name=name)
    def attention(
        q: F32, keys: Cache, values: Cache, table: I64, sequence: I64, position: I64, n_head: int, scale: np.float32,
        out: F32, scratch: U8, start: int, stop: int,
    ) -> None:  # fmt: skip
        """Heads ``start`` to ``stop`` of the batch, counted as token * n_head + head."""
        scores = scratch.view(np.float32)
        for item in range(start, stop):
            t, head = item // n_head, item % n_head
            head_kv = head // (n_head // keys.shape[1])
            blocks, n = table[sequence[t]], position[t] + 1
            scores_of_head(q, t, head * keys.shape[2], keys, blocks, head_kv, n, scores)
            soft_max(scores, n, scale)
            outputs_of_head(scores, values, blocks, head_kv, n, out, t, head * values.shape[3])

    return attention


def attention_items(n_tokens: int, n_head: int) -> int:
    """Items of the attention kernels: each is one head of one token."""
    return n_tokens * n_head


def attention_scratch(n_kv: int, _head_dim: int) -> int:
    """Bytes of working memory a thread needs where no token sees more than ``n_kv`` positions."""
    return 4 * n_kv


# store_kv(k: float32 [n_tokens, n_head_kv * head_dim], v, table, sequence, position, keys, values, start, stop)
STORE_KV: dict[np.dtype[Any], Kernel] = {dtype: _make_store_kv(dtype) for dtype in STORE}
# attention(q: float32 [n_tokens, n_head * head_dim], keys, values, table, sequence, position, n_head, scale,
# out: float32 [n_tokens, n_head * value_dim], scratch: attention_scratch() bytes, start, stop)
ATTENTION: dict[np.dtype[Any], Kernel] = {
    dtype: make_attention(f"attention_{SUFFIX[dtype]}", make_scores(dtype), make_outputs(dtype)) for dtype in STORE
}
# The same, of encoders: position is that of the last token of each token's sequence, and the cache is float32.
ATTENTION_ALL = make_attention("attention_all", make_scores(_FLOAT), make_outputs(_FLOAT), soft_max_all)
