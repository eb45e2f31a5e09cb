"""The commands that look inside."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from minillama import gguf
from minillama.generate import LanguageModel
from minillama.trace import Recording, edits
from tests.tiny_models import TinyModel
from tests.unit.cli.conftest import Run

PROMPT = "the land and"


@pytest.fixture(scope="module")
def model(tiny: Path) -> LanguageModel:
    return LanguageModel(gguf.open(tiny))


class TestTrace:
    def test_table(self, run: Run, tiny: Path) -> None:
        done = run("trace", PROMPT, "-m", tiny, "--record", "blk.0.q*", "--record", "l_out-0")
        assert done.exit_code == 0, done.stderr
        assert [line.split()[0] for line in done.stdout.splitlines()] == [
            "point",
            "blk.0.q",
            "blk.0.q_rope",
            "blk.0.l_out",
        ]

    def test_json_and_positions(self, run: Run, tiny: Path, model: LanguageModel) -> None:
        done = run("trace", PROMPT, "-m", tiny, "--record", "result_output", "--position", -1, "--json")
        found = json.loads(done.stdout)
        logits = model.logits(found["tokens"])[-1]
        assert found["points"][0]["shape"] == [1, len(logits)]
        assert found["points"][0]["high"] == pytest.approx(float(logits.max()), rel=1e-6)

    def test_save(self, run: Run, tiny: Path, model: LanguageModel, tmp_path: Path) -> None:
        done = run("trace", PROMPT, "-m", tiny, "--save", tmp_path / "run.npz")
        assert done.stdout == ""
        loaded = Recording.load(tmp_path / "run.npz")
        np.testing.assert_array_equal(loaded["result_output"], model.logits(loaded.tokens))

    def test_unknown_point(self, run: Run, tiny: Path) -> None:
        done = run("trace", PROMPT, "-m", tiny, "--record", "blk.0.lout")
        assert (done.exit_code, done.stdout) == (2, "")
        assert "no point 'blk.0.lout', the nearest are blk.0.l_out" in done.stderr

    def test_llama_cpp_records_all(self, run: Run, tiny: Path) -> None:
        done = run("trace", PROMPT, "-m", tiny, "--llama-cpp", "somewhere", "--record", "*")
        assert done.exit_code == 2
        assert "--llama-cpp records all points" in done.stderr


class TestCompare:
    def test_equal(self, run: Run, tiny: Path, tmp_path: Path) -> None:
        for backend in ("cpu", "reference"):
            run("trace", PROMPT, "-m", tiny, "--backend", backend, "--save", tmp_path / f"{backend}.npz")
        done = run("compare", tmp_path / "cpu.npz", tmp_path / "reference.npz")
        assert done.exit_code == 0
        assert "points equal in every bit" in done.stdout

    def test_different(self, run: Run, model: LanguageModel, tmp_path: Path) -> None:
        ids = model.tokenizer.encode(PROMPT)
        model.trace(ids, "*").save(tmp_path / "a.npz")
        model.trace(ids, "*", edits={"blk.0.ffn_out": edits.zero()}).save(tmp_path / "b.safetensors")
        done = run("compare", tmp_path / "a.npz", tmp_path / "b.safetensors", "--plot", tmp_path / "errors.png")
        assert done.exit_code == 1
        assert "the first that differs is blk.0.ffn_out" in done.stdout
        assert (tmp_path / "errors.png").exists()
        found = json.loads(run("compare", tmp_path / "a.npz", tmp_path / "b.safetensors", "--json").stdout)
        assert found["first_difference"] == "blk.0.ffn_out"
        assert not found["equal"]
        every = run("compare", tmp_path / "a.npz", tmp_path / "b.safetensors", "--all", "--record", "blk.0.q*")
        assert every.exit_code == 0

    def test_no_recording(self, run: Run, tiny: Path) -> None:
        done = run("compare", tiny, tiny)
        assert done.exit_code == 2
        assert "wanted a name that ends in .npz or .safetensors" in done.stderr


class TestPictures:
    @pytest.mark.parametrize(
        "arguments",
        [("attention", PROMPT, "--layer", 0, "--head", 1), ("lens", PROMPT, "--top", 3), ("norms", PROMPT),
         ("entropy", PROMPT, "-n", 5), ("patch", "the land and", "the sand and", "--answers", "a", "b")],
    )  # fmt: skip
    def test_picture_json_and_table(self, run: Run, tiny: Path, tmp_path: Path, arguments: tuple) -> None:
        options = (*arguments, "-m", tiny)
        if arguments[0] == "patch":
            options = ("patch", "and the and", "the and and", "--answers", "a", "b", "-m", tiny)
        table = run(*options)
        assert table.exit_code == 0, table.stderr
        assert len(table.stdout.splitlines()) >= 2
        drawn = run(*options, "-o", tmp_path / "picture.png")
        assert drawn.stdout == ""
        assert (tmp_path / "picture.png").stat().st_size > 3000
        assert json.loads(run(*options, "--json").stdout)
        wrong = run(*options, "-o", tmp_path / "picture.nothing")
        assert wrong.exit_code == 2
        assert "picture.nothing" in wrong.stderr

    def test_numbers(self, run: Run, tiny: Path, model: LanguageModel) -> None:
        ids = model.tokenizer.encode(PROMPT)
        found = json.loads(run("lens", PROMPT, "-m", tiny, "--json").stdout)
        assert found["layers"][-1][-1][0]["token"] == int(model.logits(ids)[-1].argmax())
        maps = json.loads(run("attention", PROMPT, "-m", tiny, "--json").stdout)["heads"]
        want = model.trace(ids, "blk.0.kq_soft_max")["blk.0.kq_soft_max"]
        np.testing.assert_array_equal(np.array(maps["2"], np.float32), want[:, 2])

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [(("attention", "a", "--layer", 9), "layers 0 to 0"), (("attention", "a", "--head", 9), "no head 9"),
         (("lens", "a", "--top", 0), "top is 0"),
         (("patch", "a", "a b", "--answers", "a", "b"), "equally many are wanted"),
         (("patch", "a", "b", "--answers", "a", "bbb"), "the answer 'bbb' is 3 tokens, one is wanted")],
    )  # fmt: skip
    def test_bad_input(self, run: Run, tiny: Path, arguments: tuple, message: str) -> None:
        done = run(*arguments, "-m", tiny)
        assert done.exit_code == 2
        assert message in done.stderr

    def test_report(self, run: Run, tiny: Path, tmp_path: Path) -> None:
        done = run("inspect", PROMPT, "-m", tiny, "-o", tmp_path / "report.html")
        assert done.exit_code == 0, done.stderr
        assert "<!doctype html>" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_perplexity(run: Run, tiny: Path, model: LanguageModel, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("the land and the sea " * 20)
    done = run("perplexity", tmp_path / "text.txt", "-m", tiny, "--chunk", 32, "--tokens", "-o", tmp_path / "p.png")
    want = model.perplexity("the land and the sea " * 20, n_ctx=32)
    assert done.stdout.splitlines()[-1].startswith(f"PPL = {want.value:.4f} +/- {want.error:.5f}")
    assert len(done.stdout.splitlines()) == want.n_scored + 2
    assert (tmp_path / "p.png").exists()
    found = json.loads(run("perplexity", tmp_path / "text.txt", "-m", tiny, "--chunk", 32, "--json").stdout)
    assert found["perplexity"] == want.value
    short = run("perplexity", tmp_path / "text.txt", "-m", tiny, "--chunk", 190)
    assert short.exit_code == 2
    assert "two chunks" in short.stderr


class TestTheModelBeforeTheText:
    @pytest.mark.parametrize(
        "arguments",
        [("trace", PROMPT, "--record", "blk.0.q"), ("lens", PROMPT), ("patch", "a b", "b a", "--answers", "a", "b"),
         ("step", PROMPT, "--commands", "-")],
    )  # fmt: skip
    def test_both_ways(self, run: Run, tiny: Path, tmp_path: Path, arguments: tuple) -> None:
        (tmp_path / "script.txt").write_text("next 3\n")
        command, *rest = (tmp_path / "script.txt" if word == "-" else word for word in arguments)
        want, got = run(command, *rest, "-m", tiny), run(command, tiny, *rest)
        assert (want.exit_code, want.stdout) == (0, got.stdout)

    def test_with_a_file(self, run: Run, tiny: Path, tmp_path: Path) -> None:
        (tmp_path / "prompt.txt").write_text(PROMPT + "\n")
        want = run("norms", tiny, PROMPT)
        assert want.exit_code == 0
        for options in ((tiny, "-f", tmp_path / "prompt.txt"), ("-m", tiny, "-f", tmp_path / "prompt.txt")):
            assert run("norms", *options).stdout == want.stdout
        (tmp_path / "text.txt").write_text("the land and the sea " * 20)
        both = [run("perplexity", *words, tmp_path / "text.txt", "--chunk", 32) for words in ((tiny,), ("-m", tiny))]
        assert both[0].stdout.startswith("PPL = ")
        assert both[0].stdout == both[1].stdout

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [(("lens", "MODEL", "a", "b"), "found 3 words, wanted [MODEL] PROMPT"),
         (("lens", "MODEL", "a", "-m", "MODEL"), "two models"), (("lens",), "give PROMPT or --file"),
         (("patch", "a", "--answers", "a", "b"), "found 1 words, wanted [MODEL] CLEAN CORRUPTED"),
         (("perplexity",), "give a FILE")],
    )  # fmt: skip
    def test_wrong_words(self, run: Run, tiny: Path, arguments: tuple, message: str) -> None:
        done = run(*(tiny if word == "MODEL" else word for word in arguments))
        assert done.exit_code == 2
        assert message in done.stderr


class TestStep:
    def script(self, run: Run, tiny: Path, tmp_path: Path, *lines: str, backend: str = "cpu"):
        (tmp_path / "script.txt").write_text("\n".join(lines))
        return run("step", PROMPT, "-m", tiny, "--backend", backend, "--commands", tmp_path / "script.txt")

    def test_a_session(self, run: Run, tiny: Path, tmp_path: Path, model: LanguageModel) -> None:
        ids = model.tokenizer.encode(PROMPT)
        trace = model.trace(ids, ["*", "blk.0.kq_soft_max"])
        done = self.script(
            run, tiny, tmp_path, "# a comment", "next 2", "show token_embd", "until blk.0.kq_soft_max", "value -1, 0",
            "where", "inputs", "source", "back blk.0.q", "until result_output", "top 1", "finish",
        )  # fmt: skip
        assert done.exit_code == 0, done.stdout
        lines = done.stdout.splitlines()
        assert lines[2].startswith("blk.0.attn_norm: float32")
        assert np.array2string(trace["blk.0.kq_soft_max"][-1, 0], precision=6) in done.stdout
        assert "llama.py:" in done.stdout
        assert "def attention_soft_max" in done.stdout
        assert f" {int(trace.logits[-1].argmax())} " in lines[-5]

    def test_help(self, run: Run, tiny: Path, tmp_path: Path) -> None:
        done = self.script(run, tiny, tmp_path, "help", "help break")
        assert done.exit_code == 0
        first, second = done.stdout.split("(step) help break\n")
        assert "\nback [POINT]: return to" in first
        assert first.count("\nabort: leave") == 1
        assert max(map(len, first.splitlines())) <= 80
        assert second.startswith(
            "break POINT | layer N | nan | above X | differs FILE: stop there.\n\nnan is the first"
        )
        assert self.script(run, tiny, tmp_path, "help jump").exit_code == 2

    def test_breakpoints(self, run: Run, tiny: Path, tmp_path: Path, model: LanguageModel) -> None:
        ids = model.tokenizer.encode(PROMPT)
        other = model.trace(ids, "*", edits={"blk.0.ffn_up": edits.zero(positions=2)})
        other.save(tmp_path / "other.npz")
        done = self.script(
            run, tiny, tmp_path, "break layer 0", "break blk.*.kqv", "break nan", "break above 1e9",
            f"break differs {tmp_path / 'other.npz'}", "delete 3", "break", *["continue"] * 4,
        )  # fmt: skip
        assert done.exit_code == 0
        hits = [line for line in done.stdout.splitlines() if line.startswith("breakpoint")][5:]
        assert hits == ["breakpoint 1: layer 0", "breakpoint 2: blk.*.kqv",
                        f"breakpoint 5: differs {tmp_path / 'other.npz'}",
                        f"breakpoint 5: differs {tmp_path / 'other.npz'}"]  # fmt: skip
        assert "blk.0.ffn_up: float32" in done.stdout

    def test_replacing(self, run: Run, tiny: Path, tmp_path: Path, model: LanguageModel) -> None:
        ids = model.tokenizer.encode(PROMPT)
        model.trace(ids, "*").save(tmp_path / "plain.npz")
        done = self.script(
            run, tiny, tmp_path, "until blk.0.q", f"diff {tmp_path / 'plain.npz'}", "replace zero 1", "value 1, :2",
            "replace 2.5 0, 0", "value 0, 0", "replace scale 2 0, 0", "value 0, 0", f"diff {tmp_path / 'plain.npz'}",
        )  # fmt: skip
        assert "values equal" in done.stdout
        assert "[0. 0.]" in done.stdout
        assert "\n2.5\n" in done.stdout
        assert "\n5.\n" in done.stdout
        assert "257 of" in done.stdout

    def test_weights(self, run: Run, tiny: Path, tmp_path: Path) -> None:
        done = self.script(
            run, tiny, tmp_path, "weight blk.0.attn_q.weight", "weight blk.0.attn_q.weight 3 4", "points *.q"
        )
        assert "<Weight blk.0.attn_q.weight (256, 256) F32" in done.stdout
        assert "F32 block [3, 4] of blk.0.attn_q.weight" in done.stdout
        assert done.stdout.splitlines()[-1] == "blk.0.q"

    @pytest.mark.parametrize(
        ("line", "message"),
        [("jump", "no command 'jump'"), ("until blk.7.q", "layers 0 to 0"), ("value", "nothing is there yet"),
         ("next x", "found 'x', wanted a number"), ("back blk.0.q", "cannot go back"),
         ("break above", "wanted a number"),
         ("break blk.0.q sometimes", "no condition 'sometimes'"), ("delete 4", "no breakpoint '4'"),
         ("weight nothing", "no tensor 'nothing'"), ("diff", "a file is wanted"), ("continue", "no breakpoints"),
         ("break layer x", "no layer 'x'"), ("top", "not there yet"), ("pdb", "start with NUMBA_DISABLE_JIT=1"),
         ("break differs llama.cpp", "minillama step --llama-cpp FOLDER")],
    )  # fmt: skip
    def test_wrong_commands_end_a_script(self, run: Run, tiny: Path, tmp_path: Path, line: str, message: str) -> None:
        done = self.script(run, tiny, tmp_path, line, "next")
        assert done.exit_code == 2
        assert message in done.stdout
        assert "token_embd" not in done.stdout

    def test_typing(self, run: Run, tiny: Path) -> None:
        done = run("step", PROMPT, "-m", tiny, stdin="n\nvalue 100\nvalue x\nhelp next\nq\n")
        assert done.exit_code == 0
        assert "token_embd: float32" in done.stdout
        assert "index 100 is out of bounds" in done.stdout
        assert "run to the next value" in done.stdout


class TestWithoutACompiler:
    """``NUMBA_DISABLE_JIT=1`` and the reference backend: a person goes on into the kernels."""

    def step(self, tmp_path: Path, commands: str, *options: str, **environment: str) -> str:
        path = TinyModel(n_layer=1, n_ctx=64).write(tmp_path / "tiny.gguf")
        (tmp_path / "script.txt").write_text(commands)
        arguments = ["step", str(path), "th", "--commands", str(tmp_path / "script.txt"), *options]
        done = subprocess.run(
            [sys.executable, "-m", "minillama", *arguments],
            capture_output=True, text=True, check=False, env={**os.environ, **environment},
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def test_the_same_values(self, tmp_path: Path) -> None:
        commands = "until blk.0.kq_soft_max\nvalue 0, 0\nwhere\nfinish\n"
        compiled = self.step(tmp_path, commands)
        plain = self.step(tmp_path, commands, "--backend", "reference", NUMBA_DISABLE_JIT="1")
        assert compiled == plain
        assert "[1. " in compiled or "[1.]" in compiled

    def test_into_a_kernel_with_pdb(self, tmp_path: Path) -> None:
        lines = (
            "until token_embd", "pdb", "next", "p (start, stop)", "step", "where", "continue",
            "pdb", "quit", "until blk.0.attn_norm", "finish",
        )  # fmt: skip
        shown = self.step(tmp_path, "\n".join(lines), "--backend", "reference", NUMBA_DISABLE_JIT="1")
        assert "kernels/reference/" in shown  # the kernel's own file, and its arguments
        assert "rms_norm" in shown
        assert "(0, 1)" in shown  # one token
        assert "(step) finish" in shown
        assert "left pdb before the value was there" in shown
        after = shown.split("(step) until blk.0.attn_norm")
        assert "blk.0.attn_norm: float32" in after[0]
        assert "the pass came to its end" in after[1]
