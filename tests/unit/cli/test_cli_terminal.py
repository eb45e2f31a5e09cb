"""What only happens on a terminal: echo of the prompt, statistics, colours, no harmful characters."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import time

import pytest

import minillama as ml
from tests.programs import COMMAND_LINE

pty = pytest.importorskip("pty", reason="needs a Unix terminal")

_CODES = re.compile(r"\x1b\[[0-9;]*m")


class Terminal:
    """The program on a pseudo-terminal of 80 columns."""

    def __init__(self, *arguments: object, **environment: str) -> None:
        ours, theirs = pty.openpty()
        command = [sys.executable, "-c", COMMAND_LINE, *map(str, arguments)]
        clean = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
        env = {**clean, "TERM": "xterm-256color", "COLUMNS": "80", **environment}
        self.process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, env=env, start_new_session=True
        )
        os.close(theirs)
        self._ours = ours
        self.seen = ""

    def write(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def wait_for(self, text: str) -> None:
        deadline = time.monotonic() + 60
        while text not in self.seen:
            assert time.monotonic() < deadline, f"{text!r} not in {self.seen[:200]!r} ... {self.seen[-200:]!r}"
            if not self._read():
                break
        assert text in self.seen

    def wait_for_text(self, n: int) -> None:
        while len(self.seen) < n:
            assert self._read()

    def read_for(self, seconds: float) -> None:
        while select.select([self._ours], [], [], seconds)[0] and self._read():
            pass

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def end(self) -> str:
        while self._read():
            pass
        self.process.wait(timeout=60)
        return self.seen

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_error: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)

    def _read(self) -> bool:
        if not select.select([self._ours], [], [], 60)[0]:
            raise TimeoutError(self.seen[-200:])
        try:
            data = os.read(self._ours, 65536)
        except OSError:  # Linux's way to say that the other end is closed
            return False
        self.seen += data.decode("utf-8", "replace")
        return bool(data)


def shown_by(*arguments: object, **environment: str) -> str:
    """All that the program prints, with its escape codes."""
    with Terminal(*arguments, **environment) as terminal:
        return terminal.end()


def test_prompt_is_echoed_and_statistics_follow(tiny):
    shown = shown_by("generate", "the band", "-m", tiny, "-n", 5)
    assert "\x1b[2mthe band\x1b[0m" in shown
    assert re.search(r"\r\n\x1b\[2m4 prompt tokens .*, length\x1b\[0m\r\n$", shown)


def test_no_color_is_honoured(tiny):
    assert "\x1b[" not in shown_by("generate", "the band", "-m", tiny, "-n", 0, NO_COLOR="1")
    assert not re.search(r"\x1b\[(3|4|9|10)\d", shown_by("tokenize", "the band", "-m", tiny, NO_COLOR="1"))


def test_escape_codes_do_not_reach_a_terminal(tiny):
    token = ml.Tokenizer.from_gguf(tiny).encode("\x1b", add_special=False)[0]
    shown = shown_by("generate", "evil\x1b[2J", "-m", tiny, "-n", 2, "--logit-bias", f"{token}=1e9")
    assert r"evil\x1b[2J" in shown
    assert r"\x1b\x1b" in shown
    assert "\x1b" not in _CODES.sub("", shown)


def test_tokens_are_coloured_cells_above_their_ids(tiny):
    shown = shown_by("tokenize", "the band\n" * 20, "-m", tiny)
    assert re.search(r"\x1b\[(30;106m|30m\x1b\[106m)the\x1b", shown)
    lines = _CODES.sub("", shown).replace("\r", "").splitlines()
    assert max(map(len, lines)) <= 80
    pieces, ids = lines[0].split(), lines[1].split()
    assert pieces[:3] == ["the", "·", "b"]
    assert len(pieces) == len(ids)
    assert lines[-1] == "100 tokens"


def test_ctrl_c_stops_an_answer_but_not_the_chat(endless):
    with Terminal("chat", "-m", endless, "--ignore-eos") as chat:
        for _ in range(2):
            chat.wait_for("> ")
            chat.seen = ""
            chat.write("hello\n")
            chat.wait_for_text(100)
            chat.interrupt()
            chat.wait_for("stopped")
        chat.wait_for("> ")
        chat.write("half a line")
        chat.wait_for("half a line")
        while "/exit or Ctrl-D leaves" not in chat.seen:
            chat.interrupt()  # CPython's readline loses a signal that comes while it handles a key
            chat.read_for(1.0)
        chat.write("\x04")
        assert "Traceback" not in chat.end()
        assert chat.process.returncode == 0


@pytest.mark.parametrize(
    "arguments",
    [("trace",), ("lens", "--top", "12"), ("attention",), ("norms",),
     ("patch", "and the sand the band", "--answers", "a", "b")],
)  # fmt: skip
def test_tables_of_values_fit_and_keep_their_names(tiny, arguments):
    command, *rest = arguments
    shown = _CODES.sub("", shown_by(command, "the and the sand and", *rest, "-m", tiny)).replace("\r", "")
    assert max(map(len, shown.splitlines())) <= 80
    tables = [part.splitlines() for part in shown.rstrip("\n").split("\n\n")]
    assert len({len(lines) for lines in tables}) == 1  # parts side by side have the same rows,
    assert len({tuple(line.split()[0] for line in lines) for lines in tables}) == 1  # of the same names
    if command == "trace":
        assert "blk.0.attn_norm  " in shown
