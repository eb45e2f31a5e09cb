"""The writer: what it infers, what it refuses, and round trips through both readers."""

import math
import os
from pathlib import Path

import gguf as gguf_py
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import minillama.gguf as ours
from minillama.errors import InvalidInputError
from minillama.gguf import GGMLType, ValueType, Writer

RNG = np.random.default_rng(7)


def written(folder: Path, key: str = "k", value: object = None, value_type: ValueType | None = None) -> ours.GGUFFile:
    writer = Writer(folder / "file.gguf")
    writer.add(key, value, value_type)
    return ours.open(writer.write())


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (True, ValueType.BOOL),
        (0, ValueType.UINT32),
        (2**32 - 1, ValueType.UINT32),
        (-1, ValueType.INT32),
        (2**32, ValueType.UINT64),
        (-(2**31) - 1, ValueType.INT64),
        (0.5, ValueType.FLOAT32),
        ("text", ValueType.STRING),
        (np.uint8(3), ValueType.UINT8),
        (np.float64(0.1), ValueType.FLOAT64),
        (np.bool_(True), ValueType.BOOL),
        (GGMLType.Q4_K, ValueType.UINT32),
    ],
)
def test_scalar_types(tmp_path, value, expected):
    with written(tmp_path, value=value) as file:
        assert file.value_type("k") is expected
        assert file.metadata["k"] == value


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        ([1, 2, 3], np.int32),
        ([2**31, 0], np.uint32),
        ([-1, 2**31], np.int64),
        ([2**64 - 1], np.uint64),
        ([True, False], np.bool_),
        ((0, 0.5), np.float32),
        (np.arange(3, dtype=np.int16), np.int16),
        (np.arange(3, dtype=">i4"), np.int32),
        ([np.int64(5)], np.int32),
    ],
)
def test_array_types(tmp_path, value, dtype):
    with written(tmp_path, value=value) as file:
        assert file.metadata["k"].dtype == dtype
        np.testing.assert_array_equal(file.metadata["k"], np.asarray(value))


def test_given_types(tmp_path):
    with written(tmp_path, value=3, value_type=ValueType.UINT8) as file:
        assert file.value_type("k") is ValueType.UINT8
    with written(tmp_path, value=3, value_type=ValueType.FLOAT64) as file:
        assert file.metadata["k"] == 3.0
    with written(tmp_path, value=[1, 2], value_type=ValueType.UINT16) as file:
        assert file.metadata["k"].dtype == np.uint16
    with written(tmp_path, value=[], value_type=ValueType.STRING) as file:
        assert file.metadata["k"] == []
    with written(tmp_path, value=[[1], []], value_type=ValueType.INT8) as file:
        assert [item.tolist() for item in file.metadata["k"]] == [[1], []]
        assert file.metadata["k"][1].dtype == np.int8


def test_list_of_bytes_is_an_array_of_strings(tmp_path):
    with written(tmp_path, value=[b"<unk>", b"<s>"]) as file:
        assert file.metadata["k"] == ["<unk>", "<s>"]
    with written(tmp_path, value=b"\xff") as file:
        assert file.metadata["k"] == "\udcff"
    with written(tmp_path, value=np.array(["a", "bc"])) as file:
        assert file.metadata["k"] == ["a", "bc"]


def test_values_read_can_be_written_again(tmp_path):
    with written(tmp_path, value=[b"\xff", b"", b"ok"]) as file, Writer(tmp_path / "copy.gguf") as writer:
        writer.add("all", file.metadata["k"])
        writer.add("some", file.metadata["k"][1:1])
        writer.add("text", file.metadata["k"][0])
    with ours.open(tmp_path / "copy.gguf") as copy:
        assert copy.metadata["all"].raw_list() == [b"\xff", b"", b"ok"]
        assert len(copy.metadata["some"]) == 0
        assert copy.metadata["text"] == "\udcff"


@pytest.mark.parametrize(
    ("value", "value_type", "expected"),
    [
        (None, None, "NoneType found"),
        ({"a": 1}, None, "dict found"),
        ([1, "a"], None, "int, str found"),
        ([True, 1], None, "bool, int found"),
        ([[1], 2], None, "int, list found"),
        ([], None, "an empty sequence, the type of its elements wanted"),
        (2**64, None, "fit in 64 bits wanted"),
        ([-1, 2**63], None, "fit in 64 bits wanted"),
        (np.float16(1), None, "GGUF metadata has no type for float16"),
        ([1], ValueType.ARRAY, "ARRAY given as type, that of the elements wanted"),
        (256, ValueType.UINT8, "a number does not fit UINT8"),
        (-1, ValueType.UINT32, "a number does not fit UINT32"),
        (1e39, None, "a number does not fit FLOAT32"),
        (0.5, ValueType.INT32, "a number does not fit INT32"),
        ("1", ValueType.UINT32, "str found, UINT32 wanted"),
        ([b"ab"], ValueType.UINT8, "bytes found, UINT8 wanted"),
        (1, ValueType.STRING, "int found, STRING wanted"),
        (1, ValueType.BOOL, "int found, BOOL wanted"),
        (True, ValueType.UINT8, "bool found, UINT8 wanted"),
        ("\ud800", None, "the text has no UTF-8 form"),
    ],
)
def test_refused_values(tmp_path, value, value_type, expected):
    with pytest.raises(InvalidInputError, match=rf"^key 'k': .*{expected}"):
        Writer(tmp_path / "file.gguf").add("k", value, value_type)


