"""Float32 multiply-add: fused as plain Python and compiled, and separate."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_inputs import assert_same_bits

from minillama.kernels.fma import fmaf, fused_multiply_add, separate_multiply_add

SINGLES = st.floats(width=32).map(np.float32)


def assert_plain_is_compiled(a, b, c):
    with np.errstate(all="ignore"):
        assert_same_bits(np.array(fmaf(a, b, c)), np.array(fused_multiply_add(a, b, c), np.float32), (a, b, c))


@settings(deadline=None)  # the first example compiles
@given(SINGLES, SINGLES, SINGLES)
def test_fmaf_as_plain_python_is_the_compiled_one(a, b, c):
    assert_plain_is_compiled(a, b, c)


@settings(deadline=None)
@given(SINGLES, SINGLES, st.floats(-1e-6, 1e-6), st.integers(-3, 3))
def test_fmaf_keeps_what_cancellation_leaves(a, b, nudge, steps):
    with np.errstate(all="ignore"):
        c = -np.float32(np.float64(a) * np.float64(b) * (1 + nudge) * (1 + steps * 2.0**-24))
    assert_plain_is_compiled(a, b, c)


def test_fmaf_rounds_once():
    # 1 + 2^-23 + 2^-24 - 2^-70 is nearer to 1 + 2^-23. A double loses the 2^-70, and the tie goes to 1 + 2^-22.
    a, b, c = np.float32(2.0**-24 * (1 + 2.0**-23)), np.float32(1 - 2.0**-23), np.float32(1 + 2.0**-23)
    assert fmaf(a, b, c) == fused_multiply_add(a, b, c) == np.float32(1 + 2.0**-23)
    assert np.float32(float(a) * float(b) + float(c)) == np.float32(1 + 2.0**-22)


def test_separate_rounds_the_product():
    # (1 + 2^-12)^2 is 1 + 2^-11 + 2^-24, a tie, and the product rounded to even is 1 + 2^-11.
    x, c = np.float32(1 + 2.0**-12), np.float32(-1 - 2.0**-11)
    assert fused_multiply_add(x, x, c) == 2.0**-24
    assert separate_multiply_add(x, x, c) == 0
