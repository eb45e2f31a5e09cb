"""Printing: text that cannot harm a terminal, tables, JSON."""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

# Control characters, line separators, direction overrides and surrogates: what could move the cursor, recolour the
# terminal, reorder the line or fail to encode.
_HARMFUL = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_HARMFUL_IN_TEXT = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_UNITS = ("B", "kB", "MB", "GB")
_UNLIMITED = 1 << 16  # columns
_GAP = 2  # between columns


def visible(text: str) -> str:
    r"""Return text for one line of a terminal: harmful characters and line breaks as escapes such as ``\x1b``."""
    return _HARMFUL.sub(_escaped, text)


def visible_text(text: str) -> str:
    """Return text of many lines for a terminal: as `visible`, but line breaks and tabs stay."""
    return _HARMFUL_IN_TEXT.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is not UTF-8
        return f"\\x{code - 0xDC00:02x}"
    short = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
    return short.get(match[0]) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")


def dim(text: str, stream: IO[str]) -> str:
    """Return the text, dimmed if the stream is a terminal that may be coloured."""
    plain = not stream.isatty() or bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
    return text if plain else click.style(text, dim=True)


def note(text: str) -> None:
    """Print a dim line on stderr."""
    click.echo(dim(visible(text), sys.stderr), err=True)


def console() -> Console:
    """Return stdout for tables; what is not a terminal has lines of any length, so that nothing is cut."""
    from rich.console import Console

    return Console(highlight=False, markup=False, emoji=False, width=None if sys.stdout.isatty() else _UNLIMITED)


def table(*columns: str, right: Sequence[str] = (), whole: Sequence[str] = ()) -> Table:
    """Return an empty table without lines; the columns in ``right`` hold numbers, those in ``whole`` are not folded."""
    from rich.table import Table

    made = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    for name in columns:
        made.add_column(name, justify="right" if name in right else "left", overflow="fold", no_wrap=name in whole)
    return made


def print_wide_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table with any number of columns, in parts as wide as the terminal; each has the first column."""
    from rich.cells import cell_len

    widths = [max(map(cell_len, cells)) + _GAP for cells in zip(columns, *rows, strict=True)]
    room = console().width + _GAP - widths[0]  # nothing follows the last column
    parts: list[list[int]] = [[]]
    for i in range(1, len(columns)):
        if parts[-1] and sum(widths[j] for j in (*parts[-1], i)) > room:
            parts.append([])
        parts[-1].append(i)
    for number, part in enumerate(parts):
        made = table(*(columns[i] for i in (0, *part)), whole=columns[:1])
        for row in rows:
            made.add_row(*(row[i] for i in (0, *part)))
        if number:
            click.echo()
        print_table(made)


def print_table(rows: Table) -> None:
    """Print a table without the spaces at the ends of its lines."""
    screen = console()
    with screen.capture() as captured:
        screen.print(rows)
    lines = captured.get().rstrip("\n").split("\n")
    click.echo("\n".join(line.rstrip() for line in lines), color=True)


@contextmanager
def status_line(doing: str) -> Iterator[Callable[[int, int, str], None]]:
    """Yield ``progress(done, total, what)``, which shows a line on stderr if that is a terminal."""
    from rich.console import Console
    from rich.status import Status

    if not sys.stderr.isatty():
        yield lambda done, total, what: None
        return
    with Status("", console=Console(stderr=True), refresh_per_second=2) as status:
        yield lambda done, total, what: status.update(f"{doing} {visible(what)} ({done + 1} of {total})")


def counted(n: int, thing: str) -> str:
    """Return a number of things."""
    return f"{n} {thing}{'' if n == 1 else 's'}"


def size(n_bytes: int | None) -> str:
    """Return a number of bytes for people."""
    if n_bytes is None:
        return "?"
    power = min((len(str(n_bytes)) - 1) // 3, len(_UNITS) - 1)
    return f"{n_bytes} B" if power == 0 else f"{n_bytes / 1000**power:.1f} {_UNITS[power]}"


def print_json(value: Any) -> None:
    """Print one JSON document; ASCII only, so that no encoding and no terminal can spoil it."""
    click.echo(json.dumps(_plain(value), indent=2, allow_nan=False))


def _plain(value: Any) -> Any:
    """Turn mappings and sequences into JSON's, and numbers that JSON lacks into null."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
