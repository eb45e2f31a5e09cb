"""``minillama tokenize``: ids and pieces."""

from __future__ import annotations

import json

import pytest

import minillama as ml
from tests.tiny_models import TinyModel


@pytest.fixture(scope="module")
def tokenizer(tiny):
    return ml.Tokenizer.from_gguf(tiny)


def test_a_pipe_gets_an_id_and_a_piece_per_line(run, tiny, tokenizer):
    result = run("tokenize", "the é\n\t", "-m", tiny)
    shown = ["the", "·", r"\xc3", r"\xa9", "↵", "⇥"]
    ids = tokenizer.encode("the é\n\t")
    assert result.stdout.splitlines() == [f"{token}\t{piece}" for token, piece in zip(ids, shown, strict=True)]
    assert result.stderr == "6 tokens\n"


def test_ids_alone(run, tiny, tokenizer):
    result = run("tokenize", "the and", "-m", tiny, "--ids")
    assert result.stdout == " ".join(map(str, tokenizer.encode("the and"))) + "\n"
    assert result.stderr == ""


def test_json_gives_the_bytes(run, tiny, tokenizer):
    found = json.loads(run("tokenize", "é<|im_end|>", "-m", tiny, "--special", "--json").stdout)
    ids = tokenizer.encode("é<|im_end|>", parse_special=True)
    assert found["count"] == len(ids) == 3
    assert [token["id"] for token in found["tokens"]] == ids
    assert bytes.fromhex("".join(token["bytes"] for token in found["tokens"])) == "é<|im_end|>".encode()
    assert [token["special"] for token in found["tokens"]] == [False, False, True]
    assert found["tokens"][2]["text"] == "<|im_end|>"


def test_special_tokens_are_text_unless_asked_for(run, tiny):
    assert len(run("tokenize", "<|im_end|>", "-m", tiny, "--ids").stdout.split()) == 10
    assert len(run("tokenize", "<|im_end|>", "-m", tiny, "--ids", "--special").stdout.split()) == 1


def test_beginning_of_text_can_be_left_out(run, tmp_path):
    path = TinyModel(metadata={"tokenizer.ggml.add_bos_token": True}).write(tmp_path / "bos.gguf")
    with_it = run("tokenize", "a", "-m", path, "--ids").stdout.split()
    assert run("tokenize", "a", "-m", path, "--ids", "--no-add-special").stdout.split() == with_it[1:]


def test_files_are_taken_byte_by_byte(run, tiny, tmp_path):
    data = b"a\r\n\xff\n"
    (tmp_path / "data.bin").write_bytes(data)
    for file, stdin in ((tmp_path / "data.bin", None), ("-", data)):
        found = json.loads(run("tokenize", "-f", file, "-m", tiny, "--json", stdin=stdin).stdout)
        assert bytes.fromhex("".join(token["bytes"] for token in found["tokens"])) == data


def test_a_vocabulary_is_enough(run, tmp_path):
    from minillama.gguf import Writer
    from tests.tiny_models import vocabulary_metadata

    with Writer(tmp_path / "vocab.gguf", "llama") as writer:
        for key, value in vocabulary_metadata().items():
            writer.add(key, value)
    assert run("tokenize", "the", "-m", tmp_path / "vocab.gguf", "--ids").exit_code == 0


def test_no_tokens_is_an_answer(run, tiny):
    result = run("tokenize", "", "-m", tiny)
    assert (result.stdout, result.stderr, result.exit_code) == ("", "0 tokens\n", 0)


def test_details(run, tiny, tokenizer):
    lines = run("tokenize", "the é", "-m", tiny, "--long").stdout.splitlines()
    assert lines[0].split() == ["id", "piece", "bytes", "place"]
    assert [line.split()[-1] for line in lines[1:]] == ["0:3", "3:4", "4:5", "4:5"]
    assert lines[1].split() == [str(tokenizer.encode("the")[0]), "the", "74", "68", "65", "0:3"]


def test_json_gives_places_and_scores(run, tiny):
    tokens = json.loads(run("tokenize", "the é", "-m", tiny, "--json").stdout)["tokens"]
    assert [(token["start"], token["end"]) for token in tokens] == [(0, 3), (3, 4), (4, 5), (4, 5)]
    assert {token["score"] for token in tokens} == {None}


def test_two_vocabularies_side_by_side(run, tiny, tmp_path):
    other = TinyModel(metadata={"tokenizer.ggml.merges": ["q z"], "tokenizer.ggml.add_bos_token": True})
    path = other.write(tmp_path / "other.gguf")
    result = run("tokenize", "the é", "-m", tiny, "--compare", path)
    rows = result.stdout.splitlines()
    assert len(rows) == 4
    assert rows[1].split()[0] == "the"
    assert [part for part in rows[1].split() if part in ("t", "h", "e")] == ["t", "h", "e"]
    assert result.stderr == "4 tokens and 7 tokens; 2 of 3 rows have equally many\n"
    found = json.loads(run("tokenize", "the é", "-m", tiny, "--compare", path, "--json").stdout)
    assert found["rows"] == [[[0], [0, 1, 2, 3]], [[1], [4]], [[2, 3], [5, 6]]]


def test_one_way_of_showing_at_a_time(run, tiny):
    assert run("tokenize", "a", "-m", tiny, "--long", "--ids").exit_code == 2
    assert run("tokenize", "a", "-m", tiny, "--compare", tiny, "--ids").exit_code == 2


def test_another_pre_tokenizer(run, tiny):
    assert run("tokenize", "a", "-m", tiny, "--pre", "default", "--ids").exit_code == 0
    assert "pass pre='default'" in run("tokenize", "a", "-m", tiny, "--pre", "my-own").stderr
