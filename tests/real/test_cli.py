"""The command line on the default model: what a new user types first."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.programs import COMMAND_LINE

pytestmark = pytest.mark.real

PROMPT = "The capital of France is"
CONTINUATION = " Paris.\n\nThe United States has a population of approximately 321"


def minillama(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-c", COMMAND_LINE, *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, check=True)


@pytest.mark.parametrize("options", [(), ("-t", "1"), ("--no-mmap",), ("--kv-type", "f32", "-c", "64")])
def test_generate_says_paris(options):
    assert minillama("generate", PROMPT, "-n", "16", *options).stdout == CONTINUATION.encode()


def test_generate_from_stdin_with_statistics():
    done = minillama("generate", "-f", "-", "-n", "16", "--stats", stdin=f"{PROMPT}\n".encode())
    assert done.stdout == CONTINUATION.encode()
    assert done.stderr.splitlines()[-1].startswith(b"5 prompt tokens ")


def test_stop_text_ends_the_answer():
    found = json.loads(minillama("generate", PROMPT, "--stop", "\n", "--json", "--logprobs", "1").stdout)
    assert found["text"] == " Paris."
    assert found["finish_reason"] == "stop"
    assert [entry["text"] for entry in found["logprobs"]] == [" Paris", ".", "\n"]


def test_a_seed_repeats_a_draw():
    options = ("generate", "Once upon a time", "-n", "12", "--temp", "1", "--seed", "7")
    assert minillama(*options).stdout == minillama(*options).stdout


def test_tokenize():
    assert minillama("tokenize", PROMPT).stdout.decode() == (
        "504\tThe\n3575\t·capital\n282\t·of\n4649\t·France\n314\t·is\n"
    )


def test_chat_remembers():
    done = minillama("chat", "-n", "200", stdin=b"My name is Ada.\nWhat is my name?\n")
    assert b"Ada" in done.stdout
    assert done.stderr == b""


@pytest.mark.parametrize("model", ["smollm2-135m", "gemma3-270m", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"])
def test_info_reads_every_model_of_the_catalog(model):
    found = json.loads(minillama("info", model, "--tensors", "--metadata", "--json").stdout)
    assert found["bytes"] > found["tensor_list"][-1]["offset"]
    lines = minillama("info", model, "--tensors").stdout.decode().splitlines()
    assert len(lines) == 1 + found["tensors"]
    assert max(map(len, lines)) <= 80
