"""One forward pass, several drivers: eager, captured and stepped give the same bits."""

from __future__ import annotations

import ctypes
import gc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minillama import gguf
from minillama.errors import InvalidInputError
from minillama.model.model import DRIVERS, Model
from minillama.runtime import capture
from minillama.runtime.arena import Arena
from minillama.runtime.batch import Batch
from minillama.runtime.capture import RecordedPass
from minillama.runtime.plan import Plan
from tests.tiny_models import TinyModel

KINDS = {"llama": TinyModel(), "qwen2": TinyModel(architecture="qwen2", bias=True), "tied": TinyModel(tied=True)}
IDS = np.random.default_rng(1).integers(0, 256, 150)


def load(folder: Path, kind: str = "llama", **options: object) -> Model:
    return Model(gguf.open(KINDS[kind].write(folder / "tiny.gguf")), **options)  # type: ignore[arg-type]


def record(model: Model, ids: np.ndarray) -> tuple[RecordedPass, Batch]:
    cache = model.new_cache()
    cache.reserve(len(ids))
    batch = Batch.of([ids], [cache], "all")
    return model._driver.recorded(model._forward, batch), batch


def decoded(model: Model, n_prompt: int) -> np.ndarray:
    cache = model.new_cache()
    first = model.forward(IDS[:n_prompt], cache)
    return np.array([first, *(model.forward([token], cache) for token in IDS[n_prompt:])])


@pytest.mark.parametrize("kv_type", ["f32", "f16"])
@pytest.mark.parametrize("kind", KINDS)
def test_captured_equals_eager(tmp_path: Path, kind: str, kv_type: str) -> None:
    # 150 positions cross two cache blocks: plans are replayed, and recorded anew when the blocks move.
    eager, captured = (load(tmp_path, kind, kv_type=kv_type, driver=driver) for driver in ("eager", "captured"))
    whole = eager.logits(IDS)
    np.testing.assert_array_equal(captured.logits(IDS), whole)
    np.testing.assert_array_equal(decoded(captured, 20), whole[19:])
    np.testing.assert_array_equal(decoded(eager, 20), whole[19:])


def test_a_plan_is_recorded_once_per_shape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, recorded = load(tmp_path), []
    original = RecordedPass.__init__
    monkeypatch.setattr(RecordedPass, "__init__", lambda *a: (recorded.append(1), original(*a))[1])
    for _ in range(2):  # while the cache grows, plans are dropped and recorded anew
        decoded(model, 20)
    before = len(recorded)
    decoded(model, 20)
    assert len(recorded) == before < 12


@pytest.mark.parametrize("n_threads", [1, 2, 3])
def test_sequences_side_by_side(tmp_path: Path, n_threads: int) -> None:
    model = load(tmp_path, threads=n_threads)
    texts = [IDS[:70], IDS[70:75], IDS[75:76], IDS[76:140]]
    alone = [model.logits(text) for text in texts]
    together = model.forward_batch(texts, [model.new_cache() for _ in texts], logits="all")
    for got, want in zip(together, alone, strict=True):
        np.testing.assert_array_equal(got, want)


def test_stepping_shows_every_value_the_eager_driver_shows(tmp_path: Path) -> None:
    model, seen = load(tmp_path), []
    model.forward(IDS, model.new_cache(), logits="all", watch=lambda name, value: seen.append((name, value.copy())))
    recorded, batch = record(model, IDS)
    steps = [(value.name, value.array.copy()) for value in recorded.step(batch)]
    assert [name for name, _ in steps] == [name for name, _ in seen]
    for (name, got), (_, want) in zip(steps, seen, strict=True):
        np.testing.assert_array_equal(got, want, err_msg=name)
    np.testing.assert_array_equal(steps[-1][1], model.logits(IDS))


def test_changing_a_value_while_stepping_changes_what_follows(tmp_path: Path) -> None:
    model = load(tmp_path)
    recorded, batch = record(model, IDS)
    for value in recorded.step(batch):
        if value.name == "blk.1.ffn_norm":
            value.array[3] = 0
    changed = value.array.copy()
    same = (changed == model.logits(IDS)).all(axis=1)
    assert not same[3]
    assert same[np.arange(len(IDS)) != 3].all()


def test_a_step_runs_no_operation_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, run = load(tmp_path), []
    recorded, batch = record(model, IDS)
    original = Plan.__init__
    monkeypatch.setattr(Plan, "__init__", lambda plan, calls, n: (run.extend(calls), original(plan, calls, n))[1])
    for _value in recorded.step(batch):
        pass
    assert tuple(run) == recorded.plan.calls


def test_products_of_an_array_that_was_changed_in_place(tmp_path: Path) -> None:
    weight = load(tmp_path).weights["blk.0.attn_q.weight"]
    x = np.ones((2, 256), np.float32)
    first = x @ weight.T
    x *= 2
    np.testing.assert_array_equal(x @ weight.T, 2 * first)