def test_refused_keys_and_settings(tmp_path):
    writer = Writer(tmp_path / "file.gguf", "llama")
    with pytest.raises(InvalidInputError, match=r"key 'general\.architecture' was added before"):
        writer.add("general.architecture", "gemma")
    with pytest.raises(InvalidInputError, match="give the alignment to the Writer"):
        writer.add("general.alignment", 64)
    for key, expected in (
        ("", "the key is empty"),
        ("k" * 65536, "65536 bytes found, at most 65535 wanted"),
        ("\udcff", r"key '\\udcff': the name has no UTF-8 form"),
    ):
        with pytest.raises(InvalidInputError, match=expected):
            writer.add(key, 1)
    for alignment in (0, 3, 1 << 30):
        with pytest.raises(InvalidInputError, match=f"alignment: {alignment} found, a power of two"):
            Writer(tmp_path / "file.gguf", alignment=alignment)
    with pytest.raises(InvalidInputError, match="version: 1 found"):
        Writer(tmp_path / "file.gguf", version=1)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((np.zeros(2, np.complex64),), "complex64 found, float32, float16"),
        ((np.zeros(32, np.uint8),), "packed bytes found, a type and a shape wanted"),
        ((b"1234", GGMLType.F32), "packed bytes found, a type and a shape wanted"),
        ((np.zeros(32, np.float32), GGMLType.Q4_0), "float32 found, packed uint8 with a shape wanted for Q4_0"),
        ((np.zeros(18, np.uint8), GGMLType.Q4_0, (33,)), "a multiple of 32 elements wanted for Q4_0"),
        ((np.zeros(17, np.uint8), GGMLType.Q4_0, (32,)), r"17 bytes found, 18 wanted for Q4_0 \(32,\)"),
        ((np.zeros(18, np.uint8), GGMLType.Q4_0, (-1, -32)), "sizes of at least 0"),
        ((np.zeros((1,) * 5, np.float32),), "5 dimensions found, at most 4 wanted"),
        ((np.zeros((2, 2), np.float32), None, (4,)), r"shape \(4,\) given, but the array has \(2, 2\)"),
    ],
)
def test_refused_tensors(tmp_path, arguments, expected):
    with pytest.raises(InvalidInputError, match=rf"^tensor 'w': .*{expected}"):
        Writer(tmp_path / "file.gguf").add_tensor("w", *arguments)


def test_refused_tensor_names(tmp_path):
    writer = Writer(tmp_path / "file.gguf")
    writer.add_tensor("w", np.zeros(1, np.float32))
    with pytest.raises(InvalidInputError, match="tensor 'w' was added before"):
        writer.add_tensor("w", np.zeros(1, np.float32))
    with pytest.raises(InvalidInputError, match="at most 65535 wanted"):
        writer.add_tensor("w" * 65536, np.zeros(1, np.float32))


def some_tensors() -> dict[str, np.ndarray]:
    kinds = [np.float32, np.float16, np.float64, np.int8, np.int16, np.int32, np.int64]
    tensors = {np.dtype(kind).name: RNG.integers(-9, 9, (3, 5)).astype(kind) for kind in kinds}
    return tensors | {
        "transposed": np.arange(6, dtype=np.float32).reshape(2, 3).T,
        "four": np.ones((2, 1, 3, 4), ">f4"),
    }


@pytest.mark.parametrize("alignment", [1, 32, 256])
@pytest.mark.parametrize("version", [2, 3])
def test_tensors_come_back(tmp_path, alignment, version):
    tensors = some_tensors()
    packed = RNG.integers(0, 256, (6, 2 * 144), np.uint8)
    with Writer(tmp_path / "file.gguf", "llama", alignment=alignment, version=version) as writer:
        for name, tensor in tensors.items():
            writer.add_tensor(name, tensor)
        writer.add_tensor("packed", packed, GGMLType.Q4_K, (2, 3, 512))
        writer.add_tensor("bytes", packed.tobytes(), GGMLType.Q4_K, (6, 512))
    with ours.open(tmp_path / "file.gguf") as file:
        assert (file.version, file.alignment) == (version, alignment)
        assert list(file.tensors) == [*tensors, "packed", "bytes"]
        for name, tensor in tensors.items():
            found = file.tensors[name]
            assert found.shape == tensor.shape
            little = np.ascontiguousarray(tensor, tensor.dtype.newbyteorder("<"))
            np.testing.assert_array_equal(found.data, little.reshape(-1, tensor.shape[-1]).view(np.uint8))
        np.testing.assert_array_equal(file.tensors["packed"].data, packed)
        np.testing.assert_array_equal(file.tensors["bytes"].data, packed)
        assert (file.tensors["packed"].shape, file.tensors["packed"].type) == ((2, 3, 512), GGMLType.Q4_K)


