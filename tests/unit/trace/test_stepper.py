"""A pass by hand."""

from __future__ import annotations

import numpy as np
import pytest

from minillama import gguf
from minillama.errors import InvalidInputError
from minillama.generate import LanguageModel

IDS = [5, 77, 200, 13, 13, 90]


def test_to_the_end(model: LanguageModel) -> None:
    cache = model.new_cache()
    stepper = model.step(IDS, cache=cache)
    assert len(cache) == 0
    np.testing.assert_array_equal(stepper.finish(), model.logits(IDS))
    assert len(cache) == len(IDS)
    np.testing.assert_array_equal(model.forward([3], cache), model.logits([*IDS, 3])[-1])
    with pytest.raises(InvalidInputError, match="the pass is over"):
        stepper.next()


def test_next_and_until(model: LanguageModel) -> None:
    stepper = model.step(IDS)
    assert stepper.next() == "token_embd"
    assert stepper.until("blk.1.kq_soft_max") == "blk.1.kq_soft_max"
    want = model.trace(IDS, "blk.1.kq_soft_max")["blk.1.kq_soft_max"]
    np.testing.assert_array_equal(stepper.value, want)
    np.testing.assert_array_equal(stepper["blk.1.kq_soft_max"], want)
    assert stepper.until("blk.*.q") == "blk.2.q"
    assert stepper.until("l_out-2") == "blk.2.l_out"
    assert stepper.until("blk.0.q") is None
    assert stepper.done


def test_conditions(model: LanguageModel) -> None:
    stepper = model.step(IDS)
    name = stepper.until(condition=lambda _name, value: float(np.abs(value).max()) > 3)
    assert name is not None
    assert np.abs(stepper.value).max() > 3
    earlier = stepper.names[: stepper.names.index(name)]
    assert all(np.abs(stepper[other]).max() <= 3 for other in earlier)


def test_back_and_replace(model: LanguageModel) -> None:
    stepper = model.step(IDS)
    stepper.until("blk.1.ffn_out")
    original = stepper.value.copy()
    stepper.replace(np.zeros_like(original))
    changed = stepper.until("blk.2.l_out") and stepper.value.copy()
    assert stepper.back("blk.1.attn_out") == "blk.1.attn_out"
    with pytest.raises(InvalidInputError, match="not there yet"):
        stepper["blk.1.ffn_out"]
    stepper.until("blk.1.ffn_out")
    np.testing.assert_array_equal(stepper.value, original)  # computed again
    assert not np.array_equal(stepper.until("blk.2.l_out") and stepper.value, changed)
    np.testing.assert_array_equal(stepper.finish(), model.logits(IDS))


def test_the_value_that_was_gone_back_over_is_computed_again(model: LanguageModel) -> None:
    stepper = model.step(IDS)
    stepper.until("blk.1.ffn_up")
    original = stepper.value.copy()
    stepper.replace(original * 2)
    stepper.back()
    assert stepper.next() == "blk.1.ffn_up"
    np.testing.assert_array_equal(stepper.value, original)


def test_a_replacement_equals_an_edit(model: LanguageModel) -> None:
    stepper = model.step(IDS)
    stepper.until("blk.1.kq_soft_max")
    uniform = np.full_like(stepper.value, 1 / len(IDS))
    stepper.replace(uniform)
    want = model.trace(IDS, edits={"blk.1.kq_soft_max": uniform}).logits
    np.testing.assert_array_equal(stepper.finish(), want)


def test_back_to_the_start(model: LanguageModel) -> None:
    stepper = model.step(IDS)
    with pytest.raises(InvalidInputError, match="nothing is there yet"):
        stepper.value  # noqa: B018
    stepper.next()
    assert stepper.back() is None
    assert stepper.next() == "token_embd"
    with pytest.raises(InvalidInputError, match=r"cannot go back to blk.1.q"):
        stepper.back("blk.1.q")


def test_values_are_read_only(model: LanguageModel) -> None:
    stepper = model.step(IDS)
    stepper.next()
    with pytest.raises(ValueError, match="read-only"):
        stepper.value[0] = 0
    with pytest.raises(InvalidInputError, match=r"token_embd: found float32 \(2,\), wanted float32 \(6, 256\)"):
        stepper.replace(np.zeros(2, np.float32))


def test_inputs_where_and_source(model: LanguageModel) -> None:
    stepper = model.step(IDS)
    stepper.until("blk.1.k")
    inputs = stepper.inputs()
    np.testing.assert_array_equal(inputs["blk.1.attn_norm"], stepper["blk.1.attn_norm"])
    np.testing.assert_array_equal(inputs["weight"], model.weights["blk.1.attn_k.weight"].packed)
    assert "llama.py:" in stepper.where()
    assert 'name="k"' in stepper.where()
    stepper.until("blk.1.ffn_inp")
    assert set(stepper.inputs()) >= {"blk.1.attn_out", "blk.0.l_out"}
    assert "def " in stepper.source()


def test_diff(model: LanguageModel) -> None:
    recorded = model.trace(IDS, "*")
    stepper = model.step(IDS)
    stepper.until("blk.1.ffn_norm")
    assert stepper.diff(recorded).equal
    stepper.replace(stepper.value * np.float32(1.5))
    found = stepper.diff(recorded)
    assert found.first == (0, 0)
    assert found.n_different == found.n_values
    assert found.relative == pytest.approx(0.5, rel=1e-6)
    assert found.cosine == pytest.approx(1)
    other = model.step(IDS)
    other.until("blk.1.ffn_norm")
    assert not stepper.diff(other).equal


def test_abort_leaves_the_cache_as_it_was(model: LanguageModel) -> None:
    cache = model.new_cache()
    model.forward(IDS, cache)
    blocks = cache.blocks
    stepper = model.step([1] * 100, cache=cache)
    stepper.until("blk.2.kq")
    stepper.abort()
    assert (len(cache), cache.blocks) == (len(IDS), blocks)
    np.testing.assert_array_equal(model.forward([9], cache), model.logits([*IDS, 9])[-1])
    with pytest.raises(InvalidInputError, match="the pass is over"):
        stepper.finish()


def test_the_reference_backend_steps_alike(tiny_path, model: LanguageModel) -> None:
    oracle = LanguageModel(gguf.open(tiny_path), backend="reference")
    ours, theirs = model.step(IDS[:3]), oracle.step(IDS[:3])
    while not ours.done:
        assert ours.next() == theirs.next()
        np.testing.assert_array_equal(ours.value, theirs.value, err_msg=ours.name)
