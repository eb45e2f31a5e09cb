"""Reading well-formed files: values, arrays, tensors, closing, speed."""

import gc
import struct
import time
from pathlib import Path

import gguf as gguf_py
import numpy as np
import pytest
from gguf_bytes import ARRAY, BOOL, F32, FLOAT32, INT32, Q4_0, STRING, UINT8, array, entry, gguf, pair, save, text, u32
from hypothesis import given
from hypothesis import strategies as st

import minillama.gguf as ours
from minillama.errors import GGUFError, InvalidInputError, UnsupportedError
from minillama.gguf import GGMLType, StringArray, ValueType, metadata_value
from minillama.gguf import strings as string_module
from minillama.gguf.cursor import Cursor
from minillama.gguf.strings import read_string_array

FLOATS = np.arange(8, dtype=np.float32)


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("use_mmap", [True, False])
def test_a_small_file(tmp_path, version, use_mmap):
    content = gguf(
        [u32("a.number", 7), pair("a.text", STRING, text("é"))],
        [entry("w", [4, 2], F32, 0)],
        FLOATS.tobytes(),
        version=version,
    )
    with ours.open(save(tmp_path, content), use_mmap=use_mmap) as file:
        assert dict(file.metadata) == {"a.number": 7, "a.text": "é"}
        assert (file.version, file.alignment, file.path) == (version, 32, tmp_path / "file.gguf")
        assert file.value_type("a.number") is ValueType.UINT32
        tensor = file.tensors["w"]
        assert (tensor.shape, tensor.type, tensor.type_name) == ((2, 4), GGMLType.F32, "F32")
        assert (tensor.nbytes, tensor.n_elements, tensor.offset) == (32, 8, len(content) - 32)
        assert tensor.data.shape == (2, 16)
        np.testing.assert_array_equal(tensor.data.view(np.float32), FLOATS.reshape(2, 4))


def test_every_scalar_type(tmp_path):
    values = {
        ValueType.UINT8: ("<B", 255),
        ValueType.INT8: ("<b", -128),
        ValueType.UINT16: ("<H", 65535),
        ValueType.INT16: ("<h", -32768),
        ValueType.UINT32: ("<I", 2**32 - 1),
        ValueType.INT32: ("<i", -(2**31)),
        ValueType.FLOAT32: ("<f", 0.5),
        ValueType.BOOL: ("<B", True),
        ValueType.UINT64: ("<Q", 2**64 - 1),
        ValueType.INT64: ("<q", -(2**63)),
        ValueType.FLOAT64: ("<d", 0.1),
    }
    pairs = [pair(kind.name, kind, struct.pack(code, value)) for kind, (code, value) in values.items()]
    with ours.open(save(tmp_path, gguf(pairs))) as file:
        for kind, (_, value) in values.items():
            assert file.metadata[kind.name] == value
            assert type(file.metadata[kind.name]) is type(value)
            assert file.value_type(kind.name) is kind


def test_arrays_are_read_only_views(tmp_path):
    pairs = [
        pair("ints", ARRAY, array(INT32, 3, struct.pack("<3i", -1, 0, 1))),
        pair("flags", ARRAY, array(BOOL, 3, b"\x00\x01\x02")),
        pair("empty", ARRAY, array(FLOAT32, 0, b"")),
        pair("nested", ARRAY, array(ARRAY, 2, array(UINT8, 2, b"\x01\x02") + array(STRING, 1, text("x")))),
    ]
    with ours.open(save(tmp_path, gguf(pairs))) as file:
        ints, flags, empty, nested = file.metadata.values()
        assert type(ints) is np.ndarray
        assert ints.dtype == np.int32
        assert ints.tolist() == [-1, 0, 1]
        assert flags.dtype == np.bool_
        assert flags.tolist() == [False, True, True]  # any byte but 0 is true, as in ggml
        assert flags.view(np.uint8).tolist() == [0, 1, 1]
        assert empty.dtype == np.float32
        assert empty.shape == (0,)
        assert nested[0].tolist() == [1, 2]
        assert nested[1] == ["x"]
        assert not any(a.flags.writeable for a in (ints, flags, empty))
        with pytest.raises(TypeError):
            file.metadata["new"] = 1


