"""LoRA adapters: what they do, for whom, and which files are refused."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import minillama as ml
from minillama import gguf
from minillama.errors import AdapterError, CacheFileError, GGUFError, InvalidInputError, UnsupportedError
from minillama.gguf import GGMLType
from minillama.model.adapters import Adapter
from minillama.model.model import Model
from tests.tiny_adapters import EMBEDDING, updatable, write_adapter
from tests.tiny_families import FAMILIES
from tests.tiny_models import TinyModel

IDS = np.random.default_rng(4).integers(0, 256, 40)
KINDS = ("llama", "olmoe")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models, and two adapters of each."""
    made = tmp_path_factory.mktemp("adapters")
    for kind in KINDS:
        path = FAMILIES[kind].write(made / f"{kind}.gguf", "quantized")
        write_adapter(made / f"{kind}-0.gguf", path, seed=1, types=(GGMLType.F16, GGMLType.Q8_0))
        write_adapter(made / f"{kind}-1.gguf", path, seed=2)
    return made


def loaded(folder: Path, kind: str = "llama", **options: object) -> tuple[Model, Adapter, Adapter]:
    model = Model(gguf.open(folder / f"{kind}.gguf"), **options)  # type: ignore[arg-type]
    return model, *(model.load_adapter(folder / f"{kind}-{i}.gguf") for i in range(2))  # type: ignore[return-value]


@pytest.mark.parametrize("kind", KINDS)
def test_drivers_backends_threads_and_chunks_give_the_same_bits(folder: Path, kind: str) -> None:
    model, first, second = loaded(folder, kind, driver="eager", threads=1)
    adapters = [(first, 0.5), (second, 2.0)]
    whole = model.logits(IDS, adapters=adapters)
    assert (whole != model.logits(IDS)).any(axis=1).all()
    for options in ({"threads": 1}, {"threads": 3}, {"driver": "eager"}, {"backend": "reference"}):
        other, *theirs = loaded(folder, kind, **options)
        other.adapters = list(zip(theirs, (0.5, 2.0), strict=True))
        np.testing.assert_array_equal(other.logits(IDS), whole)
        for size in (1, 7):
            cache = other.new_cache()
            parts = [other.forward(IDS[i : i + size], cache, logits="all") for i in range(0, len(IDS), size)]
            np.testing.assert_array_equal(np.concatenate(parts), whole)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("logits", ["all", "last"])
@pytest.mark.parametrize("driver", ["eager", "captured"])
def test_sequences_of_a_batch_have_their_own(folder: Path, kind: str, logits: str, driver: str) -> None:
    model, first, second = loaded(folder, kind, driver=driver)
    choices = [[], [first], [first], [(second, 0.5), first], [], [first, (second, 0.5)]]
    for order in itertools.islice(itertools.permutations(choices), 0, 720, 119):
        caches = [model.new_cache(adapters=adapters) for adapters in order]
        for lengths in ((3, 1, 5, 2, 4, 1), (1,) * 6):
            ids = [IDS[: n + 1][-n:] for n in lengths]
            alone = []
            for cache, part in zip(caches, ids, strict=True):
                alone.append(model.forward(part, cache.fork(), logits=logits))
            together = model.forward_batch(ids, caches, logits=logits)
            assert together is not None
            for ours, expected in zip(together, alone, strict=True):
                np.testing.assert_array_equal(ours, expected)


def test_the_update_is_scale_times_b_a(folder: Path) -> None:
    """Of one weight, against float64 and against the rest of the model: only what follows the weight changes."""
    path = folder / "llama.gguf"
    name = "blk.1.ffn_up.weight"
    write_adapter(folder / "one.gguf", path, names=[name], alpha=16.0, rank=8)
    model = ml.load(path)
    adapter = model.load_adapter(folder / "one.gguf")
    assert adapter.weights == (name,)
    points = ["blk.1.ffn_norm", "blk.1.ffn_up_no_bias"]
    before, after = (model.trace(list(IDS), points, adapters=a) for a in ([], [(adapter, 0.25)]))
    np.testing.assert_array_equal(before[points[0]], after[points[0]])
    tensors = gguf.open(folder / "one.gguf").tensors
    a, b = (np.frombuffer(tensors[f"{name}.lora_{half}"].data, np.float32) for half in "ab")
    a, b = a.reshape(8, -1).astype(np.float64), b.reshape(-1, 8).astype(np.float64)
    expected = before[points[1]] + 0.25 * 16 / 8 * (before[points[0]] @ a.T) @ b.T
    # float32 sums of 256 products; the rank-8 update is of the size of the product itself.
    np.testing.assert_allclose(after[points[1]], expected, rtol=1e-4, atol=1e-4)


