"""Commands that show what is inside: attention, lens, norms, patch, entropy, and a page of all."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from minillama.cli.inputs import read_prompt
from minillama.cli.loading import load_reader
from minillama.cli.options import (
    debug_option,
    examples,
    file_option,
    json_option,
    loading_options,
    max_tokens_option,
    special_option,
    text_arguments,
)
from minillama.cli.output import note, print_json, print_table, print_wide_table, size, table, visible
from minillama.errors import InvalidInputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from minillama.generate import LanguageModel

_output = click.option("-o", "--output", metavar="FILE", help="Write a picture, in the format of the name's ending.")


def _reading(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command its prompt, and the options of all commands that read one."""
    argument = text_arguments("prompt")
    for decorator in (argument, debug_option, json_option, file_option, special_option, loading_options, _output):
        command = decorator(command)
    return command


def _read(prompt: str | None, file: str | None, options: dict[str, Any]) -> tuple[LanguageModel, list[int]]:
    text = read_prompt(prompt, file)
    model = load_reader(options)
    return model, model.tokenizer.encode(text, parse_special=options["parse_special"])


def _texts(model: LanguageModel, ids: Iterable[int]) -> list[str]:
    return [model.tokenizer.decode([int(token)], continues=True) for token in ids]


def _draw(figure: Figure, path: str) -> None:
    try:
        figure.savefig(path, dpi=120)
    except ValueError as error:  # an ending that matplotlib does not know
        raise InvalidInputError(f"{path}: {error}") from None
    note(f"picture in {path}")


@click.command(epilog=examples('minillama attention "The cat sat on the mat" --layer 3 -o attention.png'))
@_reading
@click.option("--layer", type=int, default=0, show_default=True, metavar="N", help="Which layer.")
@click.option("--head", "heads", type=int, multiple=True, metavar="N", help="Which heads (default: all).")
def attention(
    prompt: str | None, file: str | None, layer: int, heads: tuple[int, ...], output: str | None, as_json: bool,
    **options: Any,
) -> None:  # fmt: skip
    """Show what each token of PROMPT attends to: a map for each head, or its strongest places."""
    from minillama.trace.figures import attention_figure

    model, ids = _read(prompt, file, options)
    pattern = model.trace(ids, f"blk.{layer}.kq_soft_max")[f"blk.{layer}.kq_soft_max"]
    chosen, tokens = list(heads or range(pattern.shape[1])), _texts(model, ids)
    unknown = [head for head in chosen if not 0 <= head < pattern.shape[1]]
    if unknown:
        raise InvalidInputError(f"no head {unknown[0]}: the model has heads 0 to {pattern.shape[1] - 1}")
    if output is not None:
        figure = attention_figure(pattern, tokens, heads=chosen)
        figure.suptitle(f"layer {layer}")
        _draw(figure, output)
    if as_json:
        maps = {str(head): pattern[:, head].tolist() for head in chosen}
        print_json({"layer": layer, "tokens": tokens, "heads": maps})
    elif output is None:
        rows = [
            [visible(token), *(f"{visible(tokens[row[h].argmax()])} {row[h].max():.2f}" for h in chosen)]
            for row, token in zip(pattern, tokens, strict=True)
        ]
        print_wide_table(["token", *(f"head {head}" for head in chosen)], rows)


@click.command(epilog=examples('minillama lens "The capital of France is" -o lens.png'))
@_reading
@click.option("--top", type=int, default=4, show_default=True, metavar="K", help="Tokens to list for each layer.")
def lens(prompt: str | None, file: str | None, top: int, output: str | None, as_json: bool, **options: Any) -> None:
    """Show what the model would say after each layer (logit lens): at the last position, or a picture of all."""
    import math

    from minillama.trace import logit_lens
    from minillama.trace.figures import lens_figure

    model, ids = _read(prompt, file, options)
    if not 1 <= top <= model.config.n_vocab:
        raise InvalidInputError(f"top is {top}, wanted 1 to {model.config.n_vocab}")
    found = logit_lens(model, ids, k=top)
    names = {int(token): _texts(model, [token])[0] for token in {*found.tokens.flat, *ids}}
    if output is not None:
        _draw(lens_figure(found, names), output)
    if as_json:
        layers = [
            [[{"token": int(t), "text": names[int(t)], "logprob": float(p)} for t, p in zip(ts, ps, strict=True)]
             for ts, ps in zip(tokens, logprobs, strict=True)]
            for tokens, logprobs in zip(found.tokens, found.logprobs, strict=True)
        ]  # fmt: skip
        print_json({"tokens": ids, "points": list(found.layers), "layers": layers})
    elif output is None:
        rows = [
            [
                name.split(".")[1],
                *(f"{visible(names[int(t)])!r} {math.exp(p):.2f}" for t, p in zip(tokens, logprobs, strict=True)),
            ]
            for name, tokens, logprobs in zip(found.layers, found.tokens[:, -1], found.logprobs[:, -1], strict=True)
        ]
        print_wide_table(["layer", *(str(i + 1) for i in range(top))], rows)