def test_tensor_data_is_a_read_only_plain_view(tmp_path):
    with ours.open(save(tmp_path, gguf([], [entry("w", [8], F32, 0)], FLOATS.tobytes()))) as file:
        data = file.tensors["w"].data
        assert type(data) is np.ndarray
        assert data.shape == (1, 32)
        with pytest.raises(ValueError, match="read-only"):
            data[0, 0] = 1
        assert np.shares_memory(data, file.tensors["w"].data)


@pytest.mark.parametrize(("use_mmap", "seen"), [(True, 255), (False, 0)])
def test_without_a_map_later_changes_of_the_file_are_not_seen(tmp_path, use_mmap, seen):
    path = save(tmp_path, gguf([], [entry("w", [8], F32, 0)], bytes(32)))
    with ours.open(path, use_mmap=use_mmap) as file:
        data = file.tensors["w"].data
        with path.open("r+b") as changed:
            changed.seek(file.tensors["w"].offset)
            changed.write(b"\xff" * 32)
        assert data[0, 0] == seen
        assert not data.flags.writeable
        assert data.ctypes.data % 32 == 0


def test_text_that_is_not_utf8_keeps_its_bytes(tmp_path):
    pairs = [pair("s", STRING, text(b"a\xff")), pair("l", ARRAY, array(STRING, 2, text(b"\xc3") + text(b"\xa9")))]
    with ours.open(save(tmp_path, gguf(pairs))) as file:
        assert file.metadata["s"].encode("utf-8", "surrogateescape") == b"a\xff"
        assert file.metadata["l"].raw_list() == [b"\xc3", b"\xa9"]
        assert file.metadata["l"].raw(1) == b"\xa9"
        assert file.metadata["l"][0] == "\udcc3"


def test_header_that_ends_on_a_multiple_of_the_alignment_gets_no_padding(tmp_path):
    base = len(gguf([pair("k", STRING, text(""))], [entry("w", [8], F32, 0)]))
    for n in range(33):  # one of these headers is a multiple of 32 long
        content = gguf([pair("k", STRING, text("x" * n))], [entry("w", [8], F32, 0)], FLOATS.tobytes())
        with ours.open(save(tmp_path, content)) as file:
            assert file.tensors["w"].offset == len(content) - 32
            np.testing.assert_array_equal(file.tensors["w"].data.view(np.float32)[0], FLOATS)
    assert len(content) > base + 32


def test_missing_padding_after_the_last_tensor_is_fine_as_in_llama_cpp(tmp_path):
    content = gguf([], [entry("w", [1], F32, 0)], FLOATS[:1].tobytes())
    with ours.open(save(tmp_path, content)) as file:
        assert file.tensors["w"].data.shape == (1, 4)


def test_bytes_after_the_last_tensor_are_ignored_as_in_llama_cpp(tmp_path):
    content = gguf([], [entry("w", [8], F32, 0)], FLOATS.tobytes() + b"more")
    with ours.open(save(tmp_path, content)) as file:
        assert list(file.tensors) == ["w"]


def test_scalar_and_empty_tensors_are_read_as_ggml_reads_them(tmp_path):
    entries = [entry("scalar", [], F32, 0), entry("empty", [0, 3], Q4_0, 32), entry("last", [1], F32, 32)]
    with ours.open(save(tmp_path, gguf([], entries, bytes(64)))) as file:
        assert file.tensors["scalar"].data.shape == (1, 4)
        assert file.tensors["empty"].data.shape == (3, 0)
        assert (file.tensors["empty"].shape, file.tensors["empty"].nbytes) == ((3, 0), 0)


def test_other_alignment(tmp_path):
    entries = [entry("a", [1], F32, 0), entry("b", [1], F32, 64)]
    content = gguf([u32("general.alignment", 64)], entries, bytes(64) + b"\1\2\3\4", align=64)
    with ours.open(save(tmp_path, content)) as file:
        assert file.alignment == 64
        assert file.tensors["b"].offset % 64 == 0
        assert file.tensors["b"].data.tolist() == [[1, 2, 3, 4]]


def test_tensor_of_unknown_type_is_listed_but_has_no_data(tmp_path):
    entries = [entry("odd", [8], 99, 0), entry("w", [8], F32, 96)]
    with ours.open(save(tmp_path, gguf([], entries, bytes(96) + FLOATS.tobytes()))) as file:
        odd = file.tensors["odd"]
        assert (odd.type, odd.type_id, odd.nbytes, odd.type_name) == (None, 99, None, "unknown type 99")
        with pytest.raises(UnsupportedError, match=r"tensor 'odd' has unknown type 99.*known are F32, F16"):
            _ = odd.data
        np.testing.assert_array_equal(file.tensors["w"].data.view(np.float32)[0], FLOATS)