def test_scalar_and_empty_tensors_come_back(tmp_path):
    with Writer(tmp_path / "file.gguf") as writer:
        writer.add_tensor("scalar", np.array(1.5, np.float32))
        writer.add_tensor("empty", np.zeros((0, 4), np.float32))
        writer.add_tensor("last", np.ones(1, np.float32), GGMLType.F32)
    with ours.open(tmp_path / "file.gguf") as file:
        assert [tensor.shape for tensor in file.tensors.values()] == [(), (0, 4), (1,)]
        assert file.tensors["scalar"].data.view(np.float32).tolist() == [[1.5]]


def test_gguf_py_reads_what_we_write(tmp_path):
    packed = RNG.integers(0, 256, (4, 34), np.uint8)
    with Writer(tmp_path / "file.gguf", "llama", alignment=64) as writer:
        writer.add("tokens", ["a", "é", ""])
        writer.add("scores", np.float32([0.5, -1]))
        writer.add("n", 7)
        writer.add_tensor("w", np.arange(6, dtype=np.float32).reshape(2, 3))
        writer.add_tensor("q", packed, GGMLType.Q8_0, (4, 32))
    theirs = gguf_py.GGUFReader(tmp_path / "file.gguf")
    assert theirs.alignment == 64
    values = {key: field.contents() for key, field in theirs.fields.items() if not key.startswith("GGUF.")}
    assert values == {
        "general.architecture": "llama",
        "general.alignment": 64,
        "tokens": ["a", "é", ""],
        "scores": [0.5, -1],
        "n": 7,
    }
    w, q = theirs.tensors
    assert (w.name, w.shape.tolist(), w.tensor_type.name) == ("w", [3, 2], "F32")
    np.testing.assert_array_equal(w.data, np.arange(6, dtype=np.float32).reshape(2, 3))
    assert (q.name, q.shape.tolist(), q.tensor_type.name) == ("q", [32, 4], "Q8_0")
    np.testing.assert_array_equal(q.data, packed)


