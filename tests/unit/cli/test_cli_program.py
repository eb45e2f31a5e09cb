"""The program itself: help, version, what starting it loads; the catalog's commands; notices."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys

import pytest

import minillama
from minillama import hub
from minillama.cli import main
from minillama.cli.notices import Notices
from minillama.cli.output import size, visible, visible_text
from minillama.cli.streaming import TextOutput


@pytest.mark.parametrize("command", sorted(main.commands))
def test_help_gives_an_example(run, command):
    text = run(command, "--help").stdout
    assert f"  minillama {command}" in text.split("Examples:")[1]
    assert run(command, "-h").stdout == text
    assert max(map(len, text.splitlines())) <= 80


def test_help_of_the_program(run):
    text = run("--help").stdout
    assert all(command in text for command in ("chat", "generate", "info", "models", "pull", "tokenize"))
    assert 'minillama generate "' in text.split("Examples:")[1]


def test_version(run):
    assert run("--version").stdout == f"minillama, version {minillama.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "heavy"),
    [(["--help"], "numpy numba rich jinja2"), (["models"], "numpy numba"), (["tokenize", "hi"], "numba jinja2")],
)
def test_light_commands_load_nothing_heavy(tiny, arguments, heavy):
    if arguments[0] == "tokenize":
        arguments = [*arguments, "-m", str(tiny)]
    code = (
        f"import sys; from minillama.cli import main; main({arguments!r}, standalone_mode=False);"
        f"print([name for name in {heavy.split()} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_models_table_fits_80_columns(run):
    lines = run("models").stdout.splitlines()
    assert lines[0].split() == ["name", "architecture", "quant", "size", "license", "here"]
    assert [line.split()[0] for line in lines[1:]] == [model.name for model in hub.local_models()]
    assert max(map(len, lines)) <= 80


def test_models_json(run, tmp_path, monkeypatch):
    monkeypatch.setenv("MINILLAMA_CACHE", str(tmp_path))
    found = json.loads(run("models", "--json").stdout)
    assert [entry["name"] for entry in found] == hub.catalog_names()
    assert not any(entry["present"] for entry in found)
    assert set(found[0]) == {"name", "path", "bytes", "present", "architecture", "quant", "license"}


def test_pull_prints_paths(run, monkeypatch, tmp_path):
    def resolve(name, progress):
        progress(1, 2_000_000, "downloading")
        return tmp_path / name

    monkeypatch.setattr("minillama.hub.resolve", resolve)
    result = run("pull", "a", "b")
    assert result.stdout == f"{tmp_path / 'a'}\n{tmp_path / 'b'}\n"
    assert result.stderr == "a: downloading (2.0 MB)\nb: downloading (2.0 MB)\n"


class FakeTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_compiling_is_one_line_where_there_is_no_terminal(capsys):
    with Notices() as notices:
        for name in ("rms_norm", "soft_max"):
            logging.getLogger("minillama.kernels").info("compiling %s", name)
    assert capsys.readouterr().err == "compiling kernels for this machine (first run only)\n"
    assert notices.compiled == 2
    logging.getLogger("minillama.kernels").info("compiling %s", "later")
    assert capsys.readouterr().err == ""


def test_compiling_is_overwritten_and_wiped_on_a_terminal(monkeypatch):
    monkeypatch.setattr(sys, "stderr", FakeTerminal())
    with Notices() as notices:
        logging.getLogger("minillama.kernels").info("compiling %s", "a_long_name")
        logging.getLogger("minillama.kernels").info("compiling %s", "short")
        notices.hide()
        before = sys.stderr.getvalue()
        notices.text_is_open = True
        logging.getLogger("minillama.kernels").info("compiling %s", "while text is shown")
        assert sys.stderr.getvalue() == before
    first, second, wiped, end = before.split("\r")[1:]
    assert first == "compiling kernels for this machine (first run only): a_long_name"
    assert second == "compiling kernels for this machine (first run only): short".ljust(len(first))
    assert (wiped, end) == (" " * len(first), "")


def test_warnings_are_single_harmless_lines(capsys):
    with Notices():
        logging.getLogger("minillama.model").warning("%s\nis odd", "\x1b[31mtensor")
        logging.getLogger("minillama.model").info("not shown")
    assert capsys.readouterr().err == "minillama: warning: \\x1b[31mtensor\\nis odd\n"


def test_generated_escape_codes_are_not_removed_from_a_pipe(capsys):
    TextOutput(Notices()).write("\x1b[31mred\x1b[0m")
    assert capsys.readouterr().out == "\x1b[31mred\x1b[0m"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain é 日本 👩‍💻 \xa0", "plain é 日本 👩‍💻 \xa0"),
        ("a\tb\nc\r", r"a\tb\nc\r"),
        ("\x1b[0m\x7f\x9b", r"\x1b[0m\x7f\x9b"),
        ("\u202eabc\u2066\u2028", r"\u202eabc\u2066\u2028"),
        (b"\xff\x80".decode("utf-8", "surrogateescape"), r"\xff\x80"),
        ("\ud800", r"\ud800"),
    ],
)
def test_harmful_characters_become_visible(text, shown):
    assert visible(text) == shown


def test_text_keeps_its_lines():
    assert visible_text("a\tb\nc\r\x1b") == "a\tb\nc\\r\\x1b"


@pytest.mark.parametrize(
    ("n_bytes", "shown"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (98_362_432, "98.4 MB"), (10**13, "10000.0 GB"), (None, "?")],
)
def test_sizes(n_bytes, shown):
    assert size(n_bytes) == shown
