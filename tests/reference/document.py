"""Tables that commands measure and write into docs/exactness.md, between markers, and that tests read back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

PATH = Path(__file__).parents[2] / "docs" / "exactness.md"

Row = Sequence[str]


def _place(text: str, name: str) -> tuple[int, int]:
    """Where the lines between a table's markers begin and end."""
    first, last = f"<!-- table: {name} -->\n", f"<!-- end: {name} -->"
    return text.index(first) + len(first), text.index(last)


def read_table(name: str) -> tuple[list[str], list[list[str]]]:
    """Head and rows of a table of the document; both empty if it was never written."""
    text = PATH.read_text()
    start, stop = _place(text, name)
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text[start:stop].splitlines()]
    return (lines[0], lines[2:]) if lines else ([], [])


def write_table(name: str, head: Row, rows: Sequence[Row]) -> None:
    """Replace a table; columns of figures are aligned to the right."""
    rule = ["---:" if all(cell[:1].isdigit() for cell in column) else "---" for column in zip(*rows, strict=True)]
    lines = "".join(f"| {' | '.join(row)} |\n" for row in (head, rule, *rows))
    text = PATH.read_text()
    start, stop = _place(text, name)
    PATH.write_text(text[:start] + lines + text[stop:])
