"""Every family, on all drivers: tracing changes no bits, and what is recorded adds up: windows, caps, sinks, experts,
parallel layers.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from minillama import gguf
from minillama.generate import LanguageModel
from minillama.runtime.probe import is_attention
from minillama.trace import Trace
from tests.tiny_families import FAMILIES

IDS = [int(token) for token in np.random.default_rng(8).integers(0, 200, 40)]


@pytest.mark.parametrize("kv_type", ["f32", "f16"])
@pytest.mark.parametrize("name", FAMILIES)
def test_everything_recorded(name: str, kv_type: str, tmp_path: Path) -> None:
    family = FAMILIES[name]
    model = LanguageModel(gguf.open(family.write(tmp_path / "tiny.gguf", family.types[-1])), kv_type=kv_type)
    plain = model.logits(IDS)  # captured
    on_demand = [point for point in model.points if model.points[point].on_demand]
    whole = model.trace(IDS, ["*", *on_demand])
    np.testing.assert_array_equal(whole.logits, plain)
    # Attention in one kernel, and in parts: the same kqv.
    fused = model.trace(IDS, "blk.*.kqv")
    for point in fused:
        np.testing.assert_array_equal(fused[point], whole[point], err_msg=point)
    # Token by token, by a plan that keeps the values.
    cache, planned = model.new_cache(), Trace(model, ["*", *(point for point in on_demand if is_attention(point))])
    for token in IDS[:4]:
        model.forward([token], cache, watch=planned)
    for point in planned:
        want = whole[point][:4, :, :4] if is_attention(point) else whole[point][:4]
        np.testing.assert_array_equal(planned[point], want, err_msg=point)
    last = f"blk.{model.config.n_layer - 1}.l_out"
    np.testing.assert_array_equal(model.forward_from(last, whole[last], model.new_cache()), plain)
    first = model.points.block_input(1)
    np.testing.assert_array_equal(model.forward_from(first, whole[first], model.new_cache()), plain)
    stepper = model.step(IDS)
    while not stepper.done:
        point = stepper.next()
        np.testing.assert_array_equal(stepper.value, whole[point], err_msg=point)
    np.testing.assert_array_equal(stepper.finish(), plain)


@pytest.mark.parametrize("kv_type", ["f32", "f16"])
@pytest.mark.parametrize("name", FAMILIES)
def test_identities(name: str, kv_type: str, tmp_path: Path) -> None:
    family = FAMILIES[name]
    model = LanguageModel(gguf.open(family.write(tmp_path / "tiny.gguf", family.types[-1])), kv_type=kv_type)
    trace = model.trace(IDS, ["*", "blk.*.kq_soft_max"])
    for layer in range(model.config.n_layer):
        check_residual_stream(trace, layer, model.points.block_input(layer))
        check_attention(trace, layer, model.config.layer(layer).n_head_kv, np.dtype(kv_type.replace("f", "float")))
    head = "output.weight" if "output.weight" in model.weights else "token_embd.weight"
    product = next(point for point in trace if point.startswith("result_output"))  # before scales and caps
    np.testing.assert_array_equal(trace["result_norm"] @ model.weights[head].T, trace[product])
    np.testing.assert_array_equal(
        model.forward_from("result_norm", trace["result_norm"], model.new_cache()), trace.logits
    )


def check_residual_stream(trace: Trace, layer: int, enters: str) -> None:
    """What attention and feed-forward write, added to what enters, is what leaves; every sum is one float addition."""
    points = [point.split(".", 2)[2] for point in trace if point.startswith(f"blk.{layer}.")]

    def value(name: str) -> np.ndarray:
        return trace[f"blk.{layer}.{name}"]

    def last(*names: str, before: str) -> str:
        return [point for point in points[: points.index(before)] if point in names][-1]

    attention = "attn_out", "attn_out_selected", "attn_out_scaled", "attn_post_norm"
    feed_forward = "ffn_out", "ffn_moe_out", "ffn_out_scaled", "ffn_post_norm"
    middle = [point for point in points if point in ("ffn_inp", "sa_out", "ffn_out_inp", "l_out_no_attn")]
    assert len(middle) == 1
    # Parallel layers add feed-forward first.
    order = (attention, feed_forward) if middle[0] in ("ffn_inp", "sa_out") else (feed_forward, attention)
    stream = trace[enters] + value(last(*order[0], before=middle[0]))
    np.testing.assert_array_equal(value(middle[0]), stream, err_msg=middle[0])
    np.testing.assert_array_equal(value("l_out"), stream + value(last(*order[1], before="l_out")), err_msg="l_out")


def check_attention(trace: Trace, layer: int, n_head_kv: int, cache_type: np.dtype) -> None:
    """The weighted sums are those of the values: float products, summed in double, in order."""
    pattern = trace[f"blk.{layer}.kq_soft_max"]
    n, n_head = pattern.shape[:2]
    values = trace[f"blk.{layer}.v"].reshape(n, n_head_kv, -1)
    # An f16 cache rounds the values, and its product the weights.
    values, weights = (part.astype(cache_type).astype(np.float32) for part in (values, pattern))
    kqv = trace[f"blk.{layer}.kqv"].reshape(n, n_head, -1)
    for head in range(n_head):
        total = np.zeros(kqv[:, head].shape)
        for position in range(n):
            total += (weights[:, head, position, None] * values[position, head // (n_head // n_head_kv)]).astype(float)
        np.testing.assert_array_equal(kqv[:, head], total.astype(np.float32), err_msg=f"layer {layer}, head {head}")
