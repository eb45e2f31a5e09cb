"""The same bits whatever the chunk, batch, thread count or backend, for models of every kind."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from minillama import gguf
from minillama.gguf import GGMLType
from minillama.kernels.layouts import WEIGHT_TYPES
from minillama.model.model import CHUNK, Model
from tests.tiny_models import TinyModel

KINDS = {
    "grouped": TinyModel(),
    "multi_head": TinyModel(n_head=4, n_head_kv=4),
    "one_kv_head": TinyModel(n_head=8, n_head_kv=1),
    "tied": TinyModel(tied=True, embedding_type=GGMLType.Q8_0),
    "qwen2_bias": TinyModel(architecture="qwen2", bias=True, matrix_type=GGMLType.Q5_0),
    **{f"type_{type_.name}": TinyModel(n_layer=1, matrix_type=type_, embedding_type=type_) for type_ in WEIGHT_TYPES},
}


def ids_of(n: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, n)


def load(folder: Path, tiny: TinyModel, **options: object) -> Model:
    return Model(gguf.open(tiny.write(folder / "tiny.gguf")), **options)  # type: ignore[arg-type]


def in_chunks(model: Model, ids: np.ndarray, size: int) -> np.ndarray:
    cache = model.new_cache()
    parts = [model.forward(ids[i : i + size], cache, logits="all") for i in range(0, len(ids), size)]
    return np.concatenate(parts)


@pytest.mark.parametrize("kind", KINDS)
def test_chunks_equal_whole_prompt(tmp_path: Path, kind: str) -> None:
    model = load(tmp_path, KINDS[kind])
    ids = ids_of(70)  # more than one cache block
    whole = model.logits(ids)
    assert np.isfinite(whole).all()
    assert whole.std() > 0.01
    for size in (1, 7, 64):
        np.testing.assert_array_equal(in_chunks(model, ids, size), whole)


@pytest.mark.parametrize("kind", ["grouped", "qwen2_bias", "type_Q4_K", "type_Q4_1", "type_F16"])
def test_backends_agree(tmp_path: Path, kind: str) -> None:
    ids = ids_of(9)
    fast, reference = (load(tmp_path, KINDS[kind], backend=backend) for backend in ("cpu", "reference"))
    np.testing.assert_array_equal(fast.logits(ids), reference.logits(ids))


@pytest.mark.parametrize("kv_type", ["f32", "f16"])
def test_thread_counts_agree(tmp_path: Path, kv_type: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minillama.runtime.plan._WORTH_A_SHARE", 1)  # share out even so little work
    ids = ids_of(70)
    runs = [load(tmp_path, KINDS["grouped"], threads=n, kv_type=kv_type).logits(ids) for n in (1, 2, 3, 4)]
    for other in runs[1:]:
        np.testing.assert_array_equal(other, runs[0])


def test_half_cache_differs_from_float_but_not_by_chunk(tmp_path: Path) -> None:
    ids = ids_of(70)
    half = load(tmp_path, KINDS["grouped"], kv_type="f16")
    whole = half.logits(ids)
    np.testing.assert_array_equal(in_chunks(half, ids, 7), whole)
    assert not np.array_equal(whole, load(tmp_path, KINDS["grouped"]).logits(ids))


def test_long_prompt_is_computed_in_chunks(tmp_path: Path) -> None:
    model = load(tmp_path, TinyModel(n_layer=1, n_ctx=2 * CHUNK))
    ids = ids_of(CHUNK + 3)
    cache = model.new_cache()
    last = model.forward(ids, cache)
    assert len(cache) == CHUNK + 3
    np.testing.assert_array_equal(last, model.logits(ids)[-1])


def test_a_late_token_never_changes_earlier_logits(tmp_path: Path) -> None:
    model = load(tmp_path, KINDS["grouped"])
    ids = ids_of(20)
    changed = ids.copy()
    changed[12] = (changed[12] + 1) % 256
    before, after = model.logits(ids), model.logits(changed)
    np.testing.assert_array_equal(before[:12], after[:12])
    assert (before[12:] != after[12:]).any(axis=1).all()


def test_sequences_side_by_side_equal_each_alone(tmp_path: Path) -> None:
    model = load(tmp_path, KINDS["grouped"])
    texts = [ids_of(n, seed=n) for n in (3, 66, 1, 17)]
    caches = [model.new_cache() for _ in texts]
    first = model.forward_batch(texts, caches, logits="all")
    second = model.forward_batch([text[:2] for text in texts], caches, logits="last")
    assert first is not None
    assert second is not None
    for text, many, last in zip(texts, first, second, strict=True):
        alone = model.logits(np.concatenate([text, text[:2]]))
        np.testing.assert_array_equal(many, alone[: len(text)])
        np.testing.assert_array_equal(last, alone[-1])


def test_order_of_kv_heads_matters(tmp_path: Path) -> None:
    """Swapping the two KV heads' rows must change the result: a transposed head order cannot pass unseen."""
    model = load(tmp_path, KINDS["grouped"], driver="eager")  # a recorded plan would keep the old weights
    ids = ids_of(8)
    plain = model.logits(ids)
    for blk in model._bound.blk:
        for name in ("attn_k", "attn_v"):
            matrix = getattr(blk, name)
            half = matrix.shape[0] // 2
            swapped = np.concatenate([matrix.packed[half:], matrix.packed[:half]])
            object.__setattr__(matrix, "packed", swapped)
    assert not np.array_equal(model.logits(ids), plain)
