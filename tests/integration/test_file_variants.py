"""One model written in every way a file may have it: the logits are the same."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minillama import gguf
from minillama.errors import GGUFError, UnsupportedError
from minillama.generate import LanguageModel
from minillama.gguf import GGMLType, ValueType
from minillama.model.model import Model
from tests.tiny_families import FAMILIES, TinyFamily
from tests.tiny_models import TinyModel

IDS = [1, 17, 200, 33, 5]
TINY = TinyModel(matrix_type=GGMLType.Q4_K, embedding_type=GGMLType.F16)
INTEGERS = [kind for kind in ValueType if kind.name.startswith(("INT", "UINT"))]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return TINY.write(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest.fixture(scope="module")
def expected(source: Path) -> np.ndarray:
    return Model(gguf.open(source)).logits(IDS)


def rewritten(source: Path, path: Path, changes: dict[str, Any], **options: Any) -> Path:
    """The file with other metadata; a pair is a value and its type."""
    with gguf.open(source) as file, gguf.Writer(path, **options) as writer:
        for key, value in {**file.metadata, **changes}.items():
            writer.add(key, *(value if isinstance(value, tuple) else (value,)))
        for tensor in file.tensors.values():
            writer.add_tensor(tensor.name, tensor.data, tensor.type, tensor.shape)
    return path


def assert_same(path: Path, expected: np.ndarray, **options: Any) -> None:
    np.testing.assert_array_equal(Model(gguf.open(path, **options)).logits(IDS), expected)


@pytest.mark.parametrize("kind", INTEGERS, ids=lambda kind: kind.name)
def test_sizes_of_any_integer_type(tmp_path: Path, source: Path, expected: np.ndarray, kind: ValueType) -> None:
    with gguf.open(source) as file:
        integers = {key: value for key, value in file.metadata.items() if type(value) is int}
    largest = np.iinfo(np.dtype(kind.name.lower())).max
    changes = {key: (value, kind) for key, value in integers.items() if value <= largest}
    assert {"llama.block_count", "llama.attention.head_count"} <= set(changes)
    assert_same(rewritten(source, tmp_path / "file.gguf", changes), expected)


@pytest.mark.parametrize("kind", [ValueType.UINT32, ValueType.INT64, ValueType.FLOAT64], ids=lambda kind: kind.name)
def test_a_rotary_base_of_any_type_of_number(
    tmp_path: Path, source: Path, expected: np.ndarray, kind: ValueType
) -> None:
    assert_same(rewritten(source, tmp_path / "file.gguf", {"llama.rope.freq_base": (10000, kind)}), expected)


@pytest.mark.parametrize("kind", [ValueType.UINT8, ValueType.INT64, ValueType.UINT64], ids=lambda kind: kind.name)
def test_arrays_of_any_integer_type(tmp_path: Path, source: Path, expected: np.ndarray, kind: ValueType) -> None:
    with gguf.open(source) as file:
        types = file.metadata["tokenizer.ggml.token_type"].tolist()
    changes = {"llama.attention.head_count_kv": ([2, 2], kind), "tokenizer.ggml.token_type": (types, kind)}
    path = rewritten(source, tmp_path / "file.gguf", changes)
    assert_same(path, expected)
    text = "the end<|im_end|>"
    ids = [LanguageModel(gguf.open(p)).tokenizer.encode(text, parse_special=True) for p in (path, source)]
    assert ids[0] == ids[1]


@pytest.mark.parametrize("alignment", [1, 8, 64, 4096])
@pytest.mark.parametrize("use_mmap", [True, False])
def test_alignments(tmp_path: Path, source: Path, expected: np.ndarray, alignment: int, use_mmap: bool) -> None:
    path = rewritten(source, tmp_path / "file.gguf", {}, alignment=alignment)
    assert_same(path, expected, use_mmap=use_mmap)


def test_version_2(tmp_path: Path, source: Path, expected: np.ndarray) -> None:
    assert_same(rewritten(source, tmp_path / "file.gguf", {}, version=2), expected)


def test_big_endian(tmp_path: Path, source: Path, expected: np.ndarray) -> None:
    path = tmp_path / "big.gguf"
    path.write_bytes(source.read_bytes())
    convert = "from gguf.scripts.gguf_convert_endian import main; main()"
    subprocess.run([sys.executable, "-c", convert, path, "big"], input="YES\n", text=True, check=True)
    assert_same(path, expected)
    with gguf.open(path) as file:
        assert LanguageModel(file).tokenizer.encode("the and")


def split(source: Path, folder: Path, names: Sequence[Sequence[str]]) -> list[Path]:
    """The file in shards that hold these tensors, as llama-gguf-split writes them."""
    paths = []
    with gguf.open(source) as file:
        for i, part in enumerate(names):
            paths.append(folder / f"tiny-{i + 1:05d}-of-{len(names):05d}.gguf")
            with gguf.Writer(paths[-1]) as writer:
                for key, value in (file.metadata if i == 0 else {}).items():
                    writer.add(key, value)
                writer.add("split.no", i, ValueType.UINT16)
                writer.add("split.count", len(names), ValueType.UINT16)
                writer.add("split.tensors.count", len(file.tensors), ValueType.INT32)
                for tensor in (file.tensors[name] for name in part):
                    writer.add_tensor(tensor.name, tensor.data, tensor.type, tensor.shape)
    return paths


@pytest.mark.parametrize("opened", [0, 1, 2])
def test_split(tmp_path: Path, source: Path, expected: np.ndarray, opened: int) -> None:
    with gguf.open(source) as file:
        names = list(file.tensors)
    paths = split(source, tmp_path, [names[:1], names[1:9], names[9:]])
    assert_same(paths[opened], expected)
    paths[1].unlink()
    with pytest.raises(GGUFError, match=r"missing beside it: tiny-00002-of-00003\.gguf"):
        gguf.open(paths[opened] if opened != 1 else paths[0])


def test_weights_beyond_4_gib(tmp_path: Path, source: Path, expected: np.ndarray, caplog: Any) -> None:
    hole = 4 * 2**30 + 32
    with gguf.open(source) as file:
        writer = gguf.Writer(tmp_path / "large.gguf")
        for key, value in file.metadata.items():
            writer.add(key, value)
        zeros = np.zeros(hole // 48, np.uint8)
        assert 48 * len(zeros) == hole
        writer.add_tensor_later("hole", GGMLType.I8, (hole,), lambda: (zeros for _ in range(48)))
        for tensor in file.tensors.values():
            writer.add_tensor(tensor.name, tensor.data, tensor.type, tensor.shape)
        with writer.path.open("wb") as sparse:
            for chunk in writer._chunks():
                if len(chunk) == len(zeros):
                    sparse.seek(len(zeros), os.SEEK_CUR)
                else:
                    sparse.write(chunk)
    assert writer.path.stat().st_size > hole
    assert_same(writer.path, expected)
    assert "1 tensor ('hole') not used by this architecture" in caplog.text
    writer.path.unlink()


# --- sizes that differ from layer to layer ---------------------------------------------------------------------------


def as_architecture(folder: Path, tiny: TinyFamily, architecture: str) -> Path:
    """A family's file under another architecture's name."""
    source = tiny.write(folder / "source.gguf", "quantized")
    path = folder / f"{architecture}.gguf"
    with gguf.open(source) as file, gguf.Writer(path, architecture) as writer:
        for key, value in file.metadata.items():
            if key != "general.architecture":
                writer.add(key.replace(f"{tiny.architecture}.", f"{architecture}."), value)
        for tensor in file.tensors.values():
            writer.add_tensor(tensor.name, tensor.data, tensor.type, tensor.shape)
    return path


def test_a_llama_with_layers_of_unequal_sizes(tmp_path: Path) -> None:
    """llama.cpp computes such layers in deci (tests/reference/test_families.py) and refuses them in llama."""
    deci = FAMILIES["deci"]
    expected = Model(gguf.open(deci.write(tmp_path / "deci.gguf", "quantized"))).logits(IDS)
    path = as_architecture(tmp_path, deci, "llama")
    for options in ({}, {"driver": "eager"}, {"backend": "reference"}):
        np.testing.assert_array_equal(Model(gguf.open(path), **options).logits(IDS), expected)


def test_other_families_refuse_them(tmp_path: Path) -> None:
    path = as_architecture(tmp_path, FAMILIES["deci"], "olmo2")
    message = "n_ff, n_head, n_head_kv differ from layer to layer, which is supported in llama, deci, not in olmo2"
    with pytest.raises(UnsupportedError, match=message):
        Model(gguf.open(path))


def test_arrays_of_equal_numbers_are_like_one_number(tmp_path: Path) -> None:
    tiny = FAMILIES["gemma2"]
    equal = {"attention.head_count": [4] * 3, "attention.head_count_kv": [2] * 3, "feed_forward_length": [512] * 3}
    logits = [
        Model(gguf.open(variant.write(tmp_path / "tiny.gguf", "f16"))).logits(IDS)
        for variant in (tiny, replace(tiny, metadata={**tiny.metadata, **equal}))
    ]
    np.testing.assert_array_equal(*logits)


def test_caches_of_layers_of_unequal_sizes(tmp_path: Path) -> None:
    model = Model(gguf.open(FAMILIES["deci"].write(tmp_path / "deci.gguf", "f16")))
    ids = np.random.default_rng(3).integers(0, 256, 70)
    cache = model.new_cache()
    model.forward(ids[:66], cache, logits=None)
    twin = cache.fork()
    for sequence in (cache, twin):
        np.testing.assert_array_equal(model.forward(ids[66:], sequence), model.logits(ids)[-1])
    assert [keys.shape[1] for keys in model.new_cache().pool.keys] == [2, 2, 1]
