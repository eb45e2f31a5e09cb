"""``minillama tokenize``: how a model cuts a text into tokens."""

from __future__ import annotations

import sys
from collections.abc import Iterator
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
from minillama.cli.output import console, counted, note, print_json, print_table, table, visible

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from minillama.tokenizer import Encoding, Tokenizer

_SYMBOLS = str.maketrans({" ": "·", "\n": "↵", "\t": "⇥"})
_STYLES = ("black on bright_cyan", "black on bright_yellow")
_SPECIAL_STYLE = "bold white on magenta"


@click.command(
    epilog=examples(
        'minillama tokenize "Hello, world"',
        "minillama tokenize --special --ids '<|im_start|>user'",
        "minillama tokenize -m model.gguf -f README.md | sort | uniq -c",
        "minillama tokenize --long 'naïve 😀'",
        "minillama tokenize --compare other.gguf -f README.md",
    )
)
@click.argument("text", required=False)
@model_option
@file_option
@click.option("--no-add-special", is_flag=True, help="Add no beginning- or end-of-text tokens.")
@special_option
@click.option("--ids", "only_ids", is_flag=True, help="Print nothing but the ids, in one line.")
@click.option("-l", "--long", "details", is_flag=True, help="Also show bytes, scores and places in the text.")
@click.option("--compare", metavar="MODEL", help="Show another model's tokens beside this one's.")
@click.option("--pre", metavar="NAME", help="Pre-tokenizer to use instead of the file's; 'default' is llama.cpp's.")
@json_option
@debug_option
def tokenize(
    text: str | None,
    model: str,
    file: str | None,
    no_add_special: bool,
    parse_special: bool,
    only_ids: bool,
    details: bool,
    compare: str | None,
    pre: str | None,
    as_json: bool,
) -> None:
    r"""Cut TEXT into the model's tokens: each piece with its id.

    A space is shown as ·, a line break as ↵, a tab as ⇥, bytes that are no whole character as \xNN. When stdout is not
    a terminal, each line is an id, a tab, and the piece.
    """
    if only_ids + as_json + details > 1 or (compare and (only_ids or details)):
        raise click.UsageError("give one of --ids, --long, --json; with --compare, only --json")
    data = read_text(text, file, "TEXT")
    with Notices():
        tokenizer = _tokenizer(model, pre)
        encoding = tokenizer.encode_with_offsets(data, not no_add_special, parse_special)
        other = _tokenizer(compare, None) if compare else None
        theirs = other.encode_with_offsets(data, not no_add_special, parse_special) if other else None
    if other and theirs and compare:
        _show_comparison((model, tokenizer, encoding), (compare, other, theirs), as_json)
    elif only_ids:
        click.echo(" ".join(map(str, encoding.ids)))
    elif as_json:
        print_json({"model": model, "count": len(encoding.ids), "tokens": _tokens(tokenizer, encoding)})
    else:
        _show(tokenizer, encoding, details)
        note(counted(len(encoding.ids), "token"))


def _tokenizer(model: str, pre: str | None) -> Tokenizer:
    from minillama import gguf
    from minillama.tokenizer import Tokenizer

    with gguf.open(find_file(model)) as file:
        return Tokenizer.from_gguf(file, pre)


def _tokens(tokenizer: Tokenizer, encoding: Encoding) -> list[dict[str, Any]]:
    return [
        {
            "id": token,
            "text": tokenizer.decode([token], continues=True),
            "bytes": tokenizer.token_to_bytes(token).hex(),
            "special": tokenizer.is_special(token),
            "score": tokenizer.score(token),
            "start": start,
            "end": end,
        }
        for token, (start, end) in zip(*encoding, strict=True)
    ]


def _show(tokenizer: Tokenizer, encoding: Encoding, details: bool) -> None:
    if details:
        _print_details(tokenizer, encoding)
    elif sys.stdout.isatty():
        _print_cells(tokenizer, encoding.ids)
    else:
        for token in encoding.ids:
            click.echo(f"{token}\t{_piece(tokenizer, token)}")


def _print_details(tokenizer: Tokenizer, encoding: Encoding) -> None:
    from rich.text import Text

    has_scores = tokenizer.vocabulary.scores is not None
    rows = table("id", "piece", "bytes", *(["score"] if has_scores else []), "place", right=("id", "score", "place"))
    for i, (token, (start, end)) in enumerate(zip(*encoding, strict=True)):
        piece = Text(_piece(tokenizer, token), style=_style(tokenizer, token, i))
        score = [f"{tokenizer.score(token):g}"] if has_scores else []
        rows.add_row(str(token), piece, tokenizer.token_to_bytes(token).hex(" "), *score, f"{start}:{end}")
    print_table(rows)


def _style(tokenizer: Tokenizer, token: int, i: int) -> str:
    return _SPECIAL_STYLE if tokenizer.is_special(token) else _STYLES[i % 2]


_Tokenized = tuple[str, "Tokenizer", "Encoding"]


def _show_comparison(left: _Tokenized, right: _Tokenized, as_json: bool) -> None:
    """Show the tokens of two models, a row for each stretch of text between places where both have a boundary."""
    rows = list(_side_by_side(left[2], right[2]))
    equal = sum(len(mine) == len(theirs) for mine, theirs in rows)
    if as_json:
        models = [
            {"model": name, "count": len(encoding.ids), "tokens": _tokens(tokenizer, encoding)}
            for name, tokenizer, encoding in (left, right)
        ]
        print_json({"models": models, "rows": [[list(mine), list(theirs)] for mine, theirs in rows]})
        return
    shown = table(*(name for name, _, _ in (left, right)))
    for places in rows:
        shown.add_row(*(_row(side[1], side[2].ids, part) for side, part in zip((left, right), places, strict=True)))
    print_table(shown)
    counts = " and ".join(counted(len(encoding.ids), "token") for _, _, encoding in (left, right))
    note(f"{counts}; {equal} of {counted(len(rows), 'row')} have equally many")


def _side_by_side(left: Encoding, right: Encoding) -> Iterator[tuple[range, range]]:
    """Places of the tokens of both, cut where both have come to the same place in the text."""
    places = [_by_end(encoding) for encoding in (left, right)]
    first = second = 0
    for end in sorted(places[0].keys() & places[1].keys()):
        yield range(first, places[0][end]), range(second, places[1][end])
        first, second = places[0][end], places[1][end]
    if first < len(left.ids) or second < len(right.ids):
        yield range(first, len(left.ids)), range(second, len(right.ids))


def _by_end(encoding: Encoding) -> dict[int, int]:
    """How many tokens there are up to each place in the text where one ends."""
    counts = {end: i + 1 for i, (_, end) in enumerate(encoding.offsets)}
    return {end: n for end, n in counts.items() if end > 0}


def _row(tokenizer: Tokenizer, ids: list[int], places: range) -> Text:
    from rich.text import Text

    shown = Text()
    for i in places:
        shown.append(_piece(tokenizer, ids[i]), style=_style(tokenizer, ids[i], i))
        shown.append(f" {ids[i]} ", style="dim")
    return shown


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
        pieces.append(piece, style=_style(tokenizer, token, i))
        pieces.append(" " * (width - cell_len(piece) + 1))
        below.append(number.ljust(width + 1), style="dim")
    _print_row(screen, pieces, below)


def _print_row(screen: Console, pieces: Text, below: Text) -> None:
    for line in (pieces, below):
        line.rstrip()
        screen.print(line, soft_wrap=True)
