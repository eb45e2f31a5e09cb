"""What a user sees when something goes wrong: one line on stderr."""

from __future__ import annotations

import re
from typing import IO, Any

import click

from minillama.cli.output import visible
from minillama.errors import InvalidInputError, MinillamaError

# How messages about an argument of the library begin: "n_ctx is 0, ..." or "logit_bias[5]: found ..."
_ARGUMENT = re.compile(r"(\w+)(?=(\[\d+\])?(: found | is ))")


class Failure(click.ClickException):
    """Ends the program with ``minillama: error: <message>`` and exit code 2."""

    exit_code = 2

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the message."""
        click.echo(f"minillama: error: {self.message}", file=file, err=file is None)


def describe(error: Exception, command: click.Command) -> str:
    """Return the error in one line, with arguments of the library spelled as the command's options."""
    if isinstance(error, InvalidInputError):
        message = _as_option(str(error), command)
    elif isinstance(error, MinillamaError):
        message = str(error)
    elif isinstance(error, OSError):
        message = f"{error.filename}: {error.strerror}" if error.filename is not None else error.strerror or str(error)
    else:
        message = f"internal error, {type(error).__name__}: {error} (--debug shows where; please report it)"
    return visible(message)


def _as_option(message: str, command: click.Command) -> str:
    options = {
        parameter.name: max(parameter.opts, key=len)
        for parameter in command.params
        if isinstance(parameter, click.Option)
    }
    return _ARGUMENT.sub(lambda match: options.get(match[1], match[1]), message, count=1)
