"""``minillama embed``: texts as vectors."""

from __future__ import annotations

from typing import Any

import click

from minillama.cli.inputs import decoded, read_text
from minillama.cli.loading import load_reader
from minillama.cli.options import debug_option, examples, file_option, json_option, loading_options
from minillama.cli.output import note, print_json, print_wide_table, status_line, visible

_SHOWN = 24  # characters of a text
_MOST_COMPARED = 100


@click.command(
    epilog=examples(
        'minillama embed -m all-minilm.gguf "a cat" "a kitten" "the stock market"',
        "minillama embed -m all-minilm.gguf --file sentences.txt --npy vectors.npy",
        'minillama embed --pooling mean "a decoder can do it too" --json',
    )
)
@click.argument("texts", nargs=-1, metavar="TEXT...")
@file_option
@click.option("--pooling", metavar="NAME", help="mean, cls, last, or none for every token (default: as the file says).")
@click.option("--no-normalize", is_flag=True, help="Leave vectors as long as they are.")
@click.option("--npy", metavar="FILE", help="Write the vectors to a numpy file.")
@loading_options
@json_option
@debug_option
def embed(
    texts: tuple[str, ...], file: str | None, pooling: str | None, no_normalize: bool, npy: str | None, as_json: bool,
    **options: Any,
) -> None:  # fmt: skip
    """Turn TEXTs, or the lines of a file, into vectors, and show how alike they are.

    Alike is the cosine of the angle between two vectors: 1 for the same direction.
    """
    import numpy as np

    lines = _lines(texts, file)
    if npy is not None and pooling == "none":
        raise click.UsageError("--npy writes one vector a text, --pooling none gives one a token: use --json")
    model = load_reader(options)
    with status_line("embedding") as progress:
        vectors = model.embed(
            lines,
            pooling=pooling,
            normalize=not no_normalize,
            progress=lambda done, total: progress(done, total, "text"),
        )
    if npy is not None:
        np.save(npy, vectors)
        note(f"{len(lines)} vectors of {model.config.n_embd} in {npy}")
    if as_json:
        print_json([{"text": text, "embedding": v.tolist()} for text, v in zip(lines, vectors, strict=True)])
    elif npy is None:
        _show(lines, vectors)


def _lines(texts: tuple[str, ...], file: str | None) -> list[str]:
    if file is None:
        if not texts:
            raise click.UsageError("give a TEXT or --file; --file - reads standard input")
        return list(texts)
    if texts:
        raise click.UsageError("give TEXTs or --file, not both")
    found = read_text(None, file, "TEXT")
    text = found if isinstance(found, str) else decoded(found, file)
    return [line.removesuffix("\r") for line in text.split("\n") if line.strip()]


def _show(lines: list[str], vectors: Any) -> None:
    """Print how alike texts are; of a single one, or without pooling, the vectors' beginnings."""
    import numpy as np

    if vectors[0].ndim > 1 or len(lines) == 1:
        for text, rows in zip(lines, vectors, strict=True):
            for row in np.atleast_2d(rows):
                shown = " ".join(f"{number: .4f}" for number in row[:6])
                click.echo(f"{_short(text)}  {shown} ... ({len(row)} numbers)")
        return
    if len(lines) > _MOST_COMPARED:
        note(f"the first {_MOST_COMPARED} of {len(lines)} texts are compared; --npy or --json gives all vectors")
    unit = vectors[:_MOST_COMPARED] / np.linalg.norm(vectors[:_MOST_COMPARED], axis=1, keepdims=True)
    alike = unit @ unit.T
    names = [f"{i + 1} {_short(text)}" for i, text in enumerate(lines[:_MOST_COMPARED])]
    columns = ["", *(str(i + 1) for i in range(len(names)))]
    print_wide_table(columns, [[name, *(f"{c:.3f}" for c in row)] for name, row in zip(names, alike, strict=True)])


def _short(text: str) -> str:
    line = visible(text)
    return line if len(line) <= _SHOWN else line[: _SHOWN - 1] + "…"
