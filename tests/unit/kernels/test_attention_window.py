"""Attention with a window, capped scores and sinks: the bits of ggml's operations with a mask."""

import numpy as np
import pytest
from kernel_inputs import assert_same_bits, attention_case, generator

from minillama.kernels.reference import elementwise
from minillama.kernels.reference.attention import BLOCK
from minillama.kernels.reference.softmax import SOFT_MAX_EXT
from minillama.kernels.registry import BACKENDS, kernel_set

DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.uint16], ids=["f32", "f16"])
BACKEND = pytest.mark.parametrize("backend", BACKENDS)
NO_SINKS = np.zeros(0, np.float32)
NO_CAP = np.float32(0)


def case_of(*lengths, **options):
    sizes = {"n_head": 4, "n_head_kv": 2, "head_dim": 12, "value_dim": 20, **options}
    return attention_case(generator("window", lengths), lengths, **sizes)


def run(case, backend, dtype, window, cap=NO_CAP, sinks=NO_SINKS, items=None):
    kernels, kind = kernel_set(backend), np.dtype(dtype)
    keys, values = case.cache(kernels, kind)
    out = np.full((len(case.q), case.n_head * case.value_dim), 12345.0, np.float32)
    n_bytes = kernels.attention_window_scratch(BLOCK * case.table.shape[1], case.head_dim, case.value_dim)
    scratch = np.full(n_bytes, 0xA5, np.uint8)
    place = case.table, case.sequence, case.position, case.n_head, case.scale
    start, stop = items or (0, kernels.attention_window_items(len(case.q), case.n_head))
    kernels.attention_window[kind](case.q, keys, values, *place, window, cap, sinks, out, scratch, start, stop)
    return out


def in_order(terms):
    """Double sums, in order, of float32 products along the last axis, rounded once."""
    assert terms.dtype == np.float32
    return np.add.accumulate(terms.astype(np.float64), axis=-1)[..., -1].astype(np.float32)


def rounded(x, dtype):
    return x if dtype == np.float32 else x.astype(np.float16).astype(np.float32)


def composed(case, dtype, window, cap, sinks):
    """Ggml's graph: scores of all positions, the cap, a softmax with a mask, rows padded as llama.cpp pads them."""
    out = np.empty((len(case.q), case.n_head, case.value_dim), np.float32)
    for t, (s, p) in enumerate(zip(case.sequence, case.position, strict=True)):
        k, v = (rounded(part[s].reshape(len(part[s]), case.n_head_kv, -1), dtype) for part in (case.k, case.v))
        n = len(k)
        seen = (np.arange(n) <= p) & ((np.arange(n) > p - window) if window else True)
        mask = np.full((1, -(-n // 4) * 4), -np.inf, np.float32)
        mask[0, :n] = np.where(seen, 0, -np.inf)
        for head in range(case.n_head):
            group = head // (case.n_head // case.n_head_kv)
            q = rounded(case.q[t].reshape(case.n_head, -1)[head], dtype)
            scores = np.zeros((1, 1, mask.shape[1]), np.float32)
            scores[0, :, :n] = in_order(k[:, group] * q)
            if cap:
                elementwise.softcap(scores[0], cap, scores[0], 0, 1)
            weights = np.empty_like(scores)
            sink = sinks[head : head + 1]
            SOFT_MAX_EXT[np.dtype(np.float32)](scores, mask, sink, case.scale, np.float32(0), weights, 0, 1)
            out[t, head] = in_order(v[:, group].T * rounded(weights[0, 0, :n], dtype))
    return out.reshape(len(case.q), -1)


@BACKEND
@DTYPES
@pytest.mark.parametrize("lengths", [(1,), (5, 64, 67), (130, 7)])
def test_without_anything_special_it_is_attention(backend, dtype, lengths):
    case = case_of(*lengths)
    assert_same_bits(run(case, backend, dtype, 0), case.run(kernel_set(backend), dtype))


@BACKEND
@DTYPES
@pytest.mark.parametrize("window", [0, 1, 2, 3, 6, 63, 64, 65, 100, 1000])
@pytest.mark.parametrize("cap", [0, 1.5])
@pytest.mark.parametrize("has_sinks", [False, True])
def test_it_is_the_graph_with_a_mask(backend, dtype, window, cap, has_sinks):
    case = case_of(5, 66, 131)
    sinks = np.array([0.3, -5, 9, 0], np.float32) if has_sinks else NO_SINKS
    want = composed(case, dtype, window, np.float32(cap), sinks)
    assert_same_bits(run(case, backend, dtype, window, np.float32(cap), sinks), want)


@BACKEND
@DTYPES
def test_a_window_of_one_gives_the_tokens_own_value(backend, dtype):
    case = case_of(70)
    want = rounded(case.v[0].reshape(70, 2, -1)[case.position].repeat(2, axis=1), dtype)
    assert_same_bits(run(case, backend, dtype, 1), want.reshape(len(case.q), -1))


@BACKEND
def test_a_large_sink_takes_all_weight(backend):
    case = case_of(20)
    sinks = np.full(4, 1e4, np.float32)
    assert not run(case, backend, np.float32, 0, NO_CAP, sinks).any()


@BACKEND
@DTYPES
def test_heads_can_be_shared_out(backend, dtype):
    case = case_of(66, 9)
    whole = run(case, backend, dtype, 20, np.float32(2))
    n_items = kernel_set(backend).attention_window_items(len(case.q), case.n_head)
    parts = [run(case, backend, dtype, 20, np.float32(2), items=(i, i + 1)) for i in range(n_items)]
    written = [part != 12345.0 for part in parts]
    assert (np.sum(written, axis=0) == 1).all()
    for part, where in zip(parts, written, strict=True):
        assert_same_bits(part[where], whole[where])


@DTYPES
@pytest.mark.parametrize("window", [1, 5, 17, 63, 64, 70, 200])
@pytest.mark.parametrize("special", ["window", "cap", "sinks"])
def test_prompts_of_both_backends(dtype, window, special):
    # Tiles whose windows begin in different blocks, beside single tokens of other sequences.
    positions = (*((0, p) for p in range(100, 150)), (1, 77), (2, 3), *((3, p) for p in range(10)), (2, 4))
    case = attention_case(
        generator("prompts", window), (160, 80, 70, 10), n_head=6, n_head_kv=2, head_dim=20, value_dim=36,
        positions=positions,
    )  # fmt: skip
    sinks = np.array([0.3, -5, 9, 0, 1e30, -np.inf], np.float32) if special == "sinks" else NO_SINKS
    arguments = window, np.float32(1.5 if special == "cap" else 0), sinks
    assert_same_bits(run(case, "cpu", dtype, *arguments), run(case, "reference", dtype, *arguments))
