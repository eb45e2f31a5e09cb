"""Converting rows to the activation types: by hand, against gguf-py where it has the type, and as plain properties."""

import gguf
import numpy as np
import pytest
from kernel_inputs import ACTIVATION_TYPES, INPUT_KINDS, assert_same_bits, generator, input_rows, quantize

from minillama.gguf.constants import GGMLType
from minillama.kernels.layouts import LAYOUTS
from minillama.kernels.registry import kernel_set

KERNELS = kernel_set("reference")
EVERY_TYPE = pytest.mark.parametrize("type_", ACTIVATION_TYPES, ids=lambda t: t.name)
# numpy's conversion of the "subnormal" kind's infinite quants is undefined, as it is in C.
WELL_DEFINED = [kind for kind in INPUT_KINDS if kind != "subnormal"]


def fields(type_, packed):
    """The blocks' fields by name, as bytes."""
    layout = LAYOUTS[type_]
    blocks = packed.reshape(len(packed), -1, layout.type_size)
    return {
        name: np.ascontiguousarray(blocks[:, :, layout.offset(name) : layout.offset(name) + size])
        for name, size in layout.fields
    }


@pytest.mark.parametrize("kind", WELL_DEFINED)
@pytest.mark.parametrize("name", ["F32", "F16", "BF16", "Q8_0"])
def test_equals_gguf_py(name, kind):
    x = input_rows(kind, 7, 96, generator(name, kind))
    with np.errstate(all="ignore"):  # scales beyond the halves become infinite
        want = gguf.quants.quantize(x, gguf.GGMLQuantizationType[name])
    assert_same_bits(quantize(KERNELS, GGMLType[name], x), np.ascontiguousarray(want).view(np.uint8))


@EVERY_TYPE
def test_only_the_asked_for_rows_are_written(type_):
    x = input_rows("normal", 5, 256, generator("rows"))
    whole = quantize(KERNELS, type_, x)
    out = np.full_like(whole, 0x5A)
    KERNELS.quantize[type_](x, out, 1, 3)
    np.testing.assert_array_equal(out[1:3], whole[1:3])
    assert (out[[0, 3, 4]] == 0x5A).all()


def test_q8_0_rounds_halves_away_from_zero_by_the_unrounded_scale():
    # max|x| = 127 makes the scale exactly 1: 2.5 -> 3, -2.5 -> -3, 0.49999997 -> 0.
    x = np.zeros((1, 32), np.float32)
    x[0, :6] = 127, 2.5, -2.5, 0.49999997, -0.5, 1.4999999
    got = fields(GGMLType.Q8_0, quantize(KERNELS, GGMLType.Q8_0, x))
    assert got["qs"].view(np.int8)[0, 0, :6].tolist() == [127, 3, -3, 0, -1, 1]
    assert got["d"].view(np.float16).item() == 1


def test_q8_1_sums_its_quants():
    # Scale 2 (max 254): quants 127, -1, 3; s = (127 - 1 + 3) * 2.
    x = np.zeros((1, 32), np.float32)
    x[0, :3] = 254, -2, 6
    got = fields(GGMLType.Q8_1, quantize(KERNELS, GGMLType.Q8_1, x))
    assert got["qs"].view(np.int8)[0, 0, :4].tolist() == [127, -1, 3, 0]
    assert (got["d"].view(np.float16).item(), got["s"].view(np.float16).item()) == (2.0, 258.0)


@pytest.mark.parametrize("kind", WELL_DEFINED)
def test_q8_1_has_the_quants_of_q8_0(kind):
    x = input_rows(kind, 5, 96, generator(kind))
    one, zero = (fields(t, quantize(KERNELS, t, x)) for t in (GGMLType.Q8_1, GGMLType.Q8_0))
    np.testing.assert_array_equal(one["qs"], zero["qs"])
    np.testing.assert_array_equal(one["d"], zero["d"])
    total = one["qs"].view(np.int8).sum(-1, dtype=np.int64).astype(np.float32)
    d = np.abs(x.reshape(5, 3, 32)).max(-1) / np.float32(127)  # the scale before its rounding to half
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(one["s"].view(np.float16)[..., 0], (total * d).astype(np.float16))


def test_q8_k_turns_the_extreme_into_minus_127():
    # The extreme, -254, gives the scale 1 / (-127 / -254) = 2; 3 is 1.5, which rounds to even, and 5 is 2.5, also to 2.
    x = np.zeros((1, 256), np.float32)
    x[0, 100], x[0, 0], x[0, 255] = -254, 3, 5
    got = fields(GGMLType.Q8_K, quantize(KERNELS, GGMLType.Q8_K, x))
    quants = got["qs"].view(np.int8)[0, 0]
    assert got["d"].view(np.float32).item() == 2.0
    assert (quants[100], quants[0], quants[255]) == (-127, 2, 2)
    positive = fields(GGMLType.Q8_K, quantize(KERNELS, GGMLType.Q8_K, -x))
    assert positive["d"].view(np.float32).item() == -2.0
    np.testing.assert_array_equal(positive["qs"], got["qs"])


def test_q8_k_takes_the_first_of_two_extremes():
    x = np.zeros((1, 256), np.float32)
    x[0, 3], x[0, 7] = 5, -5
    quants = fields(GGMLType.Q8_K, quantize(KERNELS, GGMLType.Q8_K, x))["qs"].view(np.int8)[0, 0]
    assert (quants[3], quants[7]) == (-127, 127)


@pytest.mark.parametrize("kind", WELL_DEFINED)
def test_q8_k_holds_the_sums_of_16(kind):
    packed = quantize(KERNELS, GGMLType.Q8_K, input_rows(kind, 4, 512, generator(kind)))
    got = fields(GGMLType.Q8_K, packed)
    sums = got["qs"].view(np.int8).reshape(4, 2, 16, 16).sum(-1, dtype=np.int64)
    np.testing.assert_array_equal(got["bsums"].view(np.int16), sums)


@pytest.mark.parametrize("name", ["Q8_0", "Q8_1", "Q8_K"])
def test_zeros_become_zero_bytes(name):
    x = input_rows("zero", 2, 256, generator("zero"))
    assert not quantize(KERNELS, GGMLType[name], x).any()


@pytest.mark.parametrize(("value", "rest"), [(np.nan, 1.0), (np.inf, 0.0), (-np.inf, 0.0)])
def test_q8_1_sums_what_is_left_of_its_quants_in_a_byte(value, rest):
    # ggml adds up the stored bytes: NaN has left a zero there, and zeros times an infinite scale are NaN.
    x = np.full((1, 32), rest, np.float32)
    x[0, 5] = value
    got = fields(GGMLType.Q8_1, quantize(KERNELS, GGMLType.Q8_1, x))
    quants, s = got["qs"].view(np.int8).reshape(-1).astype(np.float32), got["s"].view(np.float16).item()
    assert quants[5] == 0
    if np.isnan(value):
        assert s == np.float16(quants.sum() * np.float32(rest / 127))
    else:
        assert np.isnan(s)
