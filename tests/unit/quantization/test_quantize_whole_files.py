"""Whole files: what is refused, what is copied, and that the target is whole or not there.

Every byte is compared with llama.cpp's quantizer in ``tests/reference/test_quantize_files.py``.
"""

import tracemalloc

import numpy as np
import pytest

import minillama as ml
from minillama.errors import InvalidInputError, UnsupportedError
from minillama.gguf import GGMLType, Writer
from minillama.quantization import quantize_file
from minillama.quantization.mixes import MIXES
from tests.tiny_models import TinyModel

F16 = {"matrix_type": GGMLType.F16, "embedding_type": GGMLType.F16}


@pytest.fixture
def source(tmp_path):
    return TinyModel(n_layer=1, metadata={"general.alignment_of_stars": [1, 2], "split.no": 0}, **F16).write(
        tmp_path / "source.gguf"
    )


@pytest.mark.parametrize("mix", ["Q8_0", "q4_k_m", "BF16"])
def test_every_tensor_is_what_the_array_function_makes(mix, source, tmp_path):
    target = quantize_file(source, tmp_path / "target.gguf", mix, threads=3)
    with ml.gguf.open(source) as before, ml.gguf.open(target) as after:
        assert set(after.tensors) == set(before.tensors)
        for name, tensor in after.tensors.items():
            was = before.tensors[name]
            assert tensor.shape == was.shape
            if len(tensor.shape) == 1:
                assert tensor.type is GGMLType.F32
                np.testing.assert_array_equal(tensor.data, was.data)
            else:
                values = ml.dequantize(was.data, was.type.name)
                np.testing.assert_array_equal(tensor.data, ml.quantize(values, tensor.type.name))


def test_metadata_is_copied_and_says_what_was_done(source, tmp_path):
    target = quantize_file(source, tmp_path / "target.gguf", "Q4_K_M")
    with ml.gguf.open(source) as before, ml.gguf.open(target) as after:
        assert (after.metadata["general.file_type"], after.metadata["general.quantization_version"]) == (15, 2)
        assert list(after.metadata)[-2:] == ["general.quantization_version", "general.file_type"]
        assert "split.no" not in after.metadata
        for key in set(before.metadata) - {"split.no"}:
            assert after.value_type(key) is before.value_type(key)
            np.testing.assert_array_equal(after.metadata[key], before.metadata[key])


def test_the_file_type_is_that_of_the_last_mix(source, tmp_path):
    first = quantize_file(source, tmp_path / "first.gguf", "Q8_0")
    again = quantize_file(first, tmp_path / "again.gguf", "Q4_0", allow_requantize=True)
    with ml.gguf.open(again) as file:
        assert file.metadata["general.file_type"] == MIXES["Q4_0"].file_type


def test_requantizing_only_when_allowed(source, tmp_path):
    first = quantize_file(source, tmp_path / "first.gguf", "Q8_0")
    with pytest.raises(InvalidInputError, match=r"'output\.weight' has type Q8_0, Q6_K is wanted.*allow"):
        quantize_file(first, tmp_path / "again.gguf", "Q4_K_S")
    assert not (tmp_path / "again.gguf").exists()
    assert quantize_file(first, tmp_path / "same.gguf", "Q8_0").read_bytes() == first.read_bytes()


def test_importances_change_their_tensor_only(source, tmp_path):
    name = "blk.0.attn_q.weight"
    importance = {name: np.linspace(0, 9, 256), "not.in.the.file": np.ones(3)}
    plain = quantize_file(source, tmp_path / "plain.gguf", "Q4_K_S")
    weighted = quantize_file(source, tmp_path / "weighted.gguf", "Q4_K_S", importance=importance)
    with ml.gguf.open(plain) as a, ml.gguf.open(weighted) as b:
        differing = [n for n in a.tensors if (a.tensors[n].data != b.tensors[n].data).any()]
    assert differing == [name]
    with pytest.raises(InvalidInputError, match=r"importance of tensor 'blk\.0\.attn_q\.weight'.*\(3,\).*\(256,\)"):
        quantize_file(source, tmp_path / "no.gguf", "Q4_K_S", importance={name: np.ones(3)})


