"""Where the text of a command comes from: the command line, a file, or standard input."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from minillama.errors import InvalidInputError


def read_text(text: str | None, file: str | None, what: str) -> str | bytes:
    """Return the text of the command line as it is, or the bytes of the file."""
    if (text is None) == (file is None):
        found = "neither" if text is None else "both"
        raise click.UsageError(f"give {what} or --file ({found} found); --file - reads standard input")
    if text is not None:
        return text
    return sys.stdin.buffer.read() if file == "-" else Path(str(file)).read_bytes()


def read_prompt(text: str | None, file: str | None) -> str:
    """Return the prompt; a file's last line break is left out, as llama.cpp does it."""
    found = read_text(text, file, "PROMPT")
    return found if isinstance(found, str) else decoded(found, str(file)).removesuffix("\n")


def decoded(data: bytes, file: str) -> str:
    """Return the text of UTF-8 bytes; the file is named in the error."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        where = "standard input" if file == "-" else file
        raise InvalidInputError(f"{where}: the text is not UTF-8 at byte {error.start} ({error.reason})") from None