def test_views_stay_valid_after_close(tmp_path):
    pairs = [pair("tokens", ARRAY, array(STRING, 2, text("a") + text("b")))]
    path = save(tmp_path, gguf(pairs, [entry("w", [8], F32, 0)], FLOATS.tobytes()))
    file = ours.open(path)
    data, tokens, tensor = file.tensors["w"].data, file.metadata["tokens"], file.tensors["w"]
    file.close()
    file.close()
    gc.collect()
    np.testing.assert_array_equal(data.view(np.float32)[0], FLOATS)
    assert list(tokens) == ["a", "b"]
    assert tensor.data.nbytes == 32
    assert "closed" in repr(file)
    for use in (lambda: file.tensors, lambda: file.metadata, lambda: file.value_type("tokens")):
        with pytest.raises(InvalidInputError, match=r"file\.gguf: the file is closed"):
            use()


def test_the_map_goes_with_the_last_view(tmp_path):
    path = save(tmp_path, gguf([], [entry("w", [8], F32, 0)], FLOATS.tobytes()))
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("needs /proc")
    with ours.open(path) as file:
        data = file.tensors["w"].data
        assert str(path) in maps.read_text()
    del file
    assert str(path) in maps.read_text()
    del data
    gc.collect()
    assert str(path) not in maps.read_text()


def test_typed_access(tmp_path):
    pairs = [
        u32("n", 3),
        pair("b", BOOL, b"\1"),
        pair("f", FLOAT32, struct.pack("<f", 0.5)),
        pair("heads", ARRAY, array(INT32, 2, struct.pack("<2i", 4, 8))),
    ]
    with ours.open(save(tmp_path, gguf(pairs))) as file:
        assert file.get("n", int) == 3
        assert file.get("f", float) == 0.5
        assert file.get("b", bool) is True
        assert file.get("heads", np.ndarray).tolist() == [4, 8]
        assert file.get("none", int, 5) == 5
        assert file.get("none", str, None) is None
        assert metadata_value(file.metadata, "n", int) == 3
        with pytest.raises(GGUFError, match=r"file\.gguf: key 'none' is missing, int wanted"):
            file.get("none", int)
        with pytest.raises(GGUFError, match=r"key 'heads': an array of numbers \(2 int32\) found, int wanted"):
            file.get("heads", int)
        with pytest.raises(GGUFError, match=r"key 'b': bool True found, int wanted"):
            file.get("b", int)
        with pytest.raises(GGUFError, match=r"key 'n': int 3 found, float wanted"):
            file.get("n", float)
        with pytest.raises(GGUFError, match=r"key 'n': int 3 found, an array of strings wanted"):
            file.get("n", StringArray)
        with pytest.raises(InvalidInputError, match="there is no key 'none'"):
            file.value_type("none")


def test_absent_file_is_an_os_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        ours.open(tmp_path / "none.gguf")


# --- arrays of strings ---------------------------------------------------------------------------------------------


def string_array(strings: list[bytes], after: bytes = b"") -> tuple[StringArray, int]:
    content = struct.pack("<Q", len(strings)) + b"".join(map(text, strings))
    cursor = Cursor(memoryview(content + after), "file")
    return read_string_array(cursor), len(content) - cursor.pos


def check_strings(strings: list[bytes], after: bytes = b"") -> None:
    found, rest = string_array(strings, after)
    assert found.raw_list() == strings
    assert [found.raw(i) for i in range(len(strings))] == strings
    assert rest == 0


WORDS = [b"w%d" % i for i in range(1000)]


