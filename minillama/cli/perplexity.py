"""``minillama perplexity``: how likely a model finds a text."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import click

from minillama.cli.inputs import decoded
from minillama.cli.loading import load_reader
from minillama.cli.options import debug_option, examples, json_option, loading_options, text_arguments
from minillama.cli.output import note, print_json, print_table, status_line, table, visible


@click.command(
    epilog=examples("minillama perplexity text.txt", "minillama perplexity text.txt --chunk 128 --tokens --json")
)
@click.option("--chunk", type=int, default=512, show_default=True, metavar="N", help="Tokens that are read at a time.")
@click.option("--tokens", "show_tokens", is_flag=True, help="List every token that counts with its surprise in bits.")
@click.option("-o", "--output", metavar="FILE", help="Draw the surprise of each token.")
@loading_options
@json_option
@debug_option
@text_arguments("file")
def perplexity(
    file: str | None, chunk: int, show_tokens: bool, output: str | None, as_json: bool, **options: Any
) -> None:
    """Measure the perplexity of the text in FILE by llama.cpp's method.

    The text is read in chunks, each for itself, and the second half of each counts.
    """
    from minillama.generate.scoring import perplexity as measure
    from minillama.trace.figures import surprise_figure

    if file is None:
        raise click.UsageError("give a FILE")
    text = decoded(Path(file).read_bytes(), file).removesuffix("\n")  # as llama.cpp reads it
    model = load_reader(options)
    with status_line("reading") as progress:
        found = measure(model, text, n_ctx=chunk, progress=lambda done, total: progress(done, total, "chunk"))
    tokens = [model.tokenizer.decode([int(token)], continues=True) for token in found.tokens]
    if output is not None:
        surprise_figure(tokens, found.logprobs).savefig(output, dpi=120)
        note(f"picture in {output}")
    if as_json:
        each = [{"token": int(t), "logprob": float(p)} for t, p in zip(found.tokens, found.logprobs, strict=True)]
        numbers = {"perplexity": found.value, "error": found.error, "n_scored": found.n_scored}
        print_json({**numbers, "n_chunks": found.n_chunks, **({"tokens": each} if show_tokens else {})})
        return
    if show_tokens:
        rows = table("token", "bits", right=("bits",))
        for token, logprob in zip(tokens, found.logprobs, strict=True):
            rows.add_row(visible(token), f"{-logprob / math.log(2):.2f}")
        print_table(rows)
    click.echo(f"PPL = {found.value:.4f} +/- {found.error:.5f}  ({found.n_scored} tokens of {found.n_chunks} chunks)")
