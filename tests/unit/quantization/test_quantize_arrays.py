"""``minillama.quantize`` and ``minillama.dequantize``: shapes, names, refusals."""

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import minillama as ml
from minillama.errors import InvalidInputError, UnsupportedError
from minillama.gguf.constants import BLOCK_SIZE, TYPE_SIZE, GGMLType
from minillama.kernels.layouts import LAYOUTS
from minillama.kernels.reference.dequantize import GET_ROWS
from minillama.kernels.reference.quantize_weights import QUANTIZE_WEIGHTS

BOTH_WAYS = [t for t in QUANTIZE_WEIGHTS if t in GET_ROWS]


def values(*shape):
    return np.random.default_rng(7).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("type_", QUANTIZE_WEIGHTS, ids=lambda t: t.name)
def test_the_kernels_bits_whatever_the_shape_and_the_threads(type_):
    x, nothing = values(6, 512), np.empty(0, np.float32)
    x.flags.writeable = nothing.flags.writeable = False  # as kernels are compiled
    want = np.empty((6, 512 // BLOCK_SIZE[type_] * TYPE_SIZE[type_]), np.uint8)
    QUANTIZE_WEIGHTS[type_](x, nothing, want, 0, 6)
    np.testing.assert_array_equal(ml.quantize(x, type_.name), want)
    np.testing.assert_array_equal(ml.quantize(x, type_.name.lower(), threads=1), want)
    np.testing.assert_array_equal(ml.quantize(x.reshape(2, 3, 512), type_.name, threads=3), want.reshape(2, 3, -1))
    np.testing.assert_array_equal(ml.quantize(x[1], type_.name), want[1])


@pytest.mark.parametrize("type_", BOTH_WAYS, ids=lambda t: t.name)
def test_decoding_gives_the_shape_back(type_):
    x = values(2, 3, 512)
    packed = ml.quantize(x, type_.name)
    decoded = ml.dequantize(packed, type_.name)
    assert decoded.dtype == np.float32
    assert decoded.shape == x.shape
    np.testing.assert_array_equal(ml.dequantize(packed.reshape(-1), type_.name, x.shape, threads=1), decoded)
    np.testing.assert_array_equal(ml.dequantize(packed[0, 1], type_.name), decoded[0, 1])
    np.testing.assert_array_equal(ml.dequantize(packed[:, ::2], type_.name), decoded[:, ::2])


shapes = st.lists(st.integers(1, 3), min_size=0, max_size=3)


@pytest.mark.parametrize("type_", LAYOUTS, ids=lambda t: t.name)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=shapes, n_blocks=st.integers(1, 3), seed=st.integers(0, 2**32 - 1))
def test_blocks_survive_a_file(type_, rows, n_blocks, seed, tmp_path):
    layout, shape = LAYOUTS[type_], (*rows, n_blocks * BLOCK_SIZE[type_])
    size = math.prod(rows) * layout.row_bytes(shape[-1])
    packed = np.random.default_rng(seed).integers(0, 256, size, np.uint8)
    with ml.gguf.Writer(tmp_path / "blocks.gguf") as writer:
        writer.add_tensor("before", np.arange(3, dtype=np.float32))
        writer.add_tensor("blocks", packed, type_, shape)
    with ml.gguf.open(tmp_path / "blocks.gguf") as file:
        tensor = file.tensors["blocks"]
        assert (tensor.type, tensor.shape) == (type_, shape)
        assert tensor.data.shape == (math.prod(rows), layout.row_bytes(shape[-1]))
        np.testing.assert_array_equal(tensor.data.reshape(-1), packed)
        if type_ in GET_ROWS:
            read, made = (ml.dequantize(data, type_.name, shape, threads=1) for data in (tensor.data, packed))
            np.testing.assert_array_equal(read.view(np.uint32), made.view(np.uint32))


def test_names_are_ggmls_in_any_case():
    x = values(1, 256)
    np.testing.assert_array_equal(ml.quantize(x, "q4_K"), ml.quantize(x, "Q4_K"))


def test_halves_are_taken_for_what_they_are():
    x = values(2, 64).astype(np.float16)
    np.testing.assert_array_equal(ml.quantize(x, "Q8_0"), ml.quantize(x.astype(np.float32), "Q8_0"))


def test_any_layout_in_memory_will_do():
    x = values(64, 64)
    np.testing.assert_array_equal(ml.quantize(x.T, "Q4_0"), ml.quantize(np.ascontiguousarray(x.T), "Q4_0"))
    x.flags.writeable = False
    np.testing.assert_array_equal(ml.quantize(x[::2], "Q4_0"), ml.quantize(x, "Q4_0")[::2])


def test_importances_count():
    x, importance = values(4, 256), np.linspace(0, 3, 256)
    assert (ml.quantize(x, "Q4_K", importance) != ml.quantize(x, "Q4_K")).any()
    zeros = ml.quantize(x, "Q2_K", np.zeros(256))  # field failure 44: NaN scales
    assert np.isfinite(ml.dequantize(zeros, "Q2_K")).all()


@pytest.mark.parametrize("shape", [(0, 256), (3, 0), (0,), (2, 0, 256)])
def test_nothing_to_do(shape):
    packed = ml.quantize(np.zeros(shape, np.float32), "Q4_K")
    assert packed.shape == (*shape[:-1], shape[-1] // 256 * 144)
    assert ml.dequantize(packed, "Q4_K").shape == shape


def test_rows_must_be_whole_blocks():
    with pytest.raises(InvalidInputError, match=r"\(2, 172\).*Q8_0.*blocks of 32"):  # field failure 42
        ml.quantize(values(2, 172), "Q8_0")
    with pytest.raises(InvalidInputError, match=r"shape \(\)"):
        ml.quantize(np.float32(1), "F16")


@pytest.mark.parametrize("dtype", [np.float64, np.int32, np.complex64, object])
def test_only_exact_conversions_are_made(dtype):
    with pytest.raises(InvalidInputError, match=f"dtype {np.dtype(dtype)}, float32 or float16"):
        ml.quantize(np.zeros((2, 32), dtype), "Q8_0")


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused(bad):
    x = values(3, 32)
    x[1, 7] = bad
    with pytest.raises(InvalidInputError, match=r"array has 1 of 96 values that are not finite, first .* at \(1, 7\)"):
        ml.quantize(x, "Q4_0")
    with pytest.raises(InvalidInputError, match="importance has 1 of 32"):
        ml.quantize(values(3, 32), "Q4_0", x[1])


@pytest.mark.parametrize("name", ["F16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q6_K", "TQ2_0", "IQ4_XS"])
def test_what_ggml_would_not_validate_is_refused(name):
    # The scale overflows half precision, and decoded values would be infinite or NaN.
    x = values(3, 512)
    x[2, 256:] *= np.float32(1e9)
    with pytest.raises(InvalidInputError, match=f"{name} blocks would not be finite, the first at row 2, column 2"):
        ml.quantize(x, name)


def test_a_tiny_block_has_no_mxfp4_form():
    # ggml's exponent wraps to 255 between 2^-126 and 2^-125, which its validation refuses.
    x = np.full((1, 64), 1.0, np.float32)
    x[0, 32:] = 2.0**-126
    with pytest.raises(InvalidInputError, match=r"1 of 2 MXFP4 blocks would not be finite.* row 0, column 32"):
        ml.quantize(x, "mxfp4")


@pytest.mark.parametrize("importance", [np.ones(31), np.ones((2, 32)), 1.0])
def test_importances_are_one_per_column(importance):
    with pytest.raises(InvalidInputError, match=r"importance has shape .*, \(32,\) is wanted"):
        ml.quantize(values(2, 32), "Q4_0", importance)


def test_importances_are_not_negative():
    with pytest.raises(InvalidInputError, match="2 negative numbers"):
        ml.quantize(values(2, 32), "Q4_0", [-1, -1] + [1] * 30)


@pytest.mark.parametrize("name", ["Q4", "", "IQ2_XXS", "I8", "Q4_K_M", None, GGMLType.Q4_0])
def test_unknown_types_are_named_with_what_there_is(name):
    with pytest.raises(UnsupportedError, match=r"quantizing type .* supported are F32, F16, .*Q4_K"):
        ml.quantize(values(1, 256), name)


def test_decoding_refuses_what_it_cannot_read():
    packed = ml.quantize(values(2, 64), "Q8_0")
    with pytest.raises(UnsupportedError, match=r"decoding type 'Q9' .* supported are"):
        ml.dequantize(packed, "Q9")
    with pytest.raises(InvalidInputError, match="blocks of 34 bytes, rows of 67 bytes"):
        ml.dequantize(packed[:, 1:], "Q8_0")
    with pytest.raises(InvalidInputError, match=r"136 bytes are not Q8_0 values of shape \(3, 64\)"):
        ml.dequantize(packed, "Q8_0", (3, 64))
    with pytest.raises(InvalidInputError, match=r"shape \(4, 33\)"):
        ml.dequantize(packed, "Q8_0", (4, 33))
    with pytest.raises(InvalidInputError, match="float32"):
        ml.dequantize(packed.astype(np.float32), "Q8_0")
    with pytest.raises(InvalidInputError, match=r"shape \(\)"):
        ml.dequantize(packed, "Q8_0", ())
