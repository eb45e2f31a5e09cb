"""``minillama verify``: compare a model with ggml and llama.cpp."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from minillama.cli.loading import find_file
from minillama.cli.options import DEFAULT_MODEL, debug_option, examples, json_option
from minillama.cli.output import print_json, print_table, status_line, table, visible

if TYPE_CHECKING:
    from minillama.verify import Level, Report

_FAILED, _NO_VERDICT = 1, 3


@click.command(
    epilog=examples(
        "minillama verify",
        "minillama verify qwen2.5-coder-0.5b --level tensors",
        "minillama verify model.gguf --llama-cpp path/to/site-packages --json",
    )
)
@click.argument("model", default=DEFAULT_MODEL)
@click.option(
    "--level", "levels", multiple=True, metavar="LEVEL", help="tensors, tokens or logits; default: all three."
)
@click.option("--llama-cpp", metavar="FOLDER", help="Folder that llama_cpp is imported from (default: as installed).")
@click.option("--kv-type", default="f32", show_default=True, metavar="TYPE", help="Cache type of the logits level.")
@click.option("-t", "--threads", type=int, metavar="N", help="Threads (default: the processors we may use).")
@json_option
@debug_option
def verify(
    model: str, levels: tuple[str, ...], llama_cpp: str | None, kv_type: str, threads: int | None, as_json: bool
) -> None:
    """Compare a model with ggml and llama.cpp, and give a verdict.

    tensors: every tensor decoded by us and by ggml. tokens: ids of awkward texts. logits: named values, logits of every
    position and greedy tokens; bits are expected of llama.cpp's baseline build, of any other the distance is shown.
    A level whose library is missing says how to install it, and so does the verdict. The exit code is 0 if everything
    compared is equal, 1 if anything differs, and 3 if no level came to a verdict.
    """
    from minillama.verify import LEVELS, compare

    path = find_file(model)
    with status_line("comparing") as progress:
        report = compare(
            path, levels=levels or LEVELS, llama_cpp=llama_cpp, kv_type=kv_type, threads=threads, progress=progress
        )
    if as_json:
        print_json(report.to_dict())
    else:
        _print(report)
    if not report.passed:
        raise click.exceptions.Exit(_NO_VERDICT if report.passed is None else _FAILED)


def _print(report: Report) -> None:
    rows = table("level", "verdict", "result")
    for level in report.levels:
        verdict = {True: "equal", False: "DIFFERENT", None: "no verdict"}[level.passed]
        if level.missing is not None:
            verdict = "not run"
        rows.add_row(level.name, verdict, visible(level.missing or level.summary))
        if level.against:
            rows.add_row("", "", visible(f"against {level.against}"))
    print_table(rows)
    for level in report.levels:
        for line in _details(level):
            click.echo(visible(line))
    click.echo(report.verdict)


def _details(level: Level) -> Iterator[str]:
    for tensor in level.tensors:
        if tensor.n_different:
            yield f"{tensor.name} ({tensor.type}): {tensor.n_different} of {tensor.n_values} values differ"
            yield f"  first: {tensor.first_different}"
        if tensor.n_nonfinite:
            yield f"{tensor.name}: {tensor.n_nonfinite} values are NaN or infinite, first in {tensor.first_nonfinite}"
        if tensor.skipped:
            yield f"{tensor.name}: not compared, {tensor.skipped}"
    for text in level.tokens:
        yield f"{text.text!r}: ours {text.ours}, llama.cpp's {text.theirs}"
    if level.first_point is not None:
        point = level.first_point
        yield f"first difference: {point.point} ({point.tensor}), row {point.row}, index {point.index}"
        yield f"  ours {point.ours!r}, llama.cpp's {point.theirs!r}, {point.ulps} ulps apart"
        yield f"  {point.n_different} of {point.n_values} values differ; likely causes: {point.likely_causes}"
    for name, distance in (("distance", level.distance), ("llama.cpp's own", level.own_distance)):
        if distance is not None and distance.n_equal < distance.n_positions:
            yield (
                f"{name}: {distance.n_equal} of {distance.n_positions} positions equal, largest difference "
                f"{distance.largest:.4g}, {distance.n_argmax} argmax changes, KL mean {distance.mean_kl:.3g} "
                f"max {distance.max_kl:.3g}"
            )
