"""Rotary embedding: worked by hand, against float64, and what holds exactly."""

import numpy as np
import oracles
import pytest
from kernel_inputs import assert_same_bits, generator, input_rows

from minillama.kernels.reference.rope import rope_table_yarn, yarn_range
from minillama.kernels.registry import kernel_set

KERNELS = kernel_set("reference")
KINDS = pytest.mark.parametrize("kind", ["rope_norm", "rope_neox"])
HALF_ULP = 2.0**-24


def table_of(positions, n_rot, base=10000.0, freq_scale=1.0, factors=None):
    factors = np.ones(n_rot // 2, np.float32) if factors is None else np.asarray(factors, np.float32)
    out = np.full((len(positions), n_rot // 2, 2), 12345.0, np.float32)
    scale = np.float32(base ** (-2 / n_rot))
    KERNELS.rope_table(np.asarray(positions), scale, np.float32(freq_scale), factors, out, 0, len(positions))
    return out


def rotate(kind, x, table, n_head):
    out = np.full_like(x, 12345.0)
    getattr(KERNELS, kind)(x, table, n_head, out, 0, len(x))
    return out


def quarter_turns(n_pairs):
    """A table of quarter turns by 1, 2, ...: cosine and sine are exact."""
    cos, sin = [0, -1, 0, 1], [1, 0, -1, 0]
    return np.array([[(cos[i % 4], sin[i % 4]) for i in range(n_pairs)]], np.float32)


def test_norm_pairs_neighbours_by_hand():
    # Pair (1, 2) a quarter turn: (-2, 1). Pair (3, 4) half a turn: (-3, -4). 5 and 6 are past n_rot.
    x = np.array([[1, 2, 3, 4, 5, 6]], np.float32)
    assert rotate("rope_norm", x, quarter_turns(2), 1).tolist() == [[-2, 1, -3, -4, 5, 6]]


def test_neox_pairs_halves_by_hand():
    # Pairs (1, 3) a quarter turn: (-3, 1), and (2, 4) half a turn: (-2, -4). 5 and 6 are past n_rot.
    x = np.array([[1, 2, 3, 4, 5, 6]], np.float32)
    assert rotate("rope_neox", x, quarter_turns(2), 1).tolist() == [[-3, -2, 1, -4, 5, 6]]


@KINDS
def test_every_head_is_rotated_alike(kind):
    head = np.array([[1, 2, 3, 4, 5, 6]], np.float32)
    one = rotate(kind, head, quarter_turns(2), 1)
    assert_same_bits(rotate(kind, np.tile(head, 3), quarter_turns(2), 3), np.tile(one, 3))


def test_the_two_pairings_are_one_rotation_of_permuted_values():
    x, table = input_rows("normal", 4, 16, generator("x")), table_of([0, 1, 5, 900], 16)
    halves = np.arange(16).reshape(2, 8).T.reshape(-1)  # 0, 8, 1, 9, ...: neox's pairs laid side by side
    assert_same_bits(rotate("rope_neox", x, table, 1)[:, halves], rotate("rope_norm", x[:, halves], table, 1))


@KINDS
def test_position_0_changes_nothing(kind):
    x = input_rows("heavy", 2, 64, generator(kind))
    assert_same_bits(rotate(kind, x, table_of([0, 0], 32), 2), x)


@KINDS
@pytest.mark.parametrize("n_rot", [2, 8, 30, 32])
def test_values_past_n_rot_are_copied(kind, n_rot):
    x = input_rows("normal", 3, 64, generator(kind))
    got = rotate(kind, x, table_of([3, 4, 5], n_rot), 2).reshape(3, 2, 32)
    assert_same_bits(got[:, :, n_rot:], x.reshape(3, 2, 32)[:, :, n_rot:])
    assert (got[:, :, :n_rot] != x.reshape(3, 2, 32)[:, :, :n_rot]).all()


@KINDS
def test_against_double(kind):
    x, positions = input_rows("normal", 5, 64, generator(kind)), [0, 1, 7, 100, 2000]
    table = table_of(positions, 64)
    cos, sin = table[:, :, 0].astype(np.float64), table[:, :, 1].astype(np.float64)
    first, second = (
        (np.arange(32), np.arange(32) + 32) if kind == "rope_neox" else (np.arange(32) * 2, np.arange(32) * 2 + 1)
    )
    want = np.empty(x.shape)
    want[:, first] = x[:, first] * cos - x[:, second] * sin
    want[:, second] = x[:, first] * sin + x[:, second] * cos
    # Two products and a sum, each rounded; absolute since the sum may cancel: |products| < 5 and their sum < 8.
    np.testing.assert_allclose(rotate(kind, x, table, 1), want, rtol=0, atol=(5 + 5 + 8) * HALF_ULP)


def test_angles_against_double():
    positions = [0, 1, 2, 119, 120, 121, 4096, 131072]
    table = table_of(positions, 64, base=500000.0)
    ratio = np.float64(np.float32(500000.0 ** (-2 / 64)))
    angles = np.array(positions)[:, None] * ratio ** np.arange(32)
    # The angle of pair i has been rounded i times, so that its error grows with the angle; the function adds an ulp.
    bound = angles * np.arange(32) * HALF_ULP + 2 * HALF_ULP
    assert (np.abs(table[:, :, 0] - np.cos(angles)) <= bound).all()
    assert (np.abs(table[:, :, 1] - np.sin(angles)) <= bound).all()


def test_the_first_pairs_angle_is_the_position():
    table = table_of([1, 3], 8)
    want = np.array([[np.cos(1), np.sin(1)], [np.cos(3), np.sin(3)]]).astype(np.float32)
    np.testing.assert_array_max_ulp(table[:, 0], want, 1)  # the C library's functions are within an ulp


def test_linear_scaling_scales_the_angle():
    # Field failure 71: positions times 0.25 and no ramp. 4 * p at scale 0.25 is p at scale 1, exactly: powers of two.
    assert_same_bits(table_of([4, 8, 400], 16, freq_scale=0.25), table_of([1, 2, 100], 16))


def test_frequency_factors_divide_their_pairs_angle():
    factors = np.array([1, 2, 4, 32])
    got, plain = table_of([64], 8, factors=factors), [table_of([64 // f], 8) for f in factors]
    for pair in range(4):
        assert_same_bits(got[:, pair], plain[pair][:, pair])


def test_tokens_do_not_see_each_other():
    positions = [5, 0, 77, 5, 3000]
    table = table_of(positions, 32)
    for t, position in enumerate(positions):
        assert_same_bits(table[t : t + 1], table_of([position], 32))


def test_only_the_asked_for_rows_are_written():
    positions, x = np.arange(5), input_rows("normal", 5, 32, generator("x"))
    whole = table_of(positions, 16)
    table, out = np.full_like(whole, 12345.0), np.full_like(x, 12345.0)
    KERNELS.rope_table(positions, np.float32(10000.0 ** (-2 / 16)), np.float32(1), np.ones(8, np.float32), table, 1, 3)
    KERNELS.rope_neox(x, whole, 2, out, 1, 3)
    assert_same_bits(table[1:3], whole[1:3])
    assert_same_bits(out[1:3], rotate("rope_neox", x, whole, 2)[1:3])
    assert (table[[0, 3, 4]] == 12345.0).all()
    assert (out[[0, 3, 4]] == 12345.0).all()


def yarn_table(positions, n_rot, freq_scale, ext=1.0, attn=1.0, n_ctx_orig=4096, base=10000.0, factors=None):
    f = np.float32
    factors = np.ones(n_rot // 2, np.float32) if factors is None else np.asarray(factors, np.float32)
    first, last = yarn_range(n_rot, n_ctx_orig, f(base), f(32), f(1))
    out = np.full((len(positions), n_rot // 2, 2), 12345.0, np.float32)
    rope_table_yarn(
        np.asarray(positions), f(base ** (-2 / n_rot)), f(freq_scale), factors, f(ext), f(attn), first, last,
        out, 0, len(positions),
    )  # fmt: skip
    return out


@pytest.mark.parametrize("freq_scale", [1.0, 0.25, 1 / 3])
def test_without_yarn_the_tables_are_one(freq_scale):
    # Field failure 71: linear scaling is positions times the scale; no ramp and no factor of attention.
    positions, factors = [0, 1, 7, 1000, 100_000], generator("factors").uniform(1, 40, 32)
    want = table_of(positions, 64, freq_scale=freq_scale, factors=factors)
    assert_same_bits(yarn_table(positions, 64, freq_scale, ext=0.0, factors=factors), want)


def test_yarns_range_by_hand():
    # Pair i turns 4096 / (2 pi) / 10000^(2i / 128) times: 32 turns at i = 20.94, one at 45.03; of 128 values.
    assert yarn_range(128, 4096, np.float32(1e4), np.float32(32), np.float32(1)) == (20, 46)
    # A short context: the range starts with the first pair. A small base: it ends with the last value.
    assert yarn_range(8, 16, np.float32(1e4), np.float32(32), np.float32(1)) == (0, 1)
    assert yarn_range(8, 10**9, np.float32(10), np.float32(32), np.float32(1)) == (26, 7)


def test_yarn_keeps_fast_pairs_and_interpolates_slow_ones():
    # With an attention factor that cancels YaRN's own, only the angles are left: those of pairs up to 20 are kept,
    # from 46 on they are scaled, between they lie between.
    size = np.float32(1 + 0.1 * np.log(8.0))
    got = yarn_table([100], 128, 1 / 8, attn=1 / size)[0]
    plain, scaled = table_of([100], 128)[0], table_of([100], 128, freq_scale=1 / 8)[0]
    np.testing.assert_allclose(got[:21], plain[:21], atol=4 * HALF_ULP)
    np.testing.assert_allclose(got[46:], scaled[46:], atol=4 * HALF_ULP)
    angles = [np.arctan2(t[21:46, 1], t[21:46, 0]) for t in (scaled, got, plain)]
    assert (np.diff(angles, axis=0)[:, 5:] > 0).all()  # below pair 26 the plain angle is more than half a turn


def test_the_attention_factor_is_honoured():
    # Field failure 70: at factor 64 YaRN's own is 1 + 0.1 ln 64 = 1.4159; an explicit 1.0, divided by it, must give 1.
    own = np.float32(1 + 0.1 * np.log(64.0))
    assert yarn_table([0], 64, 1 / 64)[0, 0].tolist() == pytest.approx([1.4159, 0], abs=1e-4)
    assert yarn_table([0], 64, 1 / 64, attn=1 / own)[0, 0].tolist() == pytest.approx([1, 0], abs=2 * HALF_ULP)
    # Without YaRN (LongRoPE) it is the whole factor.
    assert yarn_table([0], 64, 1.0, ext=0.0, attn=1.19)[0, 0].tolist() == [np.float32(1.19), 0]


def llama3_factors(n_rot=64, base=500000.0, factor=32.0, low=1.0, high=4.0, n_ctx_orig=8192):
    """The published rule: wavelengths below ctx / high keep, above ctx / low are divided, between they blend."""
    frequency = base ** (-np.arange(0, n_rot, 2) / n_rot)
    wavelength = 2 * np.pi / frequency
    smooth = (n_ctx_orig / wavelength - low) / (high - low)
    blended = 1 / ((1 - smooth) / factor + smooth)
    kept, divided = wavelength < n_ctx_orig / high, wavelength > n_ctx_orig / low
    return np.where(kept, 1.0, np.where(divided, factor, blended))


def test_frequency_factors_of_llama_3():
    # Field failure 66: of head 64, base 500000, factor 32, pairs 0 to 14 are the same, 15 to 17 blended, 18 to 31
    # divided by 32, which is exact.
    factors, positions = llama3_factors(), [1, 100, 8191]
    assert (factors[:15] == 1).all()
    assert ((factors[15:18] > 1) & (factors[15:18] < 32)).all()
    assert (factors[18:] == 32).all()
    got = table_of(positions, 64, base=500000.0, factors=factors)
    plain, divided = (table_of(positions, 64, base=500000.0, freq_scale=s) for s in (1.0, 1 / 32))
    assert_same_bits(got[:, :15], plain[:, :15])
    assert_same_bits(got[:, 18:], divided[:, 18:])
    assert (got[1:, 15:18] != plain[1:, 15:18]).any(axis=2).all()
    assert (got[1:, 15:18] != divided[1:, 15:18]).any(axis=2).all()


def permuted(weight, n_head):
    """Rows of a projection reordered from halves to neighbours, head by head, as converters do for rope_norm."""
    n = len(weight) // n_head
    return weight.reshape(n_head, 2, n // 2, -1).swapaxes(1, 2).reshape(weight.shape)


def test_permuted_projections_use_their_own_head_count():
    # Field failure 67: 4 query heads, 2 kv heads, head 4. A permuted key projection rotated by neighbours is the
    # plain one rotated by halves, permuted; with the query's head count it is not.
    rng = generator("permute")
    x = rng.integers(-3, 4, (5, 6)).astype(np.float32)
    table = table_of([0, 1, 2, 50, 900], 4)
    for n_head in (4, 2):
        weight = rng.integers(-3, 4, (4 * n_head, 6)).astype(np.float32)
        plain = rotate("rope_neox", x @ weight.T, table, n_head)
        got = rotate("rope_norm", x @ permuted(weight, n_head).T, table, n_head)
        assert_same_bits(got, np.ascontiguousarray(permuted(plain.T, n_head).T))
    wrong = rotate("rope_norm", x @ permuted(weight, 4).T, table, 2)
    assert (wrong != permuted(plain.T, 2).T).any()


@pytest.mark.parametrize("mode", ["norm", "neox"])
@pytest.mark.parametrize(("freq_scale", "ext", "attn"), [(1.0, 0.0, 1.0), (0.25, 0.0, 1.3), (1 / 32, 1.0, 1.0)])
def test_the_whole_operation_against_double(mode, freq_scale, ext, attn):
    x, positions = input_rows("normal", 4, 2 * 70, generator("whole")), np.array([0, 1, 7, 100])
    table = yarn_table(positions, 64, freq_scale, ext, attn)
    got = rotate(f"rope_{mode}", x, table, 2).reshape(4, 2, 70)
    want = oracles.rope(x.reshape(4, 2, 70), positions, mode, 64, None, 4096, 10000.0, freq_scale, ext, attn, 32.0, 1.0)
    # An angle below 100 was multiplied up in up to 31 roundings of 2^-24, its ratio of a whole ulp each; values are
    # below 4 and the factor below 1.4.
    np.testing.assert_allclose(got, want, atol=2 * 4 * 1.4 * 100 * 3 * 31 * HALF_ULP)
    assert np.abs(got[:2] - want[:2]).max() <= 2 * 4 * 1.4 * 3 * 31 * HALF_ULP
