"""``minillama chat``: messages, commands, interruptions; the model is a stand-in where only the program matters."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import minillama as ml
from minillama.cli.streaming import TextOutput
from minillama.errors import ContextFullError
from minillama.generate import Piece
from tests.tiny_models import TinyModel


class Conversation:
    """Answers every message with its number of messages; raises what it is told to."""

    def __init__(self, messages, faults):
        self.messages = list(messages)
        self._faults = faults

    def add(self, role, content):
        self.messages.append({"role": role, "content": content})

    def stream(self, **options):
        fault = self._faults.pop(0) if self._faults else None
        if fault is not None and not isinstance(fault, str):
            raise fault
        text = f"answer to {[message['content'] for message in self.messages]}"
        try:
            yield Piece(text, 1)
        finally:
            self.add("assistant", "answer")
        yield Piece("", None, None, fault or "stop")


@pytest.fixture
def talk(run, monkeypatch):
    """Run a chat with the stand-in; returns the result and the options that reached the library."""

    def call(*lines, arguments=(), faults=()):
        faults = list(faults)
        model = SimpleNamespace(conversation=lambda messages, cache: Conversation(messages, faults))
        monkeypatch.setattr("minillama.cli.chat.load_model", lambda options: model)
        return run("chat", *arguments, stdin="".join(f"{line}\n" for line in lines))

    return call


def test_every_line_is_a_message(talk):
    result = talk("one", "", "  two ")
    assert result.stdout == "answer to ['one']\nanswer to ['one', 'answer', 'two']\n"
    assert result.stderr == ""
    assert result.exit_code == 0


def test_system_text_comes_first_also_after_clear(talk):
    result = talk("one", "/clear", "two", arguments=("--system", "Be brief."))
    assert result.stdout == "answer to ['Be brief.', 'one']\nanswer to ['Be brief.', 'two']\n"


@pytest.mark.parametrize("command", ["/exit", "/quit"])
def test_leaving(talk, command):
    result = talk("one", command, "two")
    assert result.stdout.count("answer to") == 1
    assert result.exit_code == 0


def test_help_and_unknown_commands_go_to_stderr(talk):
    result = talk("/help", "/halp", "/etc/passwd is what?")
    assert "/clear starts anew" in result.stderr
    assert "unknown command /halp" in result.stderr
    assert result.stdout == "answer to ['/etc/passwd is what?']\n"


def test_ctrl_c_before_the_answer_takes_the_message_back(talk):
    result = talk("one", "two", faults=[KeyboardInterrupt()])
    assert result.stdout == "answer to ['two']\n"
    assert result.stderr == "stopped\n"
    assert result.exit_code == 0


def test_ctrl_c_between_two_pieces_keeps_what_was_said(talk, monkeypatch):
    write, interrupts = TextOutput.write, [KeyboardInterrupt()]

    def write_or_interrupt(self, text):
        write(self, text)
        if interrupts:
            raise interrupts.pop()

    monkeypatch.setattr(TextOutput, "write", write_or_interrupt)
    assert talk("one", "two").stdout == "answer to ['one']\nanswer to ['one', 'answer', 'two']\n"


def test_a_message_too_long_for_the_context_is_taken_back(talk):
    result = talk("one", "two", faults=[ContextFullError("context full: too long")])
    assert result.stdout == "answer to ['two']\n"
    assert result.stderr == "context full: too long; /clear starts anew\n"


@pytest.mark.parametrize(("reason", "told"), [("length", "--max-tokens"), ("context", "/clear")])
def test_an_answer_cut_short_says_why(talk, reason, told):
    assert told in talk("one", faults=[reason]).stderr


def test_answers_are_the_librarys(run, tiny):
    conversation = ml.load(tiny).conversation()
    expected = ""
    for message in ("hi", "and then"):
        conversation.add("user", message)
        text = conversation.reply(max_tokens=8).text
        expected += text if text.endswith("\n") else text + "\n"
    result = run("chat", "-m", tiny, "-n", 8, stdin="hi\nand then\n")
    assert result.exit_code == 0
    assert result.stdout == expected


def test_a_model_without_a_template_is_named(run, tmp_path):
    path = TinyModel(n_layer=1).write(tmp_path / "bare.gguf")
    result = run("chat", "-m", path, "-n", 2, stdin="hi\nagain\n")
    assert result.stderr.count("minillama: warning: the model has no chat template") == 1


def test_a_message_that_is_not_text(run, tiny):
    result = run("chat", "-m", tiny, "-n", 1, stdin=b"caf\xe9\n")
    assert result.exit_code == 2
    assert result.stderr == (
        "minillama: error: standard input: the text is not UTF-8 at byte 3 (invalid continuation byte)\n"
    )


def test_a_bad_option_ends_the_program(run, tiny):
    result = run("chat", "-m", tiny, "--top-p", 3, "--temp", 1, stdin="hi\n")
    assert result.exit_code == 2
    assert result.stderr == "minillama: error: --top-p: found 3.0, wanted a number from 0 to 1\n"