def test_scale_0_is_no_adapter(folder: Path) -> None:
    model, first, second = loaded(folder)
    np.testing.assert_array_equal(model.logits(IDS, adapters=[(first, 0), (second, -0.0)]), model.logits(IDS))
    assert model.new_cache(adapters=[(first, 0.0)]).identity == model.new_cache().identity


def test_adapters_of_the_model_are_those_of_new_sequences(folder: Path) -> None:
    model, first, second = loaded(folder)
    plain, adapted = model.logits(IDS), model.logits(IDS, adapters=[first])
    before = model.new_cache()
    model.adapters = [first]
    assert model.adapters == ((first, 1.0),)
    np.testing.assert_array_equal(model.logits(IDS), adapted)
    np.testing.assert_array_equal(model.logits(IDS, adapters=[]), plain)
    np.testing.assert_array_equal(model.forward(IDS, before, logits="all"), plain)
    fork = model.new_cache().fork()
    model.adapters = []
    np.testing.assert_array_equal(model.forward(IDS, fork, logits="all"), adapted)
    assert (model.logits(IDS, adapters=[first, second]) != adapted).any()


def test_text_tracing_and_stepping_use_them(folder: Path) -> None:
    path = folder / "llama.gguf"
    model = ml.load(path, adapters=[(folder / "llama-0.gguf", 0.5), folder / "llama-1.gguf"])
    plain = ml.load(path)
    (first, _), (second, _) = model.adapters
    ids = [int(i) for i in IDS]
    expected = model.logits(ids)
    np.testing.assert_array_equal(expected, model.logits(ids, adapters=[(first, 0.5), second]))
    trace = model.trace(ids, "blk.*.l_out")
    np.testing.assert_array_equal(trace.logits, expected)
    resumed = model.forward_from("blk.1.l_out", trace["blk.1.l_out"], model.new_cache())
    np.testing.assert_array_equal(resumed, expected)
    np.testing.assert_array_equal(model.step(ids).finish(), expected)
    np.testing.assert_array_equal(plain.step(ids, adapters=[]).finish(), plain.logits(ids))
    assert model.generate(ids, max_tokens=8).tokens != plain.generate(ids, max_tokens=8).tokens
    assert model.generate(ids, max_tokens=8, adapters=[]).tokens == plain.generate(ids, max_tokens=8).tokens
    with pytest.raises(InvalidInputError, match="cache and adapters"):
        model.generate(ids, cache=model.new_cache(), adapters=[])


def test_a_saved_cache_knows_its_adapters(folder: Path, tmp_path: Path) -> None:
    model, first, second = loaded(folder)
    cache = model.new_cache(adapters=[(first, 0.5)])
    model.forward(IDS[:20], cache, logits=None)
    cache.save(tmp_path / "cache.kv")
    again, theirs, _ = loaded(folder)
    read = again.load_cache(tmp_path / "cache.kv", adapters=[(theirs, 0.5)])
    np.testing.assert_array_equal(again.forward([5], read), model.forward([5], cache))
    for adapters in ([], [(first, 0.25)], [(second, 0.5)], [(first, 0.5), second]):
        with pytest.raises(CacheFileError, match="other settings or adapters"):
            model.load_cache(tmp_path / "cache.kv", adapters=adapters)


