"""``minillama embed`` from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import minillama as ml
from tests.tiny_families import ENCODERS


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ENCODERS["bert"].write(tmp_path_factory.mktemp("embed") / "bert.gguf", "f16")


def test_texts_are_compared(run, encoder):
    result = run("embed", "-m", encoder, "the cat", "the cat", "a \x1b[31mdog")
    assert result.exit_code == 0, result.stderr
    header, *rows = result.stdout.splitlines()
    assert header.split() == ["1", "2", "3"]
    assert [row.split()[-3:][i] for i, row in enumerate(rows)] == ["1.000"] * 3
    assert rows[0].split()[-2] == "1.000"
    assert "\x1b" not in result.stdout


def test_json_and_npy_hold_the_librarys_vectors(run, encoder, tmp_path):
    texts = ["the cat", "a dog"]
    (tmp_path / "lines.txt").write_text("the cat\r\n\na dog\n")
    expected = ml.load(encoder).embed(texts)
    given = run("embed", "-m", encoder, *texts, "--json")
    read = run("embed", "-m", encoder, "--file", tmp_path / "lines.txt", "--json", "--npy", tmp_path / "out.npy")
    for result in (given, read):
        assert result.exit_code == 0, result.stderr
        found = json.loads(result.stdout)
        assert [entry["text"] for entry in found] == texts
        np.testing.assert_array_equal(np.array([entry["embedding"] for entry in found], np.float32), expected)
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), expected)


def test_one_text_or_every_token_is_shown_by_its_beginning(run, encoder):
    one = run("embed", "-m", encoder, "the cat")
    each = run("embed", "-m", encoder, "--pooling", "none", "the cat")
    assert one.stdout.count("... (256 numbers)") == 1
    assert each.stdout.count("... (256 numbers)") == len(ml.load(encoder).tokenizer.encode("the cat"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give a TEXT or --file"),
        (["a", "--file", "x"], "not both"),
        (["a", "--pooling", "max"], "there are none, mean, cls, last"),
        (["a", "--pooling", "none", "--npy", "x.npy"], "use --json"),
    ],
)
def test_wrong_options(run, encoder, arguments, message):
    result = run("embed", "-m", encoder, *arguments)
    assert result.exit_code == 2
    assert message in result.stderr


def test_a_decoder_needs_a_pooling_and_an_encoder_makes_no_text(run, encoder, tiny):
    refused = run("embed", "-m", tiny, "a")
    assert refused.exit_code == 2
    assert "choose --pooling" in refused.stderr or "choose pooling" in refused.stderr
    assert run("embed", "-m", tiny, "a", "--pooling", "last").exit_code == 0
    text = run("generate", "a", "-m", encoder)
    assert text.exit_code == 2
    assert text.stderr.count("\n") == 1
    assert "minillama embed" in text.stderr
