"""Packed blocks taken apart: the numbers shown decode to the values, in bits."""

from __future__ import annotations

import numpy as np
import pytest

from minillama.errors import InvalidInputError
from minillama.generate import LanguageModel
from minillama.gguf import GGMLType
from minillama.kernels.layouts import LAYOUTS, WEIGHT_TYPES
from minillama.kernels.reference.blocks import GROUP_SCALES, UNPACK
from minillama.model.weights import Weight
from minillama.trace.blocks import GROUP, block_of, nonfinite_blocks
from tests.tiny_models import random_packed


def weight_of(type_: GGMLType, model: LanguageModel) -> Weight:
    packed = random_packed(type_, 3, 512, np.random.default_rng(5))
    return Weight("w", (3, 512), type_, packed, model.weights["blk.0.attn_q.weight"]._driver)


@pytest.mark.parametrize("type_", WEIGHT_TYPES, ids=lambda type_: type_.name)
def test_fields_and_numbers_make_the_values(model: LanguageModel, type_: GGMLType) -> None:
    weight, layout = weight_of(type_, model), LAYOUTS[type_]
    block = block_of(weight, 2, 1)
    place = slice(layout.block_size, 2 * layout.block_size)
    np.testing.assert_array_equal(block.values, weight.dequantize()[2, place])
    raw = b"".join(part for _, part, _ in block.fields)
    assert raw == weight.packed[2, layout.type_size : 2 * layout.type_size].tobytes()
    numbers = block.unpacked
    if type_ not in UNPACK:
        assert numbers is None
        return
    assert numbers is not None
    quants = numbers.quants.astype(np.float32)
    if numbers.scales is None or numbers.mins is None:
        values = quants * numbers.scale + numbers.minimum
    else:
        scales, mins = (np.repeat(part.astype(np.float32), GROUP) for part in (numbers.scales, numbers.mins))
        values = (numbers.scale * scales * numbers.factor) * quants - numbers.minimum * mins
    np.testing.assert_array_equal(values, block.values)
    assert (numbers.scales is not None) == (type_ in GROUP_SCALES)


def test_a_k_quant_in_words(model: LanguageModel) -> None:
    block = block_of(weight_of(GGMLType.Q4_K, model), 0, 1)
    numbers = block.unpacked
    assert numbers is not None
    assert numbers.scales is not None
    text = str(block).splitlines()
    assert text[0] == "Q4_K block [0, 1] of w"
    assert [line.split()[0] for line in text[1:5]] == ["d", "dmin", "scales", "qs"]
    halves = [np.frombuffer(raw, np.float16)[0] for _, raw, _ in block.fields[:2]]
    assert [number for _, _, number in block.fields] == [*halves, None, None]
    assert f"= {halves[1]:.9g}" in text[2]
    formula = f"  value[j] = {halves[0]:.9g} * scales[j // 16] * quants[j] - {halves[1]:.9g} * mins[j // 16]"
    assert formula in text
    listed = next(line for line in text[5:] if line.startswith("  scales"))
    assert listed.split("[")[1].split("]")[0].split() == [str(scale) for scale in numbers.scales]


def test_types_without_groups_or_minimums(model: LanguageModel) -> None:
    weight = model.weights["blk.1.attn_q.weight"]
    block = block_of(weight, 3, 5)
    packed = weight.packed[3, 5 * 34 : 6 * 34].tobytes()
    scale = np.frombuffer(packed[:2], np.float16)[0]
    assert block.fields == (("d", packed[:2], scale), ("qs", packed[2:], None))
    text = str(block)
    assert f"\n  value[j] = {scale:.9g} * quants[j]\n" in text
    assert "scales" not in text
    assert "mins" not in str(block_of(weight_of(GGMLType.Q6_K, model), 0, 0))
    assert " + -" in str(block_of(weight_of(GGMLType.Q4_1, model), 0, 0))
    assert "* 0.125 * scales" in str(block_of(weight_of(GGMLType.IQ2_XS, model), 0, 0))
    floats = block_of(model.weights["output_norm.weight"], 0, 2)
    assert floats.values.shape == (1,)
    assert "quants" not in str(floats)


def test_no_such_block(model: LanguageModel) -> None:
    with pytest.raises(InvalidInputError, match=r"has 256 rows of 8 blocks, not \[3, 8\]"):
        block_of(model.weights["blk.1.attn_q.weight"], 3, 8)


def test_blocks_that_are_not_finite(model: LanguageModel) -> None:
    weight = model.weights["blk.1.attn_q.weight"]
    assert nonfinite_blocks(weight) == []
    packed = weight.packed.copy()
    packed[7, 34 * 2 : 34 * 2 + 2] = np.float16(np.inf).reshape(1).view(np.uint8)
    damaged = Weight("w", weight.shape, weight.type, packed, weight._driver)
    assert nonfinite_blocks(damaged) == [(7, 2)]
