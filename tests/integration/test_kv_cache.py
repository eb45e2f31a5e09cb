"""Caches: growing, forking, truncating, filling up, and what an error leaves behind."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minillama import gguf
from minillama.errors import ContextFullError, InvalidInputError
from minillama.model.model import Model
from minillama.runtime.kv_cache import KVCache
from tests.tiny_models import TinyModel


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(gguf.open(TinyModel(n_layer=1, n_ctx=200).write(tmp_path_factory.mktemp("tiny") / "tiny.gguf")))


def ids_of(n: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, n)


@pytest.mark.parametrize("n_shared", [1, 63, 64, 65, 128])
def test_forks_do_not_touch_each_other(model: Model, n_shared: int) -> None:
    shared, left, right = ids_of(n_shared), ids_of(5, seed=2), ids_of(7, seed=3)
    cache = model.new_cache()
    model.forward(shared, cache, logits=None)
    twin = cache.fork()
    on_the_left = model.forward(left, cache, logits="all")
    on_the_right = model.forward(right, twin, logits="all")
    np.testing.assert_array_equal(on_the_left, model.logits(np.concatenate([shared, left]))[n_shared:])
    np.testing.assert_array_equal(on_the_right, model.logits(np.concatenate([shared, right]))[n_shared:])


def test_fork_outlives_its_parent(model: Model) -> None:
    cache = model.new_cache()
    model.forward(ids_of(70), cache, logits=None)
    twin = cache.fork()
    del cache
    other = model.new_cache()
    model.forward(ids_of(140, seed=9), other, logits=None)  # would take the parent's blocks, were they free
    expected = model.logits(np.concatenate([ids_of(70), [5]]))[-1]
    np.testing.assert_array_equal(model.forward([5], twin), expected)


@pytest.mark.parametrize("n", [0, 1, 63, 64, 65, 90])
def test_truncate_goes_back(model: Model, n: int) -> None:
    ids = ids_of(90)
    cache = model.new_cache()
    model.forward(ids, cache, logits=None)
    cache.truncate(n)
    assert len(cache) == n
    again = model.forward([7, 8], cache, logits="all")
    np.testing.assert_array_equal(again, model.logits(np.concatenate([ids[:n], [7, 8]]))[n:])


def test_truncate_of_a_fork_leaves_the_parent(model: Model) -> None:
    ids = ids_of(70)
    cache = model.new_cache()
    model.forward(ids, cache, logits=None)
    twin = cache.fork()
    twin.truncate(10)
    model.forward(ids_of(60, seed=4), twin, logits=None)
    expected = model.logits(np.concatenate([ids, [3]]))[-1]
    np.testing.assert_array_equal(model.forward([3], cache), expected)


def test_truncate_refuses_what_is_not_there(model: Model) -> None:
    with pytest.raises(InvalidInputError, match="cannot truncate to 1 positions, the cache holds 0"):
        model.new_cache().truncate(1)


def test_context_full_is_an_error_and_changes_nothing(model: Model) -> None:
    cache = model.new_cache()
    model.forward(ids_of(199), cache, logits=None)
    before = cache.blocks
    with pytest.raises(ContextFullError, match=r"199 positions held and 2 more asked for, the context is 200"):
        model.forward([1, 2], cache)
    assert len(cache) == 199
    assert cache.blocks == before
    model.forward([1], cache)
    with pytest.raises(ContextFullError):
        model.forward([1], cache)


def test_a_prompt_longer_than_the_context_computes_nothing(model: Model) -> None:
    cache = model.new_cache()
    watched: list[str] = []
    with pytest.raises(ContextFullError, match="201 more asked for"):
        model.forward(ids_of(201), cache, watch=lambda name, value: watched.append(name))
    assert not watched
    assert len(cache) == 0


def test_an_interrupted_pass_leaves_the_cache_as_it_was(model: Model) -> None:
    cache = model.new_cache()
    model.forward(ids_of(10), cache, logits=None)

    def interrupt(name: str, value: np.ndarray) -> None:
        if name == "blk.0.ffn_out":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        model.forward(ids_of(80, seed=5), cache, watch=interrupt)
    assert len(cache) == 10
    expected = model.logits(np.concatenate([ids_of(10), [1]]))[-1]
    np.testing.assert_array_equal(model.forward([1], cache), expected)


def test_an_interrupt_after_the_last_pass_leaves_the_cache_as_it_was_too(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, advance = model.new_cache(), KVCache.advance
    model.forward(ids_of(10), cache, logits=None)

    def interrupted(self: KVCache, ids: np.ndarray, *, altered: bool = False) -> None:
        advance(self, ids, altered=altered)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(KVCache, "advance", interrupted)
        with pytest.raises(KeyboardInterrupt):
            model.forward([1], cache)
    assert cache.tokens == tuple(ids_of(10).tolist())
    expected = model.logits(np.concatenate([ids_of(10), [2]]))[-1]
    np.testing.assert_array_equal(model.forward([2], cache), expected)


def test_blocks_are_given_back(model: Model) -> None:
    model.forward(ids_of(190), model.new_cache(), logits=None)
    n_blocks = model.new_cache().pool.n_blocks
    for _ in range(20):
        model.forward(ids_of(190), model.new_cache(), logits=None)
    assert model.new_cache().pool.n_blocks == n_blocks


def test_a_cache_of_another_model_is_refused(model: Model, tmp_path: Path) -> None:
    other = Model(gguf.open(TinyModel(n_layer=1).write(tmp_path / "other.gguf")))
    with pytest.raises(InvalidInputError, match="another model"):
        model.forward([1], other.new_cache())


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sampled_from(["more", "fork", "back"]), st.integers(1, 40)), min_size=1, max_size=6))
def test_any_history_equals_the_text_computed_afresh(model: Model, steps: list[tuple[str, int]]) -> None:
    """Whatever was appended, forked and truncated, the next logits are those of the remaining text."""
    cache, text = model.new_cache(), np.zeros(0, np.int64)
    kept = []
    for action, n in steps:
        if action == "fork":
            kept.append((cache.fork(), text))
        elif action == "back":
            text = text[: max(0, len(text) - n)]
            cache.truncate(len(text))
        elif len(text) + n < 190:
            new = ids_of(n, seed=n)
            model.forward(new, cache, logits=None)
            text = np.concatenate([text, new])
    for sequence, history in [*kept, (cache, text)]:
        logits = model.forward([11], sequence)
        np.testing.assert_array_equal(logits, model.logits([*history, 11])[-1])
