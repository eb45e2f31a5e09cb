"""``minillama tokenize``: how a model cuts a text into tokens."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from minillama.cli.inputs import read_text
from minillama.cli.loading import find_file
from minillama.cli.notices import Notices
from minillama.cli.options import (
    debug_option,
    examples,
    file_option,
    json_option,
    model_option,
    special_option,
)
from minillama.cli.output import console, counted, note, print_json, visible

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from minillama.tokenizer import Tokenizer

_SYMBOLS = str.maketrans({" ": "·", "\n": "↵", "\t": "⇥"})
_STYLES = ("black on bright_cyan", "black on bright_yellow")
_SPECIAL_STYLE = "bold white on magenta"


@click.command(
    epilog=examples(
        'minillama tokenize "Hello, world"',
        "minillama tokenize --special --ids '<|im_start|>user'",
        "minillama tokenize -m model.gguf -f README.md | sort | uniq -c",
    )
)
@click.argument("text", required=False)
@model_option
@file_option
@click.option("--no-add-special", is_flag=True, help="Add no beginning- or end-of-text tokens.")
@special_option
@click.option("--ids", "only_ids", is_flag=True, help="Print nothing but the ids, in one line.")
@json_option
@debug_option
def tokenize(
    text: str | None,
    model: str,
    file: str | None,
    no_add_special: bool,
    parse_special: bool,
    only_ids: bool,
    as_json: bool,
) -> None:
    r"""Cut TEXT into the model's tokens: each piece with its id.

    A space is shown as ·, a line break as ↵, a tab as ⇥, bytes that are no whole character as \xNN. When stdout is not
    a terminal, each line is an id, a tab, and the piece.
    """
    if only_ids and as_json:
        raise click.UsageError("give --ids or --json, not both")
    data = read_text(text, file, "TEXT")
    with Notices():
        tokenizer = _tokenizer(model)
        ids = tokenizer.encode(data, add_special=not no_add_special, parse_special=parse_special)
    if only_ids:
        click.echo(" ".join(map(str, ids)))
    elif as_json:
        print_json({"model": model, "count": len(ids), "tokens": [_token(tokenizer, token) for token in ids]})
    elif sys.stdout.isatty():
        _print_cells(tokenizer, ids)
        note(counted(len(ids), "token"))
    else:
        for token in ids:
            click.echo(f"{token}\t{_piece(tokenizer, token)}")
        note(counted(len(ids), "token"))


def _tokenizer(model: str) -> Tokenizer:
    from minillama import gguf
    from minillama.tokenizer import Tokenizer

    with gguf.open(find_file(model)) as file:
        return Tokenizer.from_gguf(file)


def _token(tokenizer: Tokenizer, token: int) -> dict[str, Any]:
    return {
        "id": token,
        "text": tokenizer.decode([token]),
        "bytes": tokenizer.token_to_bytes(token).hex(),
        "special": tokenizer.is_special(token),
    }


def _piece(tokenizer: Tokenizer, token: int) -> str:
    return visible(tokenizer.token_to_bytes(token).decode("utf-8", "surrogateescape").translate(_SYMBOLS))


def _print_cells(tokenizer: Tokenizer, ids: list[int]) -> None:
    """Print pieces side by side, each above its id."""
    from rich.cells import cell_len
    from rich.text import Text

    screen = console()
    pieces, below = Text(), Text()
    for i, token in enumerate(ids):
        piece, number = _piece(tokenizer, token), str(token)
        width = max(cell_len(piece), len(number))
        if pieces and pieces.cell_len + width > screen.width:
            _print_row(screen, pieces, below)
            pieces, below = Text(), Text()
        pieces.append(piece, style=_SPECIAL_STYLE if tokenizer.is_special(token) else _STYLES[i % 2])
        pieces.append(" " * (width - cell_len(piece) + 1))
        below.append(number.ljust(width + 1), style="dim")
    _print_row(screen, pieces, below)


def _print_row(screen: Console, pieces: Text, below: Text) -> None:
    for line in (pieces, below):
        line.rstrip()
        screen.print(line, soft_wrap=True)
