"""Sizes and offsets of blocks against ggml's numbers, gguf-py's table and the reader's."""

import gguf
import pytest

from minillama.errors import UnsupportedError
from minillama.gguf.constants import BLOCK_SIZE, TYPE_SIZE, GGMLType
from minillama.kernels.layouts import LAYOUTS, WEIGHT_TYPES, weight_layout

EVERY_LAYOUT = pytest.mark.parametrize("type_", LAYOUTS, ids=lambda t: t.name)


@EVERY_LAYOUT
def test_sizes_are_those_of_gguf_py(type_):
    layout = LAYOUTS[type_]
    if type_.name not in gguf.GGMLQuantizationType.__members__:
        return  # Q2_0 is newer than gguf-py 0.19
    block_size, type_size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(int(type_))]
    if type_ is GGMLType.Q8_1:
        type_size = 36  # gguf-py counts two floats for d and s; ggml's block holds two halves
    assert (layout.block_size, layout.type_size) == (block_size, type_size)


@EVERY_LAYOUT
def test_sizes_are_those_of_the_reader(type_):
    assert (LAYOUTS[type_].block_size, LAYOUTS[type_].type_size) == (BLOCK_SIZE[type_], TYPE_SIZE[type_])


@pytest.mark.parametrize(
    ("name", "size"), [("Q2_K", 84), ("Q3_K", 110), ("Q4_K", 144), ("Q5_K", 176), ("Q6_K", 210), ("Q8_K", 292)]
)
def test_bytes_of_256_values(name, size):
    # ggml's static assertions; a wrong one makes reads of later blocks drift (field failure 39).
    assert LAYOUTS[GGMLType[name]].row_bytes(256) == size
    assert LAYOUTS[GGMLType[name]].row_bytes(1024) == 4 * size


@pytest.mark.parametrize(
    ("name", "size"),
    [("Q4_0", 18), ("Q4_1", 20), ("Q5_0", 22), ("Q5_1", 24), ("Q8_0", 34), ("Q8_1", 36), ("F16", 64), ("F32", 128)],
)
def test_bytes_of_32_values(name, size):
    assert LAYOUTS[GGMLType[name]].row_bytes(32) == size


@pytest.mark.parametrize(
    ("name", "offsets"),
    [
        ("Q4_0", {"d": 0, "qs": 2}),
        ("Q4_1", {"d": 0, "m": 2, "qs": 4}),
        ("Q5_0", {"d": 0, "qh": 2, "qs": 6}),
        ("Q5_1", {"d": 0, "m": 2, "qh": 4, "qs": 8}),
        ("Q8_0", {"d": 0, "qs": 2}),
        ("Q8_1", {"d": 0, "s": 2, "qs": 4}),
        ("Q2_K", {"scales": 0, "qs": 16, "d": 80, "dmin": 82}),
        ("Q3_K", {"hmask": 0, "qs": 32, "scales": 96, "d": 108}),
        ("Q4_K", {"d": 0, "dmin": 2, "scales": 4, "qs": 16}),
        ("Q5_K", {"d": 0, "dmin": 2, "scales": 4, "qh": 16, "qs": 48}),
        ("Q6_K", {"ql": 0, "qh": 128, "scales": 192, "d": 208}),
        ("Q8_K", {"d": 0, "qs": 4, "bsums": 260}),
        ("Q1_0", {"d": 0, "qs": 2}),
        ("Q2_0", {"d": 0, "qs": 2}),
        ("TQ1_0", {"qs": 0, "qh": 48, "d": 52}),
        ("TQ2_0", {"qs": 0, "d": 64}),
        ("MXFP4", {"e": 0, "qs": 1}),
        ("NVFP4", {"d": 0, "qs": 4}),
        ("IQ1_S", {"d": 0, "qs": 2, "qh": 34}),
        ("IQ1_M", {"qs": 0, "qh": 32, "scales": 48}),
        ("IQ2_XXS", {"d": 0, "qs": 2}),
        ("IQ2_XS", {"d": 0, "qs": 2, "scales": 66}),
        ("IQ2_S", {"d": 0, "qs": 2, "signs": 34, "qh": 66, "scales": 74}),
        ("IQ3_XXS", {"d": 0, "qs": 2, "scales": 66}),
        ("IQ3_S", {"d": 0, "qs": 2, "qh": 66, "signs": 74, "scales": 106}),
        ("IQ4_NL", {"d": 0, "qs": 2}),
        ("IQ4_XS", {"d": 0, "scales_h": 2, "scales_l": 4, "qs": 8}),
    ],
)
def test_offsets_of_fields(name, offsets):
    layout = LAYOUTS[GGMLType[name]]
    assert {field: layout.offset(field) for field, _ in layout.fields} == offsets


def test_an_unknown_field_is_an_error():
    with pytest.raises(KeyError, match="dmin"):
        LAYOUTS[GGMLType.Q4_0].offset("dmin")


@pytest.mark.parametrize("type_", WEIGHT_TYPES, ids=lambda t: t.name)
def test_blocks_of_an_activation_fill_those_of_the_weight(type_):
    layout = weight_layout(type_, "w")
    assert layout is LAYOUTS[type_]
    assert layout.block_size % LAYOUTS[layout.activation].block_size == 0


@pytest.mark.parametrize("type_", [GGMLType.Q8_1, GGMLType.Q8_K, GGMLType.I32, None])
def test_types_that_no_kernel_reads_are_refused(type_):
    found = "an unknown type" if type_ is None else type_.name
    with pytest.raises(UnsupportedError, match=rf"'blk\.0\.w' has type {found}, supported are F32, .*Q6_K"):
        weight_layout(type_, "blk.0.w")