def test_results_outlive_the_next_call(tmp_path: Path) -> None:
    model = load(tmp_path)
    first = model.logits(IDS[:5])
    kept = first.copy()
    model.logits(IDS[5:10])
    np.testing.assert_array_equal(first, kept)


def test_plans_give_their_memory_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, records = load(tmp_path), []
    original = capture.RecordedPass.__init__

    def recorded(self: capture.RecordedPass, *arguments: Any) -> None:
        original(self, *arguments)
        records.append(weakref.ref(self))

    monkeypatch.setattr(capture.RecordedPass, "__init__", recorded)
    whole = model.logits(IDS)
    model.logits(IDS[:7])
    assert [plan() is not None for plan in records] == [True, True]
    monkeypatch.setattr(capture, "_KEPT_BYTES", records[1]().nbytes)
    np.testing.assert_array_equal(model.logits(IDS[:8]), whole[:8])  # too much for the rest, and kept all the same
    assert [plan() is not None for plan in records] == [False, False, True]
    np.testing.assert_array_equal(model.logits(IDS), whole)


def test_unknown_driver(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="driver is 'magic', there are " + ", ".join(DRIVERS)):
        load(tmp_path, driver="magic")


class TestArena:
    def test_memory_is_used_again_when_an_array_is_garbage(self) -> None:
        arena = Arena()
        first = arena.empty((10, 100), np.float32)
        address = first.ctypes.data
        second = arena.empty((10, 100), np.float32)
        assert not np.shares_memory(first, second)
        del first
        gc.collect()
        assert arena.empty((1000,), np.float32).ctypes.data == address
        assert arena.nbytes == 2 * 4000

    def test_a_view_keeps_memory_in_use(self) -> None:
        arena = Arena()
        view = arena.empty((10, 100), np.float32)[2:4]
        gc.collect()
        assert not np.shares_memory(arena.empty((10, 100), np.float32), view)

    def test_an_alias_does_not(self) -> None:
        arena = Arena()
        array = arena.empty((8, 200), np.float32)
        alias = arena.alias(array)
        assert np.shares_memory(array, alias)
        del array
        gc.collect()
        assert np.shares_memory(arena.empty((8, 200), np.float32), alias)

    def test_which_arrays_it_owns(self) -> None:
        arena = Arena()
        array = arena.empty((3, 4), np.float32)
        assert arena.owns(array)
        assert arena.owns(array[1:])
        assert not arena.owns(np.zeros(3))
        assert not arena.owns(Arena().empty((3,), np.float32))

    def test_arrays_start_at_cache_lines_and_may_be_empty(self) -> None:
        arena = Arena()
        arrays = [arena.empty(shape, np.float32) for shape in ((3,), (5, 7), (0, 9), (1,))]
        assert all(array.ctypes.data % 64 == 0 for array in arrays if array.size)
        assert arrays[2].shape == (0, 9)


def test_operations_say_what_they_read_first(tmp_path: Path) -> None:
    model = load(tmp_path)
    other, cache = model.new_cache(), model.new_cache()
    for each in (other, cache):
        model.forward(IDS[:3], each, logits=None)
    recorded, _ = model.recorded_pass([1], cache)
    for call in recorded.plan.calls:
        kind = call.name.split(".")[-1]
        first, n_bytes, index, step = call.ahead
        if kind == "kqv":
            keys = cache.pool.keys[int(call.name.split(".")[1])]
            assert (first, step) == (keys.ctypes.data, keys.strides[0])
            assert ctypes.c_int64.from_address(index).value == cache.blocks[0] != 0
        elif call.n_bytes:
            assert (n_bytes, index) == (min(call.n_bytes, 256 * 1024), 0)
            assert first == call.words[0]  # where the kernel's first argument, the packed weight, is
        else:
            assert call.ahead == (0, 0, 0, 0), call.name
    assert sum(call.ahead[0] != 0 for call in recorded.plan.calls) == model.config.n_layer * 8 + 1


def test_products_of_the_same_rows_run_beside_each_other(tmp_path: Path) -> None:
    model = load(tmp_path)
    recorded, _ = model.recorded_pass(IDS, model.new_cache())
    beside = [call.name for call in recorded.plan.calls if call.beside]
    assert beside == [f"blk.{i}.{name}" for i in range(model.config.n_layer) for name in ("k", "v", "ffn_up")]


def test_an_eager_pass_keeps_none_of_its_results_alive(tmp_path: Path) -> None:
    model = load(tmp_path, driver="eager")
    forward, logits = model._forward, list[weakref.ref[Any]]()

    def noted(operations: Any, batch: Batch) -> Any:
        result = forward(operations, batch)
        logits.append(weakref.ref(result))
        return result

    cache = model.new_cache()
    cache.reserve(len(IDS))
    model._driver.run(noted, Batch.of([IDS], [cache], "all"))
    gc.collect()
    assert len(logits) == 1
    assert logits[0]() is None
