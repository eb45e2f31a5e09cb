"""Attention over the block cache: against float64, and what holds exactly."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from kernel_inputs import assert_same_bits, attention_case, generator

from minillama.kernels.reference.attention import BLOCK, soft_max
from minillama.kernels.reference.libm import exp_lane
from minillama.kernels.registry import BACKENDS, kernel_set

DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.uint16], ids=["f32", "f16"])
BACKEND = pytest.mark.parametrize("backend", BACKENDS)
HALF_ULP = 2.0**-24


def oracle(case):
    """The textbook formula in float64, a token and a head at a time."""
    out = np.empty((len(case.q), case.n_head, case.value_dim))
    for t, (s, p) in enumerate(zip(case.sequence, case.position, strict=True)):
        k = case.k[s][: p + 1].reshape(p + 1, case.n_head_kv, case.head_dim).astype(np.float64)
        v = case.v[s][: p + 1].reshape(p + 1, case.n_head_kv, case.value_dim).astype(np.float64)
        for head in range(case.n_head):
            group = head // (case.n_head // case.n_head_kv)
            scores = k[:, group] @ case.q[t].reshape(case.n_head, -1)[head] * np.float64(case.scale)
            weights = np.exp(scores - scores.max())
            out[t, head] = weights / weights.sum() @ v[:, group]
    return out.reshape(len(case.q), -1)


def largest(arrays):
    return max(float(np.abs(a).max()) for a in arrays)


def error_bound(case, dtype):
    """Absolute bound from the roundings.

    Scores dominate, as the exponential turns an absolute error into a relative one. A score is a double sum of float32
    products: head_dim half ulps of |q||k|; rounding, scale and difference are three more of its size. A cache of halves
    rounds q, k and v (and the weights) at 2^-11 instead.
    """
    unit = HALF_ULP if dtype == np.float32 else 2.0**-11
    score = case.head_dim * np.abs(case.q).max() * largest(case.k) * float(case.scale)
    relative = 2 * score * (2 if dtype == np.uint16 else 1) * unit + 3 * score * HALF_ULP + 8 * unit
    return relative * largest(case.v)


@BACKEND
@DTYPES
@pytest.mark.parametrize(("lengths", "spread"), [((1,), 1.0), ((5, 64, 65), 1.0), ((130, 7), 3.0)])
def test_against_double(backend, dtype, lengths, spread):
    case = attention_case(generator(lengths), lengths, n_head=4, n_head_kv=2, head_dim=16, value_dim=24, spread=spread)
    got = case.run(kernel_set(backend), dtype)
    assert np.abs(got - oracle(case)).max() <= error_bound(case, dtype)


@BACKEND
@DTYPES
def test_a_single_position_gives_its_value(backend, dtype):
    # One position has weight exactly 1.
    case = attention_case(generator("one"), (1,), n_head=2, n_head_kv=1)
    want = case.v[0] if dtype == np.float32 else case.v[0].astype(np.float16).astype(np.float32)
    assert_same_bits(case.run(kernel_set(backend), dtype), np.tile(want, 2))


@BACKEND
@DTYPES
def test_later_positions_change_nothing(backend, dtype):
    positions = ((0, 0), (0, 40), (0, 63), (0, 64), (0, 100))
    case = attention_case(generator("causal"), (150,), positions=positions)
    alone = case.run(kernel_set(backend), dtype)
    k, v = case.k[0].copy(), case.v[0].copy()
    k[101:], v[101:] = 1e30, -np.inf
    assert_same_bits(replace(case, k=[k], v=[v]).run(kernel_set(backend), dtype), alone)
    k, v = case.k[0].copy(), case.v[0].copy()
    k[64:] *= -3
    changed = replace(case, k=[k], v=[v]).run(kernel_set(backend), dtype)
    assert_same_bits(changed[:3], alone[:3])
    assert (changed[3:] != alone[3:]).any(axis=1).all()


@BACKEND
@DTYPES
@pytest.mark.parametrize(("n_head", "n_head_kv"), [(4, 4), (4, 2), (6, 2), (9, 3), (5, 1)])
def test_query_heads_share_kv_heads_in_order(backend, dtype, n_head, n_head_kv):
    # Field failure 73: with values that name their kv head, query head h must answer with h // group.
    case = attention_case(generator("gqa"), (70,), n_head=n_head, n_head_kv=n_head_kv)
    named = np.repeat(np.arange(1.0, n_head_kv + 1, dtype=np.float32), case.value_dim)
    case = replace(case, v=[np.tile(named, (70, 1))])
    got = case.run(kernel_set(backend), dtype).reshape(n_head, -1)
    want = np.arange(n_head) // (n_head // n_head_kv) + 1.0
    # Weights sum to 1 but for their roundings, to float32 or to half.
    tolerance = 70 * (HALF_ULP if dtype == np.float32 else 2.0**-11) / 10
    np.testing.assert_allclose(got, np.tile(want[:, None], case.value_dim), rtol=tolerance)


@BACKEND
@DTYPES
def test_a_query_attends_with_its_own_kv_head(backend, dtype):
    # Keys of one kv head are changed: only the query heads of its group may notice.
    case = attention_case(generator("keys"), (40,), n_head=6, n_head_kv=3)
    before = case.run(kernel_set(backend), dtype).reshape(6, -1)
    k = case.k[0].copy()
    k[:, 16:32] += 1
    k[7, 16:32] -= 3
    after = replace(case, k=[k]).run(kernel_set(backend), dtype).reshape(6, -1)
    assert (before != after).any(axis=1).tolist() == [False, False, True, True, False, False]


@BACKEND
@DTYPES
def test_sequences_and_tables_do_not_matter(backend, dtype):
    # Whatever blocks hold a sequence and whatever else is in the batch, a token's result is the same.
    kernels = kernel_set(backend)
    case = attention_case(generator("batch"), (130, 3, 65), positions=((0, 129), (1, 2), (0, 64), (2, 64), (2, 0)))
    whole = case.run(kernels, dtype)
    for t, (s, p) in enumerate(zip(case.sequence, case.position, strict=True)):
        alone = replace(
            case, q=case.q[t : t + 1], k=[case.k[s]], v=[case.v[s]], table=np.arange(3)[None],
            sequence=np.array([0]), position=np.array([p]),
        )  # fmt: skip
        assert_same_bits(alone.run(kernels, dtype), whole[t : t + 1], f"token {t}")


@BACKEND
@DTYPES
@pytest.mark.parametrize("n_tokens", [2, 40])
def test_items_can_be_shared_out(backend, dtype, n_tokens):
    # Wherever a range begins and ends, it writes the results of its items and nothing else.
    kernels = kernel_set(backend)
    positions = tuple((t // 23 % 2, 2 * t % 70) for t in range(n_tokens))
    case = attention_case(generator("share"), (70, 70), n_head=6, n_head_kv=2, positions=positions)
    whole, n_items = case.run(kernels, dtype), kernels.attention_items(n_tokens, 6)
    for n_parts in (2, 3, n_items):
        bounds = [n_items * i // n_parts for i in range(n_parts + 1)]
        written = np.zeros(whole.shape, int)
        for items in pairwise(bounds):
            part = case.run(kernels, dtype, items=items)
            assert_same_bits(np.where(part == 12345.0, whole, part), whole, items)
            written += part != 12345.0
        assert (written == 1).all()


@DTYPES
def test_store_kv_writes_each_position_to_its_slot(dtype):
    case = attention_case(generator("store"), (70, 5), n_head_kv=2, head_dim=3, value_dim=4)
    keys, values = case.cache(kernel_set("reference"), np.dtype(dtype))

    def stored(x):
        return x if dtype == np.float32 else x.astype(np.float16).view(np.uint16)

    for s, length in enumerate((70, 5)):
        for p in range(length):
            block, slot = case.table[s, p // BLOCK], p % BLOCK
            np.testing.assert_array_equal(keys[block, :, :, slot].reshape(-1), stored(case.k[s][p]))
            np.testing.assert_array_equal(values[block, :, slot].reshape(-1), stored(case.v[s][p]))
    unused = keys.size + values.size - 75 * 2 * (3 + 4)
    nothing = np.isnan if dtype == np.float32 else (lambda x: x == 0x7E00)
    assert nothing(keys).sum() + nothing(values).sum() == unused


def soft_max_of(scores, scale=1.0):
    padded = np.full(BLOCK * (-(-len(scores) // BLOCK)), np.nan, np.float32)
    padded[: len(scores)] = scores
    soft_max(padded, len(scores), np.float32(scale))
    assert np.isnan(padded[len(scores) :]).all()
    return padded[: len(scores)]


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 63, 64, 65, 1000])
def test_soft_max_against_double(n):
    scores = (generator("soft_max", n).standard_normal(n) * 8).astype(np.float32)
    scaled = scores.astype(np.float64) * 0.25
    want = np.exp(scaled - scaled.max())
    want /= want.sum()
    # Scores are below 10 in magnitude: product and difference leave 10 + 20 half ulps in the exponent; the exponential
    # is within 4 half ulps, as are its sums of four; then the inverse and the product.
    got = soft_max_of(scores, 0.25)
    np.testing.assert_allclose(got, want, rtol=(30 + 4 + 4 + 3) * HALF_ULP)
    assert abs(got.sum(dtype=np.float64) - 1) <= 12 * HALF_ULP


def test_soft_max_of_equal_scores_is_exact():
    for n in (1, 2, 4, 8, 64):
        assert soft_max_of(np.full(n, 3.3)).tolist() == [1 / n] * n
    assert_same_bits(soft_max_of(np.full(3, -1e30)), np.full(3, np.float32(1.0 / 3)))


def test_soft_max_survives_large_scores():
    assert soft_max_of(np.array([1e38, -1e38, 1e38])).tolist() == [0.5, 0, 0.5]
    assert soft_max_of(np.array([0, -200, -np.inf])).tolist() == [1, 0, 0]


def test_soft_max_sums_in_double():
    # A first exponential of 1 and 2^20 of 2^-28 (nearly): in float32 every four of them would be lost.
    scores = np.full(1 + (1 << 20), np.log(2.0**-28), np.float32)
    scores[0] = 0
    # The logarithm is rounded, which changes an exponential by 1e-6 of itself and their sum of 2^-8 by 4e-9.
    assert soft_max_of(scores)[0] == pytest.approx(1 / (1 + 2.0**-8), rel=2 * HALF_ULP)


@pytest.mark.parametrize("n", [1, 3, 4, 6, 65, 1000])
def test_soft_max_to_the_bit(n):
    # The order of the sum: (e0 + e1) + (e2 + e3) in float32, and the fours one after the other in double.
    scores = (generator("order", n).standard_normal((50, n)) * 8).astype(np.float32)
    for row in scores:
        scaled = row * np.float32(0.25)
        e = np.array([exp_lane(x) for x in scaled - scaled.max()], np.float32)
        fours = np.pad(e, (0, -n % 4)).reshape(-1, 4)
        sums = (fours[:, 0] + fours[:, 1]) + (fours[:, 2] + fours[:, 3])
        total = np.add.accumulate(sums.astype(np.float64))[-1]
        assert_same_bits(soft_max_of(row, 0.25), e * np.float32(1 / total))
