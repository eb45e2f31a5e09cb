"""Errors: one line on stderr, exit code 2, a traceback only on request."""

from __future__ import annotations

import pytest

from tests.tiny_models import TinyModel


def only_line(result) -> str:
    """The error, which must be all there is."""
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("minillama: error: ")
    assert result.stderr.count("\n") == 1
    return result.stderr.removeprefix("minillama: error: ").rstrip("\n")


@pytest.mark.parametrize("command", [("generate", "hi", "-m"), ("tokenize", "hi", "-m"), ("info",), ("pull",)])
def test_missing_files_and_unknown_models(run, command, tmp_path):
    assert only_line(run(*command, tmp_path / "no.gguf")).endswith("no.gguf does not exist")
    assert only_line(run(*command, "smollm3")).startswith("unknown model 'smollm3': the catalog has smollm2-135m")


@pytest.mark.parametrize("command", [("generate", "hi", "-m"), ("tokenize", "hi", "-m"), ("info",)])
def test_damaged_files(run, command, tiny, tmp_path):
    path = tmp_path / "cut.gguf"
    path.write_bytes(tiny.read_bytes()[:5000])
    assert "cut.gguf: " in only_line(run(*command, path))
    path.write_bytes(b"not a model")
    assert "b'GGUF' wanted" in only_line(run(*command, path))


def test_unsupported_architecture(run, tmp_path):
    path = TinyModel(architecture="mamba").write(tmp_path / "mamba.gguf")
    assert "'mamba' is not supported" in only_line(run("generate", "hi", "-m", path))


def test_prompt_longer_than_the_context(run, tiny):
    assert "201 more asked for, the context is 200" in only_line(run("generate", "a" * 201, "-m", tiny))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--top-p", 3), "--top-p: found 3.0, wanted a number from 0 to 1"),
        (("--temp", -1), "--temperature: found -1.0, wanted a finite number from 0 up"),
        (("--temp", "nan"), "--temperature: found nan, wanted a finite number from 0 up"),
        (("--seed", -1), "--seed: found -1, wanted an integer from 0 up"),
        (("--repeat-penalty", 0), "--repeat-penalty: found 0.0, wanted"),
        (("-n", -5), "--max-tokens is -5, a whole number from 0"),
        (("-c", 0), "--ctx-size is 0, a whole number from 1 is wanted"),
        (("-t", 0), "--threads is 0, a whole number of at least 1"),
        (("--kv-type", "q8"), "--kv-type is 'q8', there are f32, f16"),
        (("--backend", "gpu"), "backend 'gpu' does not exist, there are cpu, reference"),
        (("--stop", ""), "--stop is ("),
        (("--logit-bias", "9999=1"), "--logit-bias: found token id 9999, wanted ids from 0 to"),
        (("--logit-bias", "1=nan"), "--logit-bias[1]: found nan, wanted"),
    ],
)
def test_values_out_of_range_name_the_option(run, tiny, arguments, told):
    assert only_line(run("generate", "hi", "-m", tiny, "--temp", 1, *arguments)).startswith(told)


@pytest.mark.parametrize(
    "arguments",
    [
        ("generate",),
        ("generate", "hi", "-f", "-"),
        ("generate", "hi", "-n", "many"),
        ("generate", "hi", "--logprobs", "1"),
        ("generate", "hi", "--logit-bias", "5"),
        ("tokenize", "hi", "--ids", "--json"),
        ("frobnicate",),
    ],
)
def test_usage_errors_exit_2_too(run, arguments):
    result = run(*arguments)
    assert result.exit_code == 2
    assert "Error: " in result.stderr
    assert "Traceback" not in result.stderr


def test_empty_prompts_and_text_that_is_not_text(run, tiny):
    assert only_line(run("generate", "", "-m", tiny)) == "the prompt is empty, at least one token is wanted"
    assert only_line(run("generate", "-f", "-", "-m", tiny, stdin=b"caf\xe9")).startswith(
        "standard input: the text is not UTF-8"
    )


def test_files_that_cannot_be_read(run, tmp_path):
    assert only_line(run("generate", "-f", tmp_path)) == f"{tmp_path}: Is a directory"


def test_names_in_messages_cannot_harm_the_terminal(run, tmp_path):
    assert r"\x1b[2J\n" in only_line(run("info", tmp_path / "a\x1b[2J\nb.gguf"))


@pytest.mark.parametrize("arguments", [("--debug", "info", "nope"), ("info", "nope", "--debug")])
def test_debug_shows_where(run, arguments):
    result = run(*arguments)
    assert result.exit_code == 2
    assert "Traceback (most recent call last)" in result.stderr
    assert "HubError: unknown model 'nope'" in result.stderr


def test_a_bug_says_that_it_is_one(run, monkeypatch):
    def broken():
        raise IndexError("list index out of range")

    monkeypatch.setattr("minillama.hub.local_models", broken)
    assert "internal error, IndexError: list index out of range (--debug" in only_line(run("models"))


def test_ctrl_c_exits_130(run, monkeypatch):
    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr("minillama.hub.local_models", interrupted)
    result = run("models")
    assert result.exit_code == 130
    assert result.output == ""
