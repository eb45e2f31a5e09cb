"""Products with chosen experts are the products with those experts."""

import numpy as np
import pytest
from kernel_inputs import assert_same_bits, generator, input_rows, mul_mat, packed_rows, quantize

from minillama.gguf.constants import GGMLType
from minillama.kernels.layouts import LAYOUTS
from minillama.kernels.reference.experts import MUL_MAT_ID
from minillama.kernels.registry import kernel_set
from minillama.kernels.scratch import DOT_BYTES

KERNELS = kernel_set("reference")
N = 256


def run(type_, weight, activation, ids, rows=None):
    out = np.full((*ids.shape, weight.shape[1]), 12345.0, np.float32)
    scratch = np.full(DOT_BYTES, 0xA5, np.uint8)
    start, stop = rows or (0, weight.shape[1])
    MUL_MAT_ID[type_](weight, activation, ids, N, out, scratch, start, stop)
    return out


@pytest.mark.parametrize("shared", [True, False], ids=["one input", "an input per expert"])
@pytest.mark.parametrize("name", ["F32", "F16", "Q8_0", "Q4_K"])
def test_each_choice_is_its_experts_product(name, shared):
    type_, rng = GGMLType[name], generator("experts", name)
    activation_type = LAYOUTS[type_].activation
    weight = np.stack([packed_rows(type_, 5, N, rng) for _ in range(4)])
    ids = np.array([[2, 0], [3, 3], [1, 2]], np.int32)
    x = input_rows("normal", 3 if shared else 6, N, rng)
    activation = quantize(KERNELS, activation_type, x).reshape(3, 1 if shared else 2, -1)
    got = run(type_, weight, activation, ids)
    for t in range(3):
        for i in range(2):
            row = activation[t, 0 if shared else i][None]
            assert_same_bits(got[t, i][None], mul_mat(KERNELS, type_, weight[ids[t, i]], row, N))


def test_only_the_asked_for_rows_are_written():
    rng = generator("experts")
    weight = np.stack([packed_rows(GGMLType.Q8_0, 6, N, rng) for _ in range(2)])
    activation = quantize(KERNELS, GGMLType.Q8_0, input_rows("normal", 2, N, rng))[:, None]
    ids = np.array([[0], [1]], np.int32)
    whole, part = (run(GGMLType.Q8_0, weight, activation, ids, rows) for rows in (None, (2, 4)))
    assert_same_bits(part[..., 2:4], whole[..., 2:4])
    assert (part[..., [0, 1, 4, 5]] == 12345.0).all()