@click.command(epilog=examples('minillama norms "The capital of France is" -o norms.png'))
@_reading
def norms(prompt: str | None, file: str | None, output: str | None, as_json: bool, **options: Any) -> None:
    """Show how long the residual stream of each token of PROMPT is after each layer."""
    import numpy as np

    from minillama.trace.figures import norms_figure

    model, ids = _read(prompt, file, options)
    streams, tokens = model.trace(ids, "blk.*.l_out"), _texts(model, ids)
    if output is not None:
        _draw(norms_figure(streams, tokens), output)
    lengths = {name: np.linalg.norm(value.astype(np.float64), axis=1) for name, value in streams.items()}
    if as_json:
        print_json({"tokens": tokens, "norms": {name: row.tolist() for name, row in lengths.items()}})
    elif output is None:
        columns = ["after", *(f"{i} {visible(token)}" for i, token in enumerate(tokens))]
        print_wide_table(columns, [[name, *(f"{length:.1f}" for length in row)] for name, row in lengths.items()])


@click.command(
    epilog=examples(
        'minillama patch "France has" "Italy has" --answers " Paris" " Rome"',
    )
)
@click.option("--answers", nargs=2, required=True, metavar="A B", help="The answers of the two texts: a token each.")
@click.option("--point", default="l_out", show_default=True, metavar="NAME", help="Which value of each layer.")
@_output
@loading_options
@json_option
@debug_option
@text_arguments("clean", "corrupted")
def patch(
    clean: str, corrupted: str, answers: tuple[str, str], point: str, output: str | None, as_json: bool, **options: Any
) -> None:
    """Show which values of the run of CLEAN, put into that of CORRUPTED, bring its answer along.

    Each layer and position is patched by itself. Numbers are shares of the difference of the answers' logits: 0 is
    CORRUPTED's own, 1 is CLEAN's.
    """
    from minillama.trace import logit_difference, patch_grid
    from minillama.trace.figures import patch_figure

    model = load_reader(options)
    ids_clean, ids_corrupted = (model.tokenizer.encode(text) for text in (clean, corrupted))
    ends = [model.tokenizer.encode(answer, add_special=False) for answer in answers]
    for answer, ids in zip(answers, ends, strict=True):
        if len(ids) != 1:
            raise InvalidInputError(f"the answer {answer!r} is {len(ids)} tokens, one is wanted (a space in front?)")
    grid = patch_grid(model, ids_clean, ids_corrupted, logit_difference(ends[0][0], ends[1][0]), point=point)
    tokens, shares = _texts(model, grid.ids), grid.recovered
    if output is not None:
        _draw(patch_figure(grid, tokens), output)
    if as_json:
        both = {"clean": grid.clean, "corrupted": grid.corrupted, "tokens": tokens, "point": point}
        print_json({**both, "layers": list(grid.layers), "recovered": shares.tolist()})
    elif output is None:
        columns = ["layer", *(f"{i} {visible(token)}" for i, token in enumerate(tokens))]
        shown = [
            [str(layer), *(f"{share:.2f}" for share in row)] for layer, row in zip(grid.layers, shares, strict=True)
        ]
        print_wide_table(columns, shown)


@click.command(epilog=examples('minillama entropy "Once upon a time" -n 40 -o entropy.png'))
@_reading
@max_tokens_option(40)
def entropy(
    prompt: str | None, file: str | None, max_tokens: int, output: str | None, as_json: bool, **options: Any
) -> None:
    """Continue PROMPT greedily and show how uncertain the model is at each token, in bits."""
    import numpy as np

    from minillama.trace import Trace, log_softmax
    from minillama.trace.figures import entropy_figure

    model, ids = _read(prompt, file, options)
    model.check_makes_text()
    trace = Trace(model, "result_output", positions=-1)
    limit = None if max_tokens == -1 else max_tokens
    result = model.generate(ids, max_tokens=limit, trace=trace)
    logp = log_softmax(trace["result_output"][: len(result.tokens)])
    bits = -(np.exp(logp) * logp).sum(axis=1) / np.log(2)
    tokens = _texts(model, result.tokens)
    if output is not None:
        _draw(entropy_figure(tokens, bits.tolist()), output)
    if as_json:
        print_json({"tokens": tokens, "entropy_bits": bits.tolist()})
    elif output is None:
        rows = table("token", "bits", right=("bits",))
        for token, value in zip(tokens, bits, strict=True):
            rows.add_row(visible(token), f"{value:.2f}")
        print_table(rows)


@click.command("inspect", epilog=examples('minillama inspect "The capital of France is" -o report.html'))
@click.option("-o", "--output", default="report.html", show_default=True, metavar="FILE", help="The page to write.")
@loading_options
@special_option
@file_option
@debug_option
@text_arguments("prompt")
def inspect_(prompt: str | None, file: str | None, output: str, **options: Any) -> None:
    """Write a page about a pass over PROMPT: tokens to click, layers to scroll, attention maps, logit lens.

    It is one file that needs no server and loads nothing.
    """
    from minillama.trace.report import report

    model, ids = _read(prompt, file, options)
    page = report(model, ids, lambda token: _texts(model, [token])[0])
    Path(output).write_text(page, encoding="utf-8")
    note(f"{size(len(page.encode()))} in {output}")
