"""Tracing changes no bits of any family: windows, caps, sinks, experts, parallel layers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from minillama import gguf
from minillama.generate import LanguageModel
from minillama.trace import Trace
from tests.tiny_families import FAMILIES

IDS = [int(token) for token in np.random.default_rng(8).integers(0, 200, 40)]


@pytest.mark.parametrize("kv_type", ["f32", "f16"])
@pytest.mark.parametrize("name", FAMILIES)
def test_everything_recorded(name: str, kv_type: str, tmp_path: Path) -> None:
    family = FAMILIES[name]
    path = family.write(tmp_path / "tiny.gguf", family.types[-1])
    model = LanguageModel(gguf.open(path), kv_type=kv_type)
    plain = model.logits(IDS)
    on_demand = [point for point in model.points if model.points[point].on_demand]
    whole = model.trace(IDS, ["*", *on_demand])
    np.testing.assert_array_equal(whole.logits, plain)
    # Attention in one kernel, and in parts: the same kqv.
    fused = model.trace(IDS, "blk.*.kqv")
    for point in fused:
        np.testing.assert_array_equal(fused[point], whole[point], err_msg=point)
    cache, planned = model.new_cache(), Trace(model, "*")
    for token in IDS[:4]:
        model.forward([token], cache, watch=planned)
    for point in planned:
        np.testing.assert_array_equal(planned[point], whole[point][:4], err_msg=point)
    last = f"blk.{model.config.n_layer - 1}.l_out"
    np.testing.assert_array_equal(model.forward_from(last, whole[last], model.new_cache()), plain)
    first = model.points.block_input(1)
    np.testing.assert_array_equal(model.forward_from(first, whole[first], model.new_cache()), plain)
    stepper = model.step(IDS)
    np.testing.assert_array_equal(stepper.finish(), plain)
