"""Rotary embedding: worked by hand, against float64, and what holds exactly."""

import numpy as np
import pytest
from kernel_inputs import assert_same_bits, generator, input_rows

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
