"""Caches whose layers with a sliding window keep only that: the bits of whole caches, in less memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import minillama as ml
from minillama import gguf
from minillama.errors import ContextFullError, InvalidInputError
from minillama.generate import PromptCache
from minillama.kernels.reference.attention import BLOCK
from minillama.model.model import Model
from tests.tiny_families import FAMILIES

WINDOWED = ("gemma2", "gemma3", "cohere2", "olmo3", "gpt-oss")  # windows of 6 positions
IDS = np.random.default_rng(5).integers(0, 256, 400)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("window")
    for name in WINDOWED:
        FAMILIES[name].write(made / f"{name}.gguf", FAMILIES[name].types[-1])
    return made


def loaded(folder: Path, name: str = "gemma3", **options: object) -> Model:
    return Model(gguf.open(folder / f"{name}.gguf"), **options)  # type: ignore[arg-type]


def logits_in_steps(model: Model, steps: list[int]) -> np.ndarray:
    cache, parts, first = model.new_cache(), [], 0
    for step in steps:
        parts.append(model.forward(IDS[first : first + step], cache, logits="all"))
        first += step
    return np.concatenate(parts)


@pytest.mark.parametrize("name", WINDOWED)
@pytest.mark.parametrize("kv_type", ["f32", "q8_0"])
def test_bits_are_those_of_whole_caches(folder: Path, name: str, kv_type: str) -> None:
    whole = logits_in_steps(loaded(folder, name, kv_type=kv_type), [400])
    for options in ({}, {"driver": "eager"}, {"threads": 3}):
        model = loaded(folder, name, kv_type=kv_type, window_only=True, **options)
        for steps in ([400], [1] * 20 + [180] + [1] * 100, [63, 1, 64, 65, 7] * 2):
            np.testing.assert_array_equal(logits_in_steps(model, steps), whole[: sum(steps)])


@pytest.mark.parametrize("name", WINDOWED)
def test_windows_take_memory_for_themselves_only(folder: Path, name: str) -> None:
    whole, model = loaded(folder, name), loaded(folder, name, window_only=True)
    sizes = []
    for owner in (whole, model):
        cache = owner.new_cache()
        for first in range(0, 400, 40):
            owner.forward(IDS[first : first + 40], cache, logits=None)
        sizes.append(cache.nbytes)
    n_blocks = -(-400 // BLOCK)
    held = {window: sum(block >= 0 for block in table) for window, table in zip((0, 6), cache.tables, strict=True)}
    assert held[0] == n_blocks
    assert 2 <= held[6] <= 3  # the window, and a block to spare
    windows = [model.config.window(i) for i in range(model.config.n_layer)]
    per_layer = sizes[0] // model.config.n_layer // n_blocks
    assert sizes == [per_layer * n_blocks * len(windows), per_layer * sum(held[window] for window in windows)]


def test_keys_that_a_window_has_left_behind_are_not_asked_for(folder: Path) -> None:
    model = loaded(folder)
    recorded, _ = model.recorded_pass(IDS[:1], model.new_cache())
    asks = [call.ahead[0] != 0 for call in recorded.plan.calls if call.name.endswith(".kqv")]
    assert asks == [model.config.window(i) == 0 for i in range(model.config.n_layer)]
    assert set(asks) == {False, True}


def test_a_long_prompt_never_holds_more_than_windows_and_a_chunk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minillama.model.model.CHUNK", 50)
    model = loaded(folder, window_only=True)
    most, original = [], Model._pass

    def watched(self, *arguments, **options):
        result = original(self, *arguments, **options)
        most.append(sum(block >= 0 for block in cache.tables[1]))
        return result

    monkeypatch.setattr(Model, "_pass", watched)
    cache = model.new_cache()
    logits = model.forward(IDS, cache, logits="all")
    assert max(most) <= 4 < 400 // BLOCK
    np.testing.assert_array_equal(logits, loaded(folder).logits(IDS))


def test_an_error_leaves_the_cache_as_it_was(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minillama.model.model.CHUNK", 50)
    model = loaded(folder, window_only=True)
    cache, expected = model.new_cache(), loaded(folder).logits([*IDS[:100], 7])
    model.forward(IDS[:100], cache, logits=None)
    seen = []

    def fail_late(name: str, _value: np.ndarray) -> None:
        seen.append(name)
        if seen.count("blk.5.l_out") == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        model.forward(IDS[100:], cache, logits=None, watch=fail_late)
    assert len(cache) == 100
    with pytest.raises(ContextFullError):
        model.forward(np.tile(IDS, 2), cache)
    np.testing.assert_array_equal(model.forward([7], cache), expected[-1])


def test_sequences_of_a_batch_and_forks(folder: Path) -> None:
    model, whole = loaded(folder, window_only=True), loaded(folder)
    caches = [model.new_cache() for _ in range(3)]
    for cache, n in zip(caches, (200, 3, 90), strict=True):
        model.forward(IDS[:n], cache, logits=None)
    twin = caches[0].fork()
    for cache in (caches[0], twin):  # the fork's blocks are not its parent's any more once it writes
        model.forward(IDS[200:300] if cache is twin else IDS[:100], cache, logits=None)
    found = model.forward_batch([[5], [6], [7], [8]], [*caches, twin])
    texts = ([*IDS[:200], *IDS[:100], 5], [*IDS[:3], 6], [*IDS[:90], 7], [*IDS[:300], 8])
    for logits, text in zip(found, texts, strict=True):
        np.testing.assert_array_equal(logits, whole.logits(text)[-1])


def test_truncate_goes_back_as_far_as_the_window_is_kept(folder: Path) -> None:
    model, whole = loaded(folder, window_only=True), loaded(folder)
    for n in (0, 200, 205, 230, 250):
        cache = model.new_cache()
        model.forward(IDS[:250], cache, logits=None)
        cache.truncate(n)
        np.testing.assert_array_equal(model.forward([9], cache), whole.logits([*IDS[:n], 9])[-1])
    cache = model.new_cache()
    model.forward(IDS[:250], cache, logits=None)
    with pytest.raises(InvalidInputError, match=r"cannot truncate to 100 positions: .* keep those from 128 on"):
        cache.truncate(100)
    assert len(cache) == 250
    np.testing.assert_array_equal(model.forward([9], cache), whole.logits([*IDS[:250], 9])[-1])


@pytest.mark.parametrize("n_discard", [1, 64, 130, 230])
def test_a_shifted_cache_goes_on_as_a_shifted_whole_one(folder: Path, n_discard: int) -> None:
    found = []
    for model in (loaded(folder, window_only=True), loaded(folder)):
        cache = model.new_cache()
        model.forward(IDS[:250], cache, logits=None)
        cache.shift(n_discard, n_keep=4)
        found.append(model.forward(IDS[300:320], cache, logits="all"))
    np.testing.assert_array_equal(*found)


def test_a_shift_that_would_bring_back_what_was_dropped_is_refused(folder: Path) -> None:
    model = loaded(folder, window_only=True)
    cache = model.new_cache()
    model.forward(IDS[:250], cache, logits=None)
    before, uses = cache.tables, [int((pool._uses > 0).sum()) for pool in cache.memory.pools]
    with pytest.raises(InvalidInputError, match="layers with a window keep positions from 128 on"):
        cache.shift(248, n_keep=1)
    assert cache.tables == before
    assert [int((pool._uses > 0).sum()) for pool in cache.memory.pools] == uses


def test_a_text_that_begins_alike_is_computed_again_where_the_window_is_gone(folder: Path) -> None:
    model, whole = loaded(folder, window_only=True), loaded(folder)
    cache = model.new_cache()
    model.forward(IDS[:250], cache, logits=None)
    assert cache.begin(IDS[:251].tolist()) == 250
    assert cache.begin(IDS[:250].tolist()) == 249
    ids = [*IDS[:50].tolist(), 1, 2, 3]
    held = cache.begin(ids)
    assert held == 0
    np.testing.assert_array_equal(model.forward(ids[held:], cache), whole.logits(ids)[-1])


def test_what_such_caches_cannot_do(folder: Path, tmp_path: Path) -> None:
    model = ml.load(folder / "gemma3.gguf", window_only=True)
    cache = model.new_cache()
    model.forward(IDS[:20], cache)
    path = tmp_path / "x.kv"
    for call in (
        lambda: cache.save(path), lambda: model.load_cache(path), lambda: model.open_cache(path),
        lambda: PromptCache(model, path),  # before anything is computed that could not be kept
    ):  # fmt: skip
        with pytest.raises(InvalidInputError, match="window_only"):
            call()
    assert not path.exists()


def test_what_was_dropped_is_minus_infinity_in_products(folder: Path) -> None:
    traces = []
    for options in ({"window_only": True}, {}):
        model = ml.load(folder / "gemma3.gguf", **options)
        cache = model.new_cache()
        model.forward(IDS[:250], cache)
        wanted = ["blk.*.kq", "blk.*.kq_soft_max", "blk.*.kqv"]
        traces.append(model.trace(IDS[250:260].tolist(), wanted, cache=cache))
    found, whole = traces
    np.testing.assert_array_equal(found.logits, whole.logits)
    for i in range(model.config.n_layer):
        for name in ("kq_soft_max", "kqv"):
            np.testing.assert_array_equal(found[f"blk.{i}.{name}"], whole[f"blk.{i}.{name}"])
        products, expected = found[f"blk.{i}.kq"], whole[f"blk.{i}.kq"]
        n_dropped = 128 if model.config.window(i) else 0
        assert (products[..., :n_dropped] == -np.inf).all()
        np.testing.assert_array_equal(products[..., n_dropped:], expected[..., n_dropped:])


def test_without_windows_it_makes_no_difference(tmp_path: Path) -> None:
    path = FAMILIES["llama"].write(tmp_path / "llama.gguf", "quantized")
    model = Model(gguf.open(path), window_only=True)
    assert len(model.new_cache().tables) == 1
    cache = model.new_cache()
    model.forward(IDS[:100], cache)
    cache.save(tmp_path / "cache.kv")
    assert len(Model(gguf.open(path)).load_cache(tmp_path / "cache.kv")) == 100
