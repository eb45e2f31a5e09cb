"""What the library logs, shown on stderr: warnings as lines, compilation as one line that goes away."""

from __future__ import annotations

import logging
import shutil
import sys
from types import TracebackType

import click

from minillama.cli.output import visible

_PACKAGE = logging.getLogger("minillama")
_KERNELS = logging.getLogger("minillama.kernels")
_COMPILING = "compiling kernels for this machine (first run only)"


class Notices(logging.Handler):
    """Shows log records of the package while its ``with`` block runs.

    Attributes
    ----------
    compiled
        Kernels that were compiled.
    text_is_open
        A line of text is unfinished on the terminal: nothing may be written over it.
    """

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.compiled = 0
        self.text_is_open = False
        self._shown = 0  # columns of the line that is to go away
        self._level = _KERNELS.level

    def __enter__(self) -> Notices:
        _KERNELS.setLevel(logging.INFO)
        _PACKAGE.addHandler(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _PACKAGE.removeHandler(self)
        _KERNELS.setLevel(self._level)
        self.hide()

    def emit(self, record: logging.LogRecord) -> None:
        """Show a record."""
        if record.levelno >= logging.WARNING:
            self.hide()
            start = "\n" if self.text_is_open and sys.stderr.isatty() else ""
            click.echo(f"{start}minillama: warning: {visible(record.getMessage())}", err=True)
        elif record.name == _KERNELS.name:
            self._show_compiling(record.getMessage().removeprefix("compiling "))

    def hide(self) -> None:
        """Take the line about compilation away."""
        if self._shown:
            click.echo("\r" + " " * self._shown + "\r", nl=False, err=True)
            self._shown = 0

    def _show_compiling(self, kernel: str) -> None:
        if not sys.stderr.isatty():
            if not self.compiled:
                click.echo(_COMPILING, err=True)
        elif not self.text_is_open:
            line = f"{_COMPILING}: {kernel}"[: shutil.get_terminal_size().columns - 1]
            click.echo("\r" + line.ljust(self._shown), nl=False, err=True)
            self._shown = max(self._shown, len(line))
        self.compiled += 1
