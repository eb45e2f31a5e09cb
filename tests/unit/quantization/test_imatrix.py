"""Importance files: what is read, what is refused, and what the quantized file says about it."""

import struct

import numpy as np
import pytest

from minillama import gguf
from minillama.errors import GGUFError, InvalidInputError
from minillama.gguf import GGMLType
from minillama.quantization import quantize_file, read_imatrix
from tests.importance_files import write_imatrix
from tests.tiny_models import TinyModel

SUMS = {"a.weight": np.array([2, 4, 9], np.float32), "b.weight": np.array([1, 2, 3, 4], np.float32)}


def older_format(entries, trailer=b""):
    pieces = [struct.pack("<i", len(entries))]
    for name, n_calls, values in entries:
        pieces += [struct.pack("<i", len(name)), name, struct.pack("<ii", n_calls, len(values))]
        pieces.append(np.asarray(values, "<f4").tobytes())
    return b"".join(pieces) + trailer


def test_values_are_sums_over_counts(tmp_path):
    path = write_imatrix(tmp_path / "x.gguf", SUMS, {"a.weight": [2.4], "b.weight": [2, 0]}, datasets=["wiki", "code"])
    matrix = read_imatrix(path)
    assert (matrix.path, matrix.datasets, matrix.n_chunks) == (str(path), ("wiki", "code"), 7)
    assert {name: values.tolist() for name, values in matrix.values.items()} == {
        "a.weight": [1, 2, 4.5],  # counts are whole
        "b.weight": [0.5, 1, 1, 1],  # an expert that was never used counts evenly
    }


def test_the_older_format(tmp_path):
    path = tmp_path / "imatrix.dat"
    trailer = struct.pack("<ii", 5, 4) + b"wiki"
    for end, datasets, n_chunks in ((trailer, ("wiki",), 5), (trailer[:4], (), 5), (b"", (), 0)):
        path.write_bytes(older_format([(b"a.weight", 2, [3, 5]), (b"b.weight", 0, [7])], end))
        matrix = read_imatrix(path)
        assert (matrix.datasets, matrix.n_chunks) == (datasets, n_chunks)
        assert {k: v.tolist() for k, v in matrix.values.items()} == {"a.weight": [1.5, 2.5], "b.weight": [7]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "number of entries takes 4 bytes"),
        (bytes(40), "0 entries declared: the file is no importance matrix"),
        (b"PK\x03\x04" + bytes(40), "entries declared"),
        (older_format([(b"a", 1, [1.0])])[:-1], "values takes 4 bytes, but the file has 3 left"),
        (struct.pack("<ii", 1, 2**31 - 1) + bytes(20), "name takes 2147483647 bytes"),
        (struct.pack("<iicii", 1, 1, b"a", 1, -1), "values takes 17179869180 bytes"),
    ],
)
def test_damaged_older_files(tmp_path, content, message):
    path = tmp_path / "imatrix.dat"
    path.write_bytes(content)
    with pytest.raises(GGUFError, match=message):
        read_imatrix(path)


def test_files_that_are_no_importance_matrix(tmp_path):
    path = TinyModel(n_layer=1).write(tmp_path / "model.gguf")
    with pytest.raises(GGUFError, match=r"'imatrix\.datasets' is missing: the file is no importance matrix"):
        read_imatrix(path)
    empty = write_imatrix(tmp_path / "empty.gguf", {}, {})
    with pytest.raises(GGUFError, match="no importances"):
        read_imatrix(empty)


@pytest.mark.parametrize(
    ("sums", "counts", "message"),
    [
        ({"a": np.ones(4, np.float32)}, {}, r"tensor 'a\.counts' is missing"),
        ({}, {"a": [1]}, r"tensor 'a\.in_sum2' is missing"),
        ({"a": np.ones(4, np.float16)}, {"a": [1]}, r"tensor 'a\.in_sum2' has type F16"),
        ({"a": np.ones(4, np.float32)}, {"a": [1, 2, 3]}, "4 sums and 3 counts"),
        ({"a": np.ones(4, np.float32)}, {"a": []}, "4 sums and 0 counts"),
    ],
)
def test_incomplete_importances(tmp_path, sums, counts, message):
    path = write_imatrix(tmp_path / "x.gguf", sums, counts)
    with pytest.raises(GGUFError, match=message):
        read_imatrix(path)


@pytest.fixture
def source(tmp_path):
    model = TinyModel(n_layer=1, matrix_type=GGMLType.F16, metadata={"quantize.imatrix.file": "an older one"})
    return model.write(tmp_path / "source.gguf")


def test_the_target_says_which_importances_it_was_made_with(source, tmp_path):
    name = "blk.0.attn_q.weight"
    sums = {name: np.linspace(0, 9, 256).astype(np.float32), "elsewhere": np.ones(2, np.float32)}
    path = write_imatrix(tmp_path / ("i" * 150), sums, {name: [2], "elsewhere": [1]}, datasets=["wiki"])
    target = quantize_file(source, tmp_path / "q4.gguf", "Q4_K_S", importance=read_imatrix(path))
    plain = quantize_file(source, tmp_path / "plain.gguf", "Q4_K_S", importance={name: sums[name] / 2})
    with gguf.open(target) as file, gguf.open(plain) as other:
        assert {k: v for k, v in file.metadata.items() if k.startswith("quantize.")} == {
            "quantize.imatrix.file": str(path)[:127],
            "quantize.imatrix.dataset": "wiki",
            "quantize.imatrix.entries_count": 2,
            "quantize.imatrix.chunks_count": 7,
        }
        assert all((file.tensors[n].data == other.tensors[n].data).all() for n in other.tensors)


def test_importances_of_another_model_are_refused(source, tmp_path):
    path = write_imatrix(tmp_path / "x.gguf", {"blk.0.attn_q.weight": SUMS["a.weight"]}, {"blk.0.attn_q.weight": [1]})
    with pytest.raises(InvalidInputError, match=r"importance of tensor 'blk\.0\.attn_q\.weight'.*\(3,\)"):
        quantize_file(source, tmp_path / "q4.gguf", "Q4_K_S", importance=read_imatrix(path))
    assert not (tmp_path / "q4.gguf").exists()
