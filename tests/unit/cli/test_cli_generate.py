"""``minillama generate``: what goes to stdout, and what does not."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import minillama as ml
from minillama.sampling import SamplingParams
from tests.programs import COMMAND_LINE

PROMPT = "the band"


@pytest.fixture(scope="module")
def model(tiny):
    return ml.load(tiny)


def test_a_pipe_gets_the_continuation_and_nothing_else(run, tiny, model):
    result = run("generate", PROMPT, "-m", tiny, "-n", 12)
    assert result.exit_code == 0
    assert result.stdout_bytes == model.generate(PROMPT, max_tokens=12).text.encode()
    assert "prompt token" not in result.stderr


def test_escape_codes_the_model_writes_reach_a_pipe_unchanged(run, tiny, model):
    escape = model.tokenizer.encode("\x1b[31m", add_special=False)
    bias = [part for token in escape[:1] for part in ("--logit-bias", f"{token}=1e9")]
    assert run("generate", PROMPT, "-m", tiny, "-n", 2, *bias).stdout_bytes == b"\x1b\x1b"


def test_statistics_go_to_stderr_in_one_line(run, tiny):
    result = run("generate", PROMPT, "-m", tiny, "-n", 3, "--stats")
    last = result.stderr.splitlines()[-1]
    assert last.startswith("4 prompt tokens ")
    assert "3 generated " in last
    assert last.endswith(", length")
    assert "\x1b" not in result.stderr


def test_options_reach_the_library(run, tiny, model):
    wanted = {
        "temperature": 1.5, "top_k": 0, "top_p": 0.9, "min_p": 0.01, "repeat_penalty": 1.2, "frequency_penalty": 0.1,
        "presence_penalty": 0.2, "seed": 0, "ignore_eos": True, "logit_bias": {70: float("-inf"), 71: 0.5},
    }  # fmt: skip
    arguments = [
        "--temp", 1.5, "--top-k", 0, "--top-p", 0.9, "--min-p", 0.01, "--repeat-penalty", 1.2,
        "--frequency-penalty", 0.1, "--presence-penalty", 0.2, "--seed", 0, "--ignore-eos",
        "--logit-bias", "70=-inf", "--logit-bias", "71=0.5",
    ]  # fmt: skip
    expected = model.generate(PROMPT, max_tokens=20, **wanted)
    found = json.loads(run("generate", PROMPT, "-m", tiny, "-n", 20, *arguments, "--json").stdout)
    assert found["tokens"] == list(expected.tokens)
    assert found["seed"] == 0


def test_defaults_in_the_help_are_the_librarys(run):
    text = " ".join(run("generate", "--help").stdout.split())
    params = SamplingParams()
    for name in ("top_k", "top_p", "min_p", "repeat_penalty", "frequency_penalty", "presence_penalty"):
        option = text.split(f"--{name.replace('_', '-')} ")[1].split("--")[0]
        assert f"default {getattr(params, name):g}" in option


def test_json_has_everything(run, tiny, model):
    result = run("generate", PROMPT, "-m", tiny, "-n", 4, "--json", "--logprobs", 2)
    found = json.loads(result.stdout)
    expected = model.generate(PROMPT, max_tokens=4, logprobs=2)
    assert set(found) == {
        "model", "text", "tokens", "prompt_tokens", "finish_reason", "seed", "timings", "logprobs",
    }  # fmt: skip
    assert found["model"] == str(tiny)
    assert found["text"] == expected.text
    assert found["tokens"] == list(expected.tokens)
    assert found["prompt_tokens"] == list(expected.prompt_tokens)
    assert found["finish_reason"] == "length"
    assert set(found["timings"]) == {
        "prompt_tokens", "prompt_seconds", "prompt_rate", "generated_tokens", "generated_seconds", "generated_rate",
    }  # fmt: skip
    first, wanted = found["logprobs"][0], expected.logprobs[0]
    assert (first["token"], first["logprob"]) == (wanted.token, wanted.logprob)
    assert [(entry["token"], entry["logprob"]) for entry in first["top"]] == list(wanted.top)
    assert result.stdout.isascii()


def test_json_without_logprobs_says_null(run, tiny):
    assert json.loads(run("generate", PROMPT, "-m", tiny, "-n", 1, "--json").stdout)["logprobs"] is None


@pytest.mark.parametrize("n", [0, 1, 2])
def test_exactly_as_many_tokens_as_asked_for(run, tiny, n):
    assert len(json.loads(run("generate", PROMPT, "-m", tiny, "-n", n, "--json").stdout)["tokens"]) == n


def test_minus_one_goes_on_to_the_end_of_the_context(run, tiny):
    result = run("generate", PROMPT, "-m", tiny, "-n", -1, "--ignore-eos", "-c", 20, "--json")
    assert json.loads(result.stdout)["finish_reason"] == "context"


def test_stop_text_is_cut_off(run, tiny, model):
    text = model.generate(PROMPT, max_tokens=30).text
    stop = text[5:8]
    result = run("generate", PROMPT, "-m", tiny, "-n", 30, "--stop", "no such text", "--stop", stop)
    assert result.stdout_bytes == text[: text.index(stop)].encode()


@pytest.mark.parametrize("line_end", ["", "\n"])
def test_the_prompt_can_come_from_stdin_or_a_file(run, tiny, tmp_path, line_end):
    direct = run("generate", "the\r\nband", "-m", tiny, "-n", 8).stdout_bytes
    data = f"the\r\nband{line_end}".encode()
    (tmp_path / "prompt.txt").write_bytes(data)
    assert run("generate", "-m", tiny, "-n", 8, "-f", "-", stdin=data).stdout_bytes == direct
    assert run("generate", "-m", tiny, "-n", 8, "-f", tmp_path / "prompt.txt").stdout_bytes == direct


def test_special_tokens_count_only_on_request(run, tiny, model):
    def prompt_tokens(*extra: str) -> list[int]:
        result = run("generate", "a<|im_end|>", "-m", tiny, "-n", 0, "--json", *extra)
        return list(json.loads(result.stdout)["prompt_tokens"])

    assert prompt_tokens("--special") == model.tokenizer.encode("a<|im_end|>", parse_special=True)
    assert prompt_tokens() == model.tokenizer.encode("a<|im_end|>")
    assert prompt_tokens() != prompt_tokens("--special")


def test_options_without_effect_are_named(run, tiny):
    result = run("generate", PROMPT, "-m", tiny, "-n", 1, "--top-p", 0.5, "--seed", 0)
    assert "--top-p, --seed: without effect at temperature 0" in result.stderr
    assert result.exit_code == 0


def test_unused_tensors_are_warned_about_on_stderr(run, tmp_path):
    from tests.tiny_models import TinyModel

    path = TinyModel(n_layer=1, extra=("blk.0.odd.weight",)).write(tmp_path / "extra.gguf")
    result = run("generate", PROMPT, "-m", path, "-n", 1)
    warnings = [line for line in result.stderr.splitlines() if line.startswith("minillama: warning: ")]
    assert len(warnings) == 1
    assert "'blk.0.odd.weight'" in warnings[0]


def start(*arguments: object, **pipes: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", COMMAND_LINE, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **pipes)


def test_ctrl_c_keeps_the_text_and_exits_130(endless: Path):
    with start("generate", PROMPT, "-m", endless, "-n", -1, "--ignore-eos") as process:
        assert process.stdout.read(10)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"Traceback" not in errors
    assert b"error" not in errors


def test_a_closed_pipe_ends_the_program_quietly(endless: Path):
    with start("generate", PROMPT, "-m", endless, "-n", -1, "--ignore-eos") as process:
        assert process.stdout.read(10)
        process.stdout.close()
        errors = process.stderr.read()
        assert process.wait(timeout=60) == 1
    assert b"Traceback" not in errors
    assert b"Broken" not in errors
