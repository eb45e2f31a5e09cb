"""Writing generated text to stdout as it comes."""

from __future__ import annotations

import sys

import click

from minillama.cli.notices import Notices
from minillama.cli.output import dim, visible_text


class TextOutput:
    """Stdout for generated text: exact when piped, without harmful characters on a terminal."""

    def __init__(self, notices: Notices) -> None:
        self.is_terminal = sys.stdout.isatty()
        self._notices = notices

    def echo_prompt(self, text: str) -> None:
        """Show the prompt before its continuation, on a terminal only."""
        if self.is_terminal and text:
            self._write(dim(visible_text(text), sys.stdout), text)

    def write(self, text: str) -> None:
        """Write text at once."""
        if text:
            self._write(visible_text(text) if self.is_terminal else text, text)

    def end_line(self) -> None:
        """Go to the beginning of a line."""
        if self._notices.text_is_open:
            self._write("\n", "\n")

    def _write(self, shown: str, text: str) -> None:
        self._notices.hide()
        # color=True keeps click from removing escapes where stdout is no terminal: piped text is to stay exact.
        click.echo(shown, nl=False, color=True)
        self._notices.text_is_open = not text.endswith("\n")
