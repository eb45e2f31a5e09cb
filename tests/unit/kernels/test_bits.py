"""Half, bfloat16 and rounding helpers: every bit pattern where there are 65536, all boundaries where there are more."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_inputs import assert_same_bits
from numba import njit

from minillama.kernels import bits
from minillama.kernels.bits import (
    bfloat_to_float,
    float_to_bfloat,
    float_to_half,
    half_to_float,
    load_f32,
    load_u16,
    load_u32,
    nearest_int,
    round_half_away,
    store_f32,
    store_u16,
)

ALL_16_BITS = np.arange(65536, dtype=np.uint32)
KERNELS = sorted(name for name, value in vars(bits).items() if hasattr(value, "py_func"))


def over(kernel, values, dtype):
    """The kernel applied to every value, in one compiled loop."""

    @njit
    def loop(values, out):
        for i in range(len(values)):
            out[i] = kernel(values[i])

    out = np.empty(len(values), dtype)
    loop(values, out)
    return out


def boundary_floats():
    """Every sign and exponent with mantissas at, just below and just above every place where rounding can turn."""
    # 13 bits go on the way to a normal half, up to 24 to a subnormal one, 16 to a bfloat16.
    mantissas = {0, 1, 0x7FFFFF}
    for place in range(23):
        for pattern in (1 << place, (1 << place) - 1, 3 << place, (1 << place) | 0x400000, 0x7FFFFF ^ (1 << place)):
            mantissas.update(m & 0x7FFFFF for m in (pattern - 1, pattern, pattern + 1))
    tails = np.array(sorted(mantissas), np.uint32)
    heads = np.arange(512, dtype=np.uint32) << np.uint32(23)
    return (heads[:, None] | tails[None, :]).reshape(-1).view(np.float32)


def random_floats(count=1 << 20):
    return np.random.default_rng(5).integers(0, 2**32, count, np.uint64).astype(np.uint32).view(np.float32)


def expected_half_bits(values):
    with np.errstate(over="ignore"):
        expected = values.astype(np.float16).view(np.uint16).astype(np.uint32)
    sign = (values.view(np.uint32) >> 16) & 0x8000
    return np.where(np.isnan(values), sign | 0x7E00, expected)


def test_every_half_widens_to_numpys_float():
    expected = ALL_16_BITS.astype(np.uint16).view(np.float16).astype(np.float32)
    got = over(half_to_float, ALL_16_BITS, np.float32)
    np.testing.assert_array_equal(
        got[~np.isnan(expected)].view(np.uint32), expected[~np.isnan(expected)].view(np.uint32)
    )
    assert np.isnan(got[np.isnan(expected)]).all()


def test_a_nan_half_widens_to_a_quiet_nan_with_its_sign_and_payload():
    halves = ALL_16_BITS[(ALL_16_BITS & 0x7FFF) > 0x7C00]
    got = over(half_to_float, halves, np.float32).view(np.uint32)
    expected = (halves & 0x8000) << 16 | 0x7FC00000 | (halves & 0x3FF) << 13
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("values", [boundary_floats(), random_floats()], ids=["boundaries", "random"])
def test_floats_narrow_to_numpys_half(values):
    np.testing.assert_array_equal(over(float_to_half, values, np.uint32), expected_half_bits(values))


@pytest.mark.parametrize(
    ("value", "half"),
    [
        (65504.0, 0x7BFF),
        (65519.996, 0x7BFF),  # the last float32 below the tie
        (65520.0, 0x7C00),  # the tie between 65504 and 65536, whose even neighbour is infinity
        (-65520.0, 0xFC00),
        (1.0 + 2**-11, 0x3C00),  # a tie: to even, down
        (1.0 + 3 * 2**-11, 0x3C02),  # a tie: to even, up
        (2.0**-24, 0x0001),
        (2.0**-25, 0x0000),  # half of the smallest half: a tie, to even
        (2.0**-25 * (1 + 2**-23), 0x0001),
        (3 * 2.0**-25, 0x0002),
        (2.0**-14 - 2.0**-25, 0x0400),  # the largest subnormal and a half rounds into the normals
        (1e-45, 0x0000),
        (-1e-45, 0x8000),
        (-0.0, 0x8000),
        (math.inf, 0x7C00),
        (-math.inf, 0xFC00),
    ],
)
def test_narrowing_to_half_by_hand(value, half):
    assert float_to_half(np.float32(value)) == half


@pytest.mark.parametrize("pattern", [0x7F800001, 0x7FC00000, 0x7FFFFFFF, 0xFF800001, 0xFFC12345])
def test_any_nan_becomes_the_half_7e00_with_its_sign(pattern):
    value = np.uint32(pattern).view(np.float32)
    assert float_to_half(value) == (0xFE00 if pattern >> 31 else 0x7E00)


def test_every_bfloat_is_the_upper_half_of_its_float():
    got = over(bfloat_to_float, ALL_16_BITS, np.float32).view(np.uint32)
    np.testing.assert_array_equal(got, ALL_16_BITS << 16)


@pytest.mark.parametrize("values", [boundary_floats(), random_floats()], ids=["boundaries", "random"])
def test_floats_narrow_to_bfloat_with_ties_to_even(values):
    pattern = values.view(np.uint32).astype(np.int64)
    low, whole = pattern & 0xFFFF, pattern >> 16
    up = (low > 0x8000) | ((low == 0x8000) & (whole % 2 == 1))
    expected = np.where(np.isnan(values), whole | 0x40, whole + up)  # quiet, with the sign and the upper payload
    np.testing.assert_array_equal(over(float_to_bfloat, values, np.uint32), expected)


@pytest.mark.parametrize(
    ("pattern", "bfloat"),
    [
        (0x3F808000, 0x3F80),  # a tie: to even, down
        (0x3F818000, 0x3F82),  # a tie: to even, up
        (0x7F7F7FFF, 0x7F7F),
        (0x7F7F8000, 0x7F80),  # the largest bfloat and a half rounds to infinity
        (0x7F800000, 0x7F80),
        (0x7F800001, 0x7FC0),  # a NaN whose payload is in the lower half only must not become infinity
        (0xFF80FFFF, 0xFFC0),
        (0x80000000, 0x8000),
        (0x00008000, 0x0000),
        (0x00008001, 0x0001),
    ],
)
def test_narrowing_to_bfloat_by_hand(pattern, bfloat):
    assert float_to_bfloat(np.uint32(pattern).view(np.float32)) == bfloat


@pytest.mark.parametrize(
    ("value", "rounded"),
    [
        (0.5, 1), (-0.5, -1), (1.5, 2), (2.5, 3), (-2.5, -3), (126.5, 127),
        (0.49999997, 0), (-0.49999997, -0.0), (2.4999998, 2), (0.0, 0), (-0.0, -0.0),
        (8388607.5, 8388608), (8388609.0, 8388609), (1e30, 1e30), (-1e30, -1e30),
    ],
)  # fmt: skip
def test_round_half_away_by_hand(value, rounded):
    # 0.49999997 is where floor(x + 0.5) goes wrong: the sum rounds to 1.
    assert_same_bits(np.float32(round_half_away(np.float32(value))), np.float32(rounded))


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_round_half_away_is_exact(value):
    whole = math.floor(abs(value))
    expected = math.copysign(whole + (abs(value) - whole >= 0.5), value)  # both exact in double
    assert_same_bits(np.float32(round_half_away(np.float32(value))), np.float32(expected))


def test_nearest_int_rounds_ties_to_even_in_its_whole_range():
    values = np.concatenate(
        [
            np.arange(-512, 512, 0.25, np.float32),
            np.array([0.49999997, -0.49999997, 4194303, -4194303, 4194302.5, -4194302.5, 1e-45], np.float32),
            np.random.default_rng(1).uniform(-4194303, 4194303, 100_000).astype(np.float32),
        ]
    )
    np.testing.assert_array_equal(over(nearest_int, values, np.int32), np.rint(values).astype(np.int32))


def test_loads_are_little_endian_at_any_offset():
    data = np.arange(16, dtype=np.uint8) * np.uint8(17)
    for offset in range(12):
        raw = data[offset : offset + 4].tobytes()
        assert load_u16(data, offset) == int.from_bytes(raw[:2], "little")
        assert load_u32(data, offset) == int.from_bytes(raw, "little")
        assert_same_bits(np.float32(load_f32(data, offset)), np.frombuffer(raw, np.float32)[0])


@pytest.mark.parametrize("offset", [0, 1, 2, 3])
def test_stores_write_their_own_bytes_and_no_others(offset):
    data = np.full(8, 0x5A, np.uint8)
    store_u16(data, offset, np.uint32(0xBEEF))
    assert bytes(data[offset : offset + 2]) == b"\xef\xbe"
    store_f32(data, offset, np.float32(-1.5))
    assert bytes(data[offset : offset + 4]) == np.float32(-1.5).tobytes()
    assert (np.delete(data, range(offset, offset + 4)) == 0x5A).all()


PLAIN_ARGUMENTS = {
    "half_to_float": [(np.uint32(b),) for b in (*range(0, 65536, 97), 0x7C00, 0xFC00, 0x7C01, 0xFE00)],
    # Without signalling NaNs: a result that leaves compiled code as a Python float is made quiet on the way.
    "bfloat_to_float": [(np.uint32(b),) for b in range(0, 65536, 97) if not 0x7F80 < (b & 0x7FFF) < 0x7FC0],
    "float_to_half": [(v,) for v in boundary_floats()[::53]],
    "float_to_bfloat": [(v,) for v in boundary_floats()[::53]],
    "round_half_away": [(np.float32(v),) for v in (0.49999997, 0.5, 2.5, -2.5, -0.0, 1e30, 8388607.5, -126.5)],
    "nearest_int": [(np.float32(v),) for v in (0.5, 1.5, 2.5, -0.5, -2.5, 127.49, -127.0, 4194303, 0)],
    "load_u16": [(np.arange(250, 256, dtype=np.uint8), np.int64(i)) for i in range(4)],
    "load_u32": [(np.arange(250, 256, dtype=np.uint8), np.int64(i)) for i in range(3)],
    "load_f32": [(np.arange(250, 256, dtype=np.uint8), np.int64(i)) for i in range(3)],
    "store_u16": [(np.zeros(4, np.uint8), np.int64(i), np.uint32(0xFE01)) for i in range(3)],
    "store_f32": [(np.zeros(6, np.uint8), np.int64(i), np.float32(-1.2e-39)) for i in range(3)],
}


def as_bytes(value):
    """The bits of a result; compiled kernels hand back Python numbers, plain ones numpy scalars."""
    if isinstance(value, np.ndarray):
        return value.tobytes()
    return (
        None
        if value is None
        else np.asarray(value, np.float32 if isinstance(value, (float, np.floating)) else np.int64).tobytes()
    )


def copied(arguments):
    return [a.copy() for a in arguments] if isinstance(arguments[0], np.ndarray) else arguments


@pytest.mark.parametrize("name", KERNELS)
def test_plain_python_gives_the_compiled_bits(name):
    kernel = getattr(bits, name)
    for arguments in PLAIN_ARGUMENTS[name]:
        plain, compiled = copied(arguments), copied(arguments)
        assert as_bytes(kernel.py_func(*plain)) == as_bytes(kernel(*compiled)), arguments
        assert as_bytes(plain[0]) == as_bytes(compiled[0]), arguments  # what a store has written
