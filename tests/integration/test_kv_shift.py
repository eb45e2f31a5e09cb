"""Shifting a cache: what stays, what moves, and what is refused. Bits against llama.cpp are in tests/reference."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from minillama import gguf
from minillama.errors import InvalidInputError, UnsupportedError
from minillama.kernels.reference.attention import BLOCK
from minillama.model.model import Model
from minillama.runtime.kv_cache import KVCache
from tests.tiny_families import FAMILIES
from tests.tiny_models import TinyModel

IDS = np.random.default_rng(3).integers(0, 256, 150)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return TinyModel(n_ctx=200).write(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest.fixture(scope="module")
def model(path: Path) -> Model:
    return Model(gguf.open(path))


def filled(model: Model, n: int) -> KVCache:
    cache = model.new_cache()
    model.forward(IDS[:n], cache, logits=None)
    return cache


def held(cache: KVCache, layer: int) -> tuple[np.ndarray, np.ndarray]:
    """Keys and values of the positions held: float32 [n, n_head_kv, dim]."""
    pool, blocks = cache.pool, list(cache.blocks)
    keys = pool.key_format.decode(pool.key_format.rows(pool.keys[layer][blocks]))
    values = pool.value_format.decode(pool.value_format.rows(pool.values[layer][blocks]))
    return keys[: len(cache)], values[: len(cache)]


def rotated_back(keys: np.ndarray, by: int, base: float = 10000.0) -> np.ndarray:
    """Keys [n, n_head_kv, d] of neighbouring pairs, rotated in float64 from the textbook."""
    d = keys.shape[-1]
    angles = -by * base ** (-np.arange(0, d, 2) / d)
    first, second = keys[..., ::2].astype(np.float64), keys[..., 1::2].astype(np.float64)
    out = np.empty(keys.shape)
    out[..., ::2] = first * np.cos(angles) - second * np.sin(angles)
    out[..., 1::2] = first * np.sin(angles) + second * np.cos(angles)
    return out


@pytest.mark.parametrize(("n", "n_keep", "n_discard"), [(150, 4, 70), (150, 0, 64), (70, 10, 1), (66, 1, 64)])
def test_keys_turn_and_values_move(model: Model, n: int, n_keep: int, n_discard: int) -> None:
    cache = filled(model, n)
    before = [held(cache, layer) for layer in range(2)]
    cache.shift(n_discard, n_keep=n_keep)
    assert len(cache) == n - n_discard
    kept = [*range(n_keep), *range(n_keep + n_discard, n)]
    assert cache.tokens == tuple(IDS[kept])
    assert len(cache.blocks) == -(-len(kept) // BLOCK)
    for layer in range(2):
        keys, values = held(cache, layer)
        np.testing.assert_array_equal(values, before[layer][1][kept])
        np.testing.assert_array_equal(keys[:n_keep], before[layer][0][:n_keep])
        want = rotated_back(before[layer][0][n_keep + n_discard :], n_discard)
        # Angles of up to 150 are rounded, and rounded again from pair to pair.
        np.testing.assert_allclose(keys[n_keep:], want, atol=np.abs(want).max() * 150 * 8 * 2.0**-24)


def test_the_first_layer_is_as_if_the_text_had_begun_there(model: Model) -> None:
    """Keys and values of the first layer depend on no other token, so that only roundings differ."""
    cache = filled(model, 100)
    cache.shift(40)
    afresh = model.new_cache()
    model.forward(IDS[40:100], afresh, logits=None)
    keys, values = held(cache, 0)
    np.testing.assert_array_equal(values, held(afresh, 0)[1])
    np.testing.assert_allclose(keys, held(afresh, 0)[0], atol=1e-4)
    assert not np.array_equal(held(cache, 1)[1], held(afresh, 1)[1])


def test_a_fork_is_not_shifted(model: Model) -> None:
    cache = filled(model, 100)
    twin = cache.fork()
    cache.shift(30)
    np.testing.assert_array_equal(model.forward([5], twin), model.logits([*IDS[:100], 5])[-1])


def test_shifting_by_nothing_changes_nothing(model: Model) -> None:
    cache = filled(model, 30)
    blocks = cache.blocks
    cache.shift(0, n_keep=7)
    assert cache.blocks == blocks
    assert not cache.altered


def test_everything_can_be_discarded(model: Model) -> None:
    cache = filled(model, 70)
    cache.shift(70)
    assert len(cache) == 0
    assert not cache.blocks
    np.testing.assert_array_equal(model.forward(IDS[:9], cache), model.logits(IDS[:9])[-1])


@pytest.mark.parametrize(("n_keep", "n_discard"), [(0, 31), (30, 1), (-1, 3), (2, -1)])
def test_what_is_not_there_cannot_be_discarded(model: Model, n_keep: int, n_discard: int) -> None:
    cache = filled(model, 30)
    with pytest.raises(InvalidInputError, match=f"cannot discard {n_discard} positions after {n_keep}, .* holds 30"):
        cache.shift(n_discard, n_keep=n_keep)
    assert len(cache) == 30


def test_blocks_are_given_back(model: Model) -> None:
    cache, n_blocks = filled(model, 150), model.new_cache().pool.n_blocks
    for _ in range(40):
        cache.shift(20, n_keep=3)
        model.forward(IDS[:20], cache, logits=None)
    assert cache.pool.n_blocks == n_blocks


def test_a_failed_shift_leaves_the_cache(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = filled(model, 100)
    rotate, calls = model._caches.rotate_keys, []

    def fail_in_the_second_layer(layer: int, keys: np.ndarray, moved: np.ndarray) -> np.ndarray:
        calls.append(layer)
        if layer == 1:
            raise KeyboardInterrupt
        return rotate(layer, keys, moved)

    monkeypatch.setattr(model._caches, "rotate_keys", fail_in_the_second_layer)
    blocks, free = cache.blocks, int((cache.pool._uses == 0).sum())
    with pytest.raises(KeyboardInterrupt):
        cache.shift(40)
    assert calls == [0, 1]
    assert cache.blocks == blocks
    assert int((cache.pool._uses == 0).sum()) == free
    np.testing.assert_array_equal(model.forward([5], cache), model.logits([*IDS[:100], 5])[-1])


def test_both_backends_and_drivers_shift_alike(path: Path) -> None:
    logits = []
    for options in ({}, {"driver": "eager"}, {"backend": "reference"}):
        model = Model(gguf.open(path), **options)
        cache = filled(model, 70)
        cache.shift(30, n_keep=2)
        logits.append(model.forward([1, 2], cache, logits="all"))
    np.testing.assert_array_equal(logits[0], logits[1])
    np.testing.assert_array_equal(logits[0], logits[2])


def test_learned_positions_cannot_be_shifted(tmp_path: Path) -> None:
    model = Model(gguf.open(FAMILIES["gpt2"].write(tmp_path / "gpt2.gguf", "f16")))
    cache = filled(model, 20)
    with pytest.raises(UnsupportedError, match="learned embeddings"):
        cache.shift(3)
    assert len(cache) == 20


def test_layers_that_do_not_rotate_keep_their_keys(tmp_path: Path) -> None:
    model = Model(gguf.open(FAMILIES["smollm3"].write(tmp_path / "smollm3.gguf", "f16")))
    assert sorted(model._caches.rotations) == [0, 1, 2]
    cache = filled(model, 30)
    before = held(cache, 3)
    cache.shift(10)
    for now, then in zip(held(cache, 3), before, strict=True):
        np.testing.assert_array_equal(now, then[10:])


def test_altered_says_whether_the_tokens_would_give_the_cache(model: Model) -> None:
    cache = filled(model, 30)
    assert not cache.altered
    assert cache.shared_prefix([*IDS[:20], 999, *IDS[21:30]]) == 20
    cache.shift(5)
    assert cache.altered
    assert cache.fork().altered
    assert cache.shared_prefix(IDS[5:30].tolist()) == 0
    cache.truncate(0)
    assert not cache.altered