def test_what_is_no_adapter_of_the_model_is_refused(folder: Path) -> None:
    model, first, _ = loaded(folder)
    _, foreign, _ = loaded(folder)
    for adapters, message in (
        ([foreign], "another model"),
        ([first, (first, 0.5)], "twice"),
        ([(first, float("nan"))], "scale"),
        ([(first, "1")], "scale"),
        (["adapter.gguf"], "load_adapter"),
        (first, "a list of adapters"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            model.new_cache(adapters=adapters)  # type: ignore[arg-type]


def rewritten(source: Path, path: Path, change: Callable[[dict, dict], None], architecture: str = "llama") -> Path:
    """An adapter's file with other metadata and other tensors."""
    with gguf.open(source) as file:
        metadata = {k: v for k, v in file.metadata.items() if k != "general.architecture"}
        tensors = {name: (t.data.reshape(-1), t.type, t.shape) for name, t in file.tensors.items()}
        change(metadata, tensors)
        with gguf.Writer(path, architecture) as writer:
            for key, value in metadata.items():
                writer.add(key, value)
            for name, (data, type_, shape) in tensors.items():
                writer.add_tensor(name, data.view(np.uint8), type_, shape)
    return path


UP = "blk.0.ffn_up.weight"
BAD: dict[str, tuple[Callable[[dict, dict], object], type[Exception], str]] = {
    "no adapter": (lambda m, _: m.update({"general.type": "model"}), AdapterError, "general.type is 'model'"),
    "no kind": (lambda m, _: m.pop("adapter.type"), AdapterError, "adapter.type is None, 'lora' is wanted"),
    "alpha": (lambda m, _: m.update({"adapter.lora.alpha": "x"}), AdapterError, "adapter.lora.alpha is 'x'"),
    "aLoRA": (lambda m, _: m.update({"adapter.alora.invocation_tokens": [1]}), UnsupportedError, "aLoRA"),
    "half": (lambda _, t: t.pop(f"{UP}.lora_b"), AdapterError, f"'{UP}' has no .lora_b"),
    "other half": (lambda _, t: t.pop(f"{UP}.lora_a"), AdapterError, f"'{UP}' has no .lora_a"),
    "stranger": (
        lambda _, t: t.update({k.replace("blk.0", "blk.9"): v for k, v in list(t.items())}), AdapterError,
        "which the model does not have",
    ),
    "norm": (
        lambda _, t: t.update({k.replace(UP, "output_norm.weight"): v for k, v in list(t.items())}), UnsupportedError,
        "cannot be updated",
    ),
    "no update": (lambda _, t: t.update({"magnitude": next(iter(t.values()))}), AdapterError, "'magnitude' is no half"),
    "nothing": (lambda _, t: t.clear(), AdapterError, "no updates"),
    "shape": (
        lambda _, t: t.update({f"{UP}.lora_a": t["blk.0.ffn_down.weight.lora_a"]}), AdapterError,
        rf"'{UP}.lora_a' has shape \(32, 512\), the model wants \(32, 256\)",
    ),
    "rank": (
        lambda _, t: t.update({f"{UP}.lora_b": (np.zeros(512 * 4, np.float32), GGMLType.F32, (512, 4))}), AdapterError,
        r"shape \(32, 256\), the model wants \(4, 256\)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_adapters_are_refused(folder: Path, tmp_path: Path, case: str) -> None:
    change, error, message = BAD[case]
    model = loaded(folder)[0]
    path = rewritten(folder / "llama-1.gguf", tmp_path / "bad.gguf", lambda m, t: change(m, t) and None)
    with pytest.raises(error, match=message) as raised:
        model.load_adapter(path)
    assert "bad.gguf" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_an_adapter_of_another_architecture_is_refused(folder: Path) -> None:
    with pytest.raises(AdapterError, match=r"general\.architecture is 'olmoe', 'llama' is wanted"):
        loaded(folder)[0].load_adapter(folder / "olmoe-0.gguf")


def test_a_truncated_adapter_is_refused(folder: Path, tmp_path: Path) -> None:
    data = (folder / "llama-1.gguf").read_bytes()
    for n in (100, len(data) // 2, len(data) - 1):
        (tmp_path / "cut.gguf").write_bytes(data[:n])
        with pytest.raises(GGUFError):
            loaded(folder)[0].load_adapter(tmp_path / "cut.gguf")


def test_an_adapter_cut_short_while_mapped_gives_an_error(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "mapped.gguf"
    path.write_bytes((folder / "llama-1.gguf").read_bytes())
    model = loaded(folder)[0]
    adapter = model.load_adapter(path)
    model.logits(IDS, adapters=[adapter])
    with path.open("r+b") as file:
        file.truncate(1000)
    with pytest.raises(GGUFError, match=r"mapped\.gguf"):
        model.logits(IDS, adapters=[adapter])


def test_norms_in_an_adapter_are_named_in_a_warning(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    norm = (np.ones(256, np.float32), GGMLType.F32, (256,))
    path = rewritten(
        folder / "llama-1.gguf", tmp_path / "norm.gguf", lambda _, t: t.update({"blk.0.attn_norm.weight": norm})
    )
    model = loaded(folder)[0]
    adapter = model.load_adapter(path)
    assert "'blk.0.attn_norm.weight' not used" in caplog.text
    assert len(adapter) == len(updatable(folder / "llama.gguf"))


def test_the_embedding_of_a_tied_model_cannot_be_updated(tmp_path: Path) -> None:
    path = TinyModel(tied=True, n_layer=1).write(tmp_path / "tied.gguf")
    untied = TinyModel(n_layer=1).write(tmp_path / "untied.gguf")
    adapter = write_adapter(tmp_path / "adapter.gguf", untied, names=[EMBEDDING])
    assert Model(gguf.open(untied)).load_adapter(adapter).weights == (EMBEDDING,)
    with pytest.raises(UnsupportedError, match="which is the head as well"):
        Model(gguf.open(path)).load_adapter(adapter)


def test_an_adapter_is_no_model(folder: Path) -> None:
    with pytest.raises(UnsupportedError, match="it is an adapter, not a model"):
        ml.load(folder / "llama-0.gguf")