@pytest.mark.parametrize(
    "strings",
    [
        pytest.param([], id="none"),
        pytest.param([b""], id="one empty"),
        pytest.param(WORDS, id="plain"),
        pytest.param([b""] * 1000, id="all empty"),
        pytest.param([*WORDS, b"", *WORDS, b"", b"", *WORDS], id="empty among others"),
        pytest.param([*WORDS, b"x" * 255, b"y" * 256, *WORDS, b"z" * 70000, *WORDS], id="long"),
        pytest.param([*WORDS, bytes(9), *WORDS, bytes(300), *WORDS], id="zero bytes"),
        # Text that looks like a string with its length field: only the order of the chain tells them apart.
        pytest.param([*WORDS, text("no") + text("no"), *WORDS], id="strings in a string"),
        pytest.param([text(b"no" * 10)] * 2000, id="strings in all strings"),
        pytest.param([b"x" * (n % 300) for n in range(3000)], id="all lengths"),
    ],
)
@pytest.mark.parametrize("after", [b"", bytes(64), text("not ours") * 40], ids=["end", "zeros", "strings"])
def test_string_arrays(strings, after):
    check_strings(strings, after)


@given(st.lists(st.one_of(st.binary(max_size=12), st.binary(min_size=250, max_size=300)), max_size=80), st.binary())
def test_string_arrays_of_anything(strings, after):
    check_strings(strings * 3, after)


def test_string_array_is_a_sequence():
    found, _ = string_array([b"a", b"b", b"\xc3\xa9", b"d"])
    assert len(found) == 4
    assert (found[0], found[-1], found[2]) == ("a", "d", "é")
    assert list(found) == ["a", "b", "é", "d"]
    assert found[1:3] == ["b", "é"]
    assert found[::-1].raw_list() == [b"d", b"\xc3\xa9", b"b", b"a"]
    assert found[1:1] == []
    assert found == ["a", "b", "é", "d"]
    assert found != ["a", "b", "é"]
    assert found == string_array([b"a", b"b", b"\xc3\xa9", b"d"])[0]
    assert found != 5
    assert "é" in found
    assert found.index("b") == 1
    assert repr(found) == "<StringArray of 4: 'a', 'b', 'é', ...>"
    with pytest.raises(IndexError):
        found[4]


VOCABULARY = [b"token%d" % i for i in range(150_000)]


def work(strings: list[bytes], monkeypatch: pytest.MonkeyPatch) -> tuple[float, int]:
    """How often each byte is looked at for chains, and how many strings are taken one by one."""
    looked, stepped = [], []
    chain, step = string_module._chain, string_module._step
    monkeypatch.setattr(string_module, "_chain", lambda seen, n: (looked.append(len(seen)), chain(seen, n))[1])
    monkeypatch.setattr(string_module, "_step", lambda cursor, n: (stepped.append(n), step(cursor, n))[1])
    content = memoryview(struct.pack("<Q", len(strings)) + b"".join(map(text, strings)))
    assert len(read_string_array(Cursor(content, "file"))) == len(strings)
    return sum(looked) / len(content), sum(stepped)


@pytest.mark.parametrize(
    "strings",
    [
        pytest.param(VOCABULARY, id="vocabulary"),
        pytest.param([b""] * 50_000, id="all empty"),
        pytest.param([b"ab", b""] * 20_000, id="every other empty"),
        pytest.param(([b"a"] * 17 + [b""]) * 2_000, id="a break after each short chain"),
        pytest.param(([b"a"] * 64 + [b""]) * 1_000, id="a break after each long chain"),
        pytest.param([bytes(40)] * 20_000, id="all zero bytes"),
        pytest.param([b"x" * 300] * 9_000, id="all long"),
        pytest.param([text(b"a" * 8) * 4] * 10_000, id="strings in strings"),
    ],
)
def test_work_is_in_proportion_to_the_bytes(strings, monkeypatch):
    looks, _ = work(strings, monkeypatch)
    assert looks < 8  # 4 KiB for each 585 bytes, at worst


def test_hardly_any_string_of_a_vocabulary_is_taken_one_by_one(monkeypatch):
    looks, steps = work([*VOCABULARY, b"x" * 300, b"", *VOCABULARY], monkeypatch)
    assert looks < 1.1
    assert steps < 1000


def test_a_large_vocabulary_opens_at_least_ten_times_faster_than_with_gguf_py(tmp_path):
    tokens = [b"token%d" % i for i in range(20_000)]
    path = save(tmp_path, gguf([pair("tokens", ARRAY, array(STRING, len(tokens), b"".join(map(text, tokens))))]))
    start = time.process_time()
    with ours.open(path) as file:
        mine = time.process_time() - start
        assert file.metadata["tokens"].raw_list() == tokens
    start = time.process_time()
    gguf_py.GGUFReader(path)
    theirs = time.process_time() - start
    assert mine < theirs / 10