def test_we_read_what_gguf_py_writes(tmp_path):
    path = tmp_path / "file.gguf"
    packed = RNG.integers(0, 256, (4, 34), np.uint8)
    writer = gguf_py.GGUFWriter(path, "llama")
    writer.add_token_list(["a", "é", ""])
    writer.add_array("scores", [0.5, -1.0])
    writer.add_uint16("n", 7)
    writer.add_bool("yes", True)
    writer.add_float64("f", 0.1)
    writer.add_tensor("w", np.arange(6, dtype=np.float32).reshape(2, 3))
    writer.add_tensor("q", packed, raw_dtype=gguf_py.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with ours.open(path) as file:
        assert file.metadata["general.architecture"] == "llama"
        assert file.metadata["tokenizer.ggml.tokens"] == ["a", "é", ""]
        assert file.metadata["scores"].tolist() == [0.5, -1]
        assert (file.metadata["n"], file.metadata["yes"], file.metadata["f"]) == (7, True, 0.1)
        np.testing.assert_array_equal(file.tensors["w"].data.view(np.float32), np.arange(6).reshape(2, 3))
        np.testing.assert_array_equal(file.tensors["q"].data, packed)
        assert file.tensors["q"].shape == (4, 32)


# --- files -----------------------------------------------------------------------------------------------------------


def test_nothing_is_left_behind_when_the_block_raises(tmp_path):
    (tmp_path / "file.gguf").write_bytes(b"old")
    with pytest.raises(InvalidInputError), Writer(tmp_path / "file.gguf") as writer:
        writer.add("k", None)
    assert list(tmp_path.iterdir()) == [tmp_path / "file.gguf"]
    assert (tmp_path / "file.gguf").read_bytes() == b"old"


def test_failure_while_writing_keeps_the_old_file(tmp_path, monkeypatch):
    (tmp_path / "file.gguf").write_bytes(b"old")
    writer = Writer(tmp_path / "file.gguf")
    writer.add_tensor("w", np.zeros(8, np.float32))

    def chunks():
        yield b"GGUF"
        raise OSError("disk full")

    monkeypatch.setattr(writer, "_chunks", chunks)
    with pytest.raises(OSError, match="disk full"):
        writer.write()
    assert list(tmp_path.iterdir()) == [tmp_path / "file.gguf"]
    assert (tmp_path / "file.gguf").read_bytes() == b"old"


@pytest.mark.skipif(os.name != "posix", reason="Windows does not replace a file that is mapped")
def test_writing_over_a_file_that_is_open(tmp_path):
    with written(tmp_path, value=[1, 2, 3]) as file:
        old = file.metadata["k"]
        with written(tmp_path, value=[4]) as new:
            assert old.tolist() == [1, 2, 3]
            assert new.metadata["k"].tolist() == [4]


# --- anything --------------------------------------------------------------------------------------------------------

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
KEYS = TEXT.filter(lambda key: key and not key.startswith(("general.", "split.")))  # those have meanings
RANGES = {
    ValueType.UINT8: (0, 2**8 - 1),
    ValueType.INT8: (-(2**7), 2**7 - 1),
    ValueType.UINT16: (0, 2**16 - 1),
    ValueType.INT16: (-(2**15), 2**15 - 1),
    ValueType.UINT32: (0, 2**32 - 1),
    ValueType.INT32: (-(2**31), 2**31 - 1),
    ValueType.UINT64: (0, 2**64 - 1),
    ValueType.INT64: (-(2**63), 2**63 - 1),
}
SCALARS = {
    **{kind: st.integers(*bounds) for kind, bounds in RANGES.items()},
    ValueType.FLOAT32: st.floats(width=32),
    ValueType.FLOAT64: st.floats(),
    ValueType.BOOL: st.booleans(),
    ValueType.STRING: st.one_of(TEXT, st.binary(max_size=300).map(lambda raw: raw.decode("utf-8", "surrogateescape"))),
}
TYPED = st.sampled_from(list(SCALARS)).flatmap(
    lambda kind: st.tuples(st.just(kind), st.one_of(SCALARS[kind], st.lists(SCALARS[kind], max_size=90)))
)


def same(found: object, value: object) -> bool:
    if isinstance(value, list):
        items = list(found) if isinstance(found, ours.StringArray) else found.tolist()
        return len(items) == len(value) and all(map(same, items, value))
    if isinstance(value, float) and math.isnan(value):
        return isinstance(found, float) and math.isnan(found)
    return type(found) is type(value) and found == value


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.dictionaries(KEYS, TYPED, max_size=8))
@example({"k": (ValueType.STRING, ["", "\udcff", "x" * 300])})
def test_any_metadata_comes_back(tmp_path, pairs):
    with Writer(tmp_path / "file.gguf") as writer:
        for key, (kind, value) in pairs.items():
            writer.add(key, value, kind)
    with ours.open(tmp_path / "file.gguf") as file:
        assert list(file.metadata) == list(pairs)
        for key, (kind, value) in pairs.items():
            assert same(file.metadata[key], value)
            assert file.value_type(key) is (ValueType.ARRAY if isinstance(value, list) else kind)


def test_tensors_can_be_made_while_the_file_is_written(tmp_path):
    made = []

    def pieces(name):
        made.append(name)
        yield np.arange(18, dtype=np.uint8)
        yield np.arange(18, dtype=np.uint8) + 18

    with Writer(tmp_path / "file.gguf") as writer:
        writer.add_tensor_later("later", GGMLType.Q4_0, (2, 32), lambda: pieces("later"))
        writer.add_tensor("now", np.arange(3, dtype=np.float32))
        writer.add_tensor_later("last", GGMLType.Q4_0, (1, 64), lambda: pieces("last"))
        assert made == []
    assert made == ["later", "last"]
    with ours.open(tmp_path / "file.gguf") as file:
        assert {name: tensor.shape for name, tensor in file.tensors.items()} == {
            "later": (2, 32), "now": (3,), "last": (1, 64),
        }  # fmt: skip
        assert file.tensors["later"].data.ravel().tolist() == file.tensors["last"].data.ravel().tolist()
        assert file.tensors["last"].data.tolist() == [list(range(36))]


def test_what_is_made_must_be_what_was_declared(tmp_path):
    writer = Writer(tmp_path / "file.gguf")
    writer.add_tensor_later("w", GGMLType.Q4_0, (2, 32), lambda: [np.zeros(35, np.uint8)])
    with pytest.raises(InvalidInputError, match="tensor 'w' was added before"):
        writer.add_tensor_later("w", GGMLType.Q4_0, (2, 32), list)
    with pytest.raises(InvalidInputError, match=r"tensor 'v': shape \(2, 33\) found.* multiple of 32"):
        writer.add_tensor_later("v", GGMLType.Q4_0, (2, 33), list)
    with pytest.raises(InvalidInputError, match="tensor 'w': 35 bytes made, 36 wanted"):
        writer.write()
    assert list(tmp_path.iterdir()) == []
