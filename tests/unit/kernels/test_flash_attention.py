"""Flash attention in both orders: against float64, and what holds exactly."""

import numpy as np
import oracles
import pytest
from kernel_inputs import assert_same_bits, generator

from minillama.kernels.reference.flash_attention import FLASH_ATTENTION, TILE

DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.uint16], ids=["f32", "f16"])
TOKENS = pytest.mark.parametrize("n_tokens", [3, TILE], ids=["by_position", "by_tile"])
NONE = np.empty(0, np.float32)


def arrays(n_tokens, n, n_head=4, n_head_kv=2, head_dim=16, value_dim=12):
    rng = generator("flash", n_tokens, n, n_head)
    shapes = (n_head, n_tokens, head_dim), (n_head_kv, n, head_dim), (n_head_kv, n, value_dim)
    # Values that are halves: what a cache of halves rounds away is not in question here.
    return [rng.standard_normal(shape).astype(np.float16).astype(np.float32) for shape in shapes]


def causal(n_tokens, n):
    last = n - n_tokens if n > n_tokens else 0
    return np.where(np.arange(n)[None] <= np.arange(n_tokens)[:, None] + last, 0, -np.inf).astype(np.float32)


def run(q, k, v, mask=None, sinks=NONE, max_bias=0.0, cap=0.0, dtype=np.float32, rows=None):
    if dtype == np.uint16:
        k, v = (x.astype(np.float16).view(np.uint16) for x in (k, v))
    bits = np.empty((0, 0), np.uint16) if mask is None else mask.astype(np.float16).view(np.uint16)
    out = np.full((q.shape[1], len(q), v.shape[2]), 12345.0, np.float32)
    numbers = (np.float32(x) for x in (0.25, max_bias, cap))
    start, stop = rows or (0, len(q) * q.shape[1])
    FLASH_ATTENTION[np.dtype(dtype)](q, k, v, bits, sinks, *numbers, out, start, stop)
    return out


@DTYPES
@TOKENS
@pytest.mark.parametrize("n", [1, 63, 64, 65, 200])
@pytest.mark.parametrize("option", [{}, {"cap": 5.0}, {"sinks": True}, {"max_bias": 8.0}])
def test_against_double(dtype, n_tokens, n, option):
    q, k, v = arrays(n_tokens, n)
    options = {**option, "sinks": generator("sinks").standard_normal(4).astype(np.float32)} if option else {}
    if "sinks" not in option:
        options["sinks"] = NONE
    mask = causal(n_tokens, n)
    want = oracles.attention(
        q, k, v, mask, options["sinks"], 0.25, options.get("max_bias", 0.0), options.get("cap", 0.0)
    )
    # Scores are sums of 16 products below 20, their errors 16 * 20 half ulps and relative in the result, of values
    # below 5; the running sum adds a half ulp a position. By position a cache of halves keeps the sum in half.
    bound = 5 * (16 * 20 + n) * 2.0**-24
    if dtype == np.uint16 and n_tokens < TILE:
        bound += 5 * n * 2.0**-11
    assert np.abs(run(q, k, v, mask, dtype=dtype, **options) - want).max() <= bound


@DTYPES
@TOKENS
def test_a_single_position_gives_its_value(dtype, n_tokens):
    q, k, v = arrays(n_tokens, 1)
    want = np.broadcast_to(np.repeat(v, 2, 0)[:, 0], (n_tokens, 4, 12))
    assert_same_bits(run(q, k, v, dtype=dtype), np.ascontiguousarray(want))


@DTYPES
@TOKENS
@pytest.mark.parametrize(("n_head", "n_head_kv"), [(4, 2), (6, 2), (5, 1), (3, 3)])
def test_query_heads_share_kv_heads_in_order(dtype, n_tokens, n_head, n_head_kv):
    # Field failure 73: query head h answers with kv head h // group; values name their head.
    q, k, v = arrays(n_tokens, 70, n_head, n_head_kv)
    v[:] = np.arange(1, n_head_kv + 1)[:, None, None]
    got = run(q, k, v, dtype=dtype)
    want = np.arange(n_head) // (n_head // n_head_kv) + 1.0
    # Weights sum to 1 but for the roundings of the sums, in half for a cache of halves.
    np.testing.assert_allclose(got, np.broadcast_to(want[:, None], got.shape), rtol=70 * 2.0**-11)


@DTYPES
@TOKENS
def test_masked_positions_change_nothing(dtype, n_tokens):
    q, k, v = arrays(n_tokens, 140)
    mask = np.zeros((n_tokens, 140), np.float32)
    mask[:, 100:] = -np.inf
    alone = run(q, k, v, mask, dtype=dtype)
    k[:, 100:], v[:, 100:] = 1e4, -3e4
    assert_same_bits(run(q, k, v, mask, dtype=dtype), alone)
    k, v = np.ascontiguousarray(k[:, :100]), np.ascontiguousarray(v[:, :100])
    assert_same_bits(run(q, k, v, dtype=dtype), alone)


@DTYPES
@TOKENS
def test_all_masked_gives_zero(dtype, n_tokens):
    q, k, v = arrays(n_tokens, 70)
    got = run(q, k, v, np.full((n_tokens, 70), -np.inf, np.float32), dtype=dtype)
    assert_same_bits(got, np.zeros_like(got))


@DTYPES
def test_the_two_orders_agree_but_not_in_bits(dtype):
    # 63 queries are computed by position and 64 by tile: llama.cpp's result depends on how many come together.
    q, k, v = arrays(TILE, 130)
    tiled = run(q, k, v, dtype=dtype)
    single = run(np.ascontiguousarray(q[:, :63]), k, v, dtype=dtype)
    tolerance = 1e-5 if dtype == np.float32 else 130 * 2.0**-11
    np.testing.assert_allclose(tiled[:63], single, atol=tolerance)
    assert (tiled[:63] != single).any()


@DTYPES
@TOKENS
def test_only_the_asked_for_rows_are_written(dtype, n_tokens):
    q, k, v = arrays(n_tokens, 30)
    whole, part = run(q, k, v, dtype=dtype), run(q, k, v, dtype=dtype, rows=(2, n_tokens + 1))
    written = np.zeros((n_tokens, 4), bool)
    for row in range(2, n_tokens + 1):
        written[row % n_tokens, row // n_tokens] = True
    assert_same_bits(part[written], whole[written])
    assert (part[~written] == 12345.0).all()
