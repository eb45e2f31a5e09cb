"""``minillama info``: every file that can be read is described, and none can harm the terminal."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest

from minillama.gguf import GGMLType, Writer
from tests.tiny_models import TinyModel


def rows(text: str) -> dict[str, str]:
    """The summary as a mapping."""
    return dict(line.split("  ", 1) for line in text.splitlines() if not line.startswith(" "))


def test_summary(run, tiny):
    result = run("info", tiny)
    found = {name: value.strip() for name, value in rows(result.stdout).items()}
    assert result.exit_code == 0
    assert found["file"] == str(tiny)
    assert found["architecture"] == "llama"
    assert found["layers"] == "1"
    assert found["heads"] == "4, of keys and values 2"
    assert found["context"] == "200 tokens"
    assert found["vocabulary"] == "266 tokens"
    assert found["tokenizer"] == "gpt2, pre-tokenizer gpt-2"
    assert found["types"].startswith("F32: 12 tensors, ")
    assert found["license"] == "not stated"
    assert found["chat template"] == "yes"
    assert found["runs here"] == "yes"


def test_json_summary(run, tiny):
    found = json.loads(run("info", tiny, "--json").stdout)
    assert found["files"] == [str(tiny)]
    assert found["bytes"] == tiny.stat().st_size
    assert (found["layers"], found["heads"], found["kv_heads"], found["context"]) == (1, 4, 2, 200)
    assert (found["embedding"], found["feed_forward"], found["vocabulary"]) == (256, 512, 266)
    assert found["types"] == [{"type": "F32", "tensors": 12, "bytes": 4 * found["parameters"]}]
    assert (found["runs"], found["problems"]) == (True, [])
    assert "metadata" not in found
    assert "tensor_list" not in found


def test_tensors(run, tiny):
    lines = run("info", tiny, "--tensors").stdout.splitlines()
    assert lines[0].split() == ["name", "type", "shape", "bytes", "offset"]
    assert lines[1].split()[:4] == ["token_embd.weight", "F32", "266×256", str(266 * 256 * 4)]
    assert len(lines) == 13
    found = json.loads(run("info", tiny, "--tensors", "--json").stdout)["tensor_list"]
    assert found[0]["shape"] == [266, 256]
    assert [str(tensor["offset"]) for tensor in found] == [line.split()[-1] for line in lines[1:]]


def test_long_arrays_are_abbreviated(run, tiny):
    line = next(line for line in run("info", tiny, "--metadata").stdout.splitlines() if "ggml.tokens" in line)
    assert line.endswith(", ...] (266)")
    found = json.loads(run("info", tiny, "--metadata", "--json").stdout)["metadata"]
    assert found["tokenizer.ggml.tokens"]["length"] == 266
    assert len(found["tokenizer.ggml.token_type"]["first"]) == 8


def test_other_architectures_are_described(run, tmp_path):
    with Writer(tmp_path / "odd.gguf", "mamba9") as writer:
        writer.add("mamba9.block_count", 7)
        writer.add("mamba9.attention.head_count", [0, 4, 0, 4])
        writer.add("mamba9.strange", float("nan"))
        writer.add("mamba9.nested", [["a"], ["b"]])
        writer.add_tensor("x", np.zeros((2, 3), np.float32))
    result = run("info", tmp_path / "odd.gguf")
    found = rows(result.stdout)
    assert found["layers"].strip() == "7"
    assert found["heads"].strip().startswith("[0, 4, 0, 4] (4)")
    assert "no: architecture 'mamba9' is not supported" in found["runs here"]
    assert "tokenizer.ggml.model is missing" in result.stdout
    report = json.loads(run("info", tmp_path / "odd.gguf", "--metadata", "--json").stdout)
    assert report["metadata"]["mamba9.strange"] is None
    assert len(report["problems"]) == 2


def test_a_file_without_an_architecture_is_described(run, tmp_path):
    Writer(tmp_path / "empty.gguf").write()
    result = run("info", tmp_path / "empty.gguf")
    assert result.exit_code == 0
    assert rows(result.stdout)["architecture"].strip() == "not stated"


@pytest.fixture
def unknown_type(tmp_path):
    """A file whose last tensor has a type that nobody knows."""
    path = tmp_path / "unknown.gguf"
    with Writer(path, "llama") as writer:
        writer.add_tensor("known", bytes(34), GGMLType.Q8_0, (32,))
        writer.add_tensor("strange", np.zeros(4, np.float32))
    data = path.read_bytes()
    entry = b"strange" + struct.pack("<IQI", 1, 4, GGMLType.F32)
    assert data.count(entry) == 1
    path.write_bytes(data.replace(entry, b"strange" + struct.pack("<IQI", 1, 4, 9999)))
    return path


def test_unknown_types_are_shown(run, unknown_type):
    summary = run("info", unknown_type)
    assert "unknown type 9999: 1 tensor, ?" in summary.stdout
    assert "tensor 'strange' has type an unknown type" in summary.stdout
    last = run("info", unknown_type, "--tensors").stdout.splitlines()[-1]
    assert last.split()[:6] == ["strange", "unknown", "type", "9999", "4", "?"]
    assert json.loads(run("info", unknown_type, "--tensors", "--json").stdout)["tensor_list"][1]["bytes"] is None


def test_hostile_strings_are_shown_as_escapes(run, tmp_path):
    path = tmp_path / "evil.gguf"
    with Writer(path, "llama") as writer:
        writer.add("general.name", "\x1b[2J[bold]red\nline\u202e")
        writer.add("general.license", b"\xff\xfeok")
        writer.add("evil\x1b[31m", "\x07\x9b")
        writer.add_tensor("t\r\x1b]0;x", np.zeros(1, np.float32))
    for arguments in ((), ("--tensors",), ("--metadata",), ("--json", "--metadata", "--tensors")):
        result = run("info", path, *arguments)
        assert result.exit_code == 0
        assert all(character == "\n" or character.isprintable() for character in result.output)
    summary = rows(run("info", path).stdout)
    assert summary["name"].strip() == r"\x1b[2J[bold]red\nline\u202e"
    assert summary["license"].strip() == r"\xff\xfeok"


def test_piped_lines_are_whole_and_without_trailing_spaces(run, tmp_path):
    name = "blk.0." + "very_" * 40 + "long.weight"
    path = TinyModel(extra=(name,)).write(tmp_path / "long.gguf")
    lines = run("info", path, "--tensors").stdout.splitlines()
    assert any(line.startswith(name) for line in lines)
    assert lines == [line.rstrip() for line in lines]
