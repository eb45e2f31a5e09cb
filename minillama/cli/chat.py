"""``minillama chat``: talk to a model."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

import click

from minillama.cli.inputs import decoded
from minillama.cli.loading import load_model
from minillama.cli.notices import Notices
from minillama.cli.options import (
    cache_option,
    debug_option,
    examples,
    loading_options,
    max_tokens_option,
    sampling_arguments,
    sampling_options,
)
from minillama.cli.output import note
from minillama.cli.streaming import TextOutput
from minillama.errors import ContextFullError

if TYPE_CHECKING:
    from minillama.generate import Conversation, LanguageModel
    from minillama.runtime.kv_cache import KVCache

_HELP = "/clear starts anew, /exit or /quit or Ctrl-D leaves, Ctrl-C stops an answer"
_LEAVE = ("/exit", "/quit")
_ENDINGS = {
    "length": "the answer was cut at --max-tokens",
    "context": "the context is full: /clear starts anew",
}


@click.command(
    epilog=examples(
        "minillama chat",
        "minillama chat -m qwen2.5-coder-0.5b --system 'Answer with code only.'",
        "echo 'What is 2 + 2?' | minillama chat",
    )
)
@click.option("--system", metavar="TEXT", help="Instructions that come before the conversation.")
@max_tokens_option(-1)
@loading_options
@sampling_options
@cache_option
@debug_option
def chat(system: str | None, cache_file: str | None, **options: Any) -> None:
    """Talk to a model; each line is a message.

    Commands: /clear starts anew, /help, /exit or /quit (or Ctrl-D) leaves. Ctrl-C stops an answer, not the program.
    When stdin is not a terminal, each of its lines is a message.
    """
    from minillama.generate import PromptCache

    with Notices() as notices:
        model = load_model(options)
        kept = None if cache_file is None else PromptCache(model, cache_file)
        cache = None if kept is None else kept.cache
        session = _Session(model, system, cache, sampling_arguments(options), TextOutput(notices))
        if sys.stdin.isatty():
            note(f"{model.config.name}, {model.n_ctx} tokens of context")
            note(_HELP)
        for line in _lines():
            if line.strip() in _LEAVE:
                break
            session.take(line.strip())
        if kept is not None:
            kept.save()


def _lines() -> Iterator[str]:
    """What the user types, line by line, or stdin's lines."""
    if not sys.stdin.isatty():
        yield from (decoded(line, "-") for line in sys.stdin.buffer)
        return
    with suppress(ImportError):
        import readline  # noqa: F401 - importing it gives input() line editing and history
    while True:
        try:
            yield input("> ")
        except EOFError:
            click.echo()
            return
        except KeyboardInterrupt:
            click.echo()
            note("/exit or Ctrl-D leaves")


class _Session:
    """A conversation on the terminal."""

    def __init__(
        self,
        model: LanguageModel,
        system: str | None,
        cache: KVCache | None,
        options: dict[str, Any],
        output: TextOutput,
    ) -> None:
        self._model = model
        self._cache = cache
        self._start = [{"role": "system", "content": system}] if system is not None else []
        self._options = options
        self._output = output
        self._conversation = self._new()

    def take(self, line: str) -> None:
        """Obey a command, or answer a message."""
        if line == "/clear":
            self._conversation = self._new()
        elif line == "/help":
            note(_HELP)
        elif line.startswith("/") and len(line.split()) == 1:
            note(f"unknown command {line}, /help lists them")
        elif line:
            self._answer(line)

    def _new(self) -> Conversation:
        return self._model.conversation(self._start, cache=self._cache)

    def _answer(self, message: str) -> None:
        self._conversation.add("user", message)
        try:
            self._write_answer()
        except KeyboardInterrupt:
            self._output.end_line()
            self._forget_unanswered()
            note("stopped")
        except ContextFullError as error:
            self._forget_unanswered()
            note(f"{error}; /clear starts anew")

    def _write_answer(self) -> None:
        # Closed at once when interrupted: that is when the conversation takes up what was said so far.
        stream = self._conversation.stream(**self._options)
        with closing(stream) as pieces:
            for piece in pieces:
                self._output.write(piece.text)
                if piece.finish_reason is not None:
                    self._output.end_line()
                    if piece.finish_reason in _ENDINGS:
                        note(_ENDINGS[piece.finish_reason])

    def _forget_unanswered(self) -> None:
        """A message without an answer must not stay: many templates refuse two user messages in a row."""
        if self._conversation.messages[-1]["role"] == "user":
            self._conversation.messages.pop()