def test_progress_goes_from_nothing_to_all(source, tmp_path):
    seen = []
    quantize_file(source, tmp_path / "target.gguf", "Q8_0", progress=lambda *step: seen.append(step))
    with ml.gguf.open(source) as file:
        total = sum(tensor.nbytes for tensor in file.tensors.values())
        assert [name for _, _, name in seen[:-1]] == sorted(file.tensors, key=lambda n: (n.startswith("blk"), n))
    assert seen[0][0] == 0
    assert seen[-1] == (total, total, "target.gguf")
    assert [done for done, _, _ in seen] == sorted(done for done, _, _ in seen)
    assert {step[1] for step in seen} == {total}


def test_an_interrupted_run_leaves_nothing(source, tmp_path):
    target = tmp_path / "target.gguf"
    target.write_bytes(b"what was there before")

    def interrupt(done, total, name):
        if done > total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantize_file(source, target, "Q8_0", progress=interrupt)
    assert target.read_bytes() == b"what was there before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source.gguf", "target.gguf"]


def test_values_that_do_not_fit_name_their_tensor(tmp_path):
    source = TinyModel(n_layer=1).write(tmp_path / "source.gguf")
    spoiled = tmp_path / "spoiled.gguf"
    for value, message in ((np.nan, r"rows from 0 has 1 of 65536 values"), (1e30, "Q4_0 blocks would not be finite")):
        with ml.gguf.open(source) as file, Writer(spoiled) as writer:
            for key, entry in file.metadata.items():
                writer.add(key, entry)
            for name, tensor in file.tensors.items():
                data = tensor.data.copy().view(np.float32)
                if name == "blk.0.attn_q.weight":
                    data[3, 5] = value
                writer.add_tensor(name, data.reshape(tensor.shape))
        with pytest.raises(InvalidInputError, match=rf"'blk\.0\.attn_q\.weight': .*{message}"):
            quantize_file(spoiled, tmp_path / "target.gguf", "Q4_0")
        assert not (tmp_path / "target.gguf").exists()


def test_refusals_before_anything_is_done(source, tmp_path):
    with pytest.raises(UnsupportedError, match=r"mix 'Q4_K' .*supported are F32, F16.*Q4_K_M"):
        quantize_file(source, tmp_path / "target.gguf", "Q4_K")
    with pytest.raises(InvalidInputError, match="the target is the source"):
        quantize_file(source, source, "Q8_0")
    with pytest.raises(InvalidInputError, match=r"folder .* does not exist"):
        quantize_file(source, tmp_path / "nowhere" / "target.gguf", "Q8_0")
    for change, message in (
        ({"architecture": "falcon"}, "architecture 'falcon' are not known"),
        ({"metadata": {"llama.expert_count": 8}}, "with experts"),
    ):
        model = TinyModel(n_layer=1, **change, **F16).write(tmp_path / "other.gguf")
        with pytest.raises(UnsupportedError, match=message):
            quantize_file(model, tmp_path / "target.gguf", "Q4_K_M")


def test_types_that_cannot_be_decoded_are_named(tmp_path):
    source = tmp_path / "source.gguf"
    with Writer(source, "llama") as writer:
        for key, value in {"block_count": 1, "attention.head_count": 1}.items():
            writer.add(f"llama.{key}", value)
        writer.add_tensor("blk.0.attn_q.weight", np.zeros((2, 256), np.int32))
    with pytest.raises(UnsupportedError, match=r"'blk\.0\.attn_q\.weight' has type I32, which cannot be decoded"):
        quantize_file(source, tmp_path / "target.gguf", "Q8_0")


def test_what_minillama_runs_it_runs_quantized(tmp_path):
    source = TinyModel(n_layer=2, **F16).write(tmp_path / "source.gguf")
    target = quantize_file(source, tmp_path / "target.gguf", "Q6_K")
    ids = [5, 6, 7, 8]
    logits, quantized = (ml.load(path).logits(ids) for path in (source, target))
    assert np.corrcoef(logits.ravel(), quantized.ravel())[0, 1] > 0.98


def test_tensors_are_not_in_memory_together(tmp_path):
    source, size = tmp_path / "large.gguf", 1 << 21
    with Writer(source, "llama") as writer:
        for i in range(16):
            writer.add_tensor_later(f"blk.{i}.x.weight", GGMLType.F16, (1024, 1024), lambda: [np.zeros(size, "u1")])
    quantize_file(source, tmp_path / "target.gguf", "BF16")  # kernels are compiled
    tracemalloc.start()
    quantize_file(source, tmp_path / "target.gguf", "BF16")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10 * size  # one tensor's float32 values and their checks; all results would be 16 on top
