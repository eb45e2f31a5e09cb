"""``minillama trace`` and ``minillama compare``: record a run, and lay two side by side."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from minillama.cli.inputs import read_prompt
from minillama.cli.loading import find_file, load_reader
from minillama.cli.options import (
    debug_option,
    examples,
    file_option,
    json_option,
    loading_options,
    special_option,
    text_arguments,
)
from minillama.cli.output import console, note, print_json, print_table, table, visible

if TYPE_CHECKING:
    from minillama.generate import LanguageModel
    from minillama.trace import Comparison, Recording

_DIFFERENT = 1
_SHOWN = 12
_ROOM_FOR_BARS = 96
_NUMBERS = "min", "max", "mean", "norm"


@click.command(
    epilog=examples(
        'minillama trace "The capital of France is"',
        'minillama trace "Paris is" --record "blk.*.l_out" --save run.npz',
        'minillama trace "Paris is" --llama-cpp path/to/site --save theirs.npz',
    )
)
@click.option("--record", multiple=True, metavar="POINT", help="Points to record, such as blk.*.l_out (default: *).")
@click.option(
    "--position", "positions", type=int, multiple=True, metavar="N", help="Positions to record; -1: the last."
)
@click.option("--save", metavar="FILE", help="Write the values to a .npz or .safetensors file.")
@click.option(
    "--llama-cpp", metavar="FOLDER", help="Record llama.cpp, imported from this folder, instead of minillama."
)
@loading_options
@special_option
@file_option
@json_option
@debug_option
@text_arguments("prompt")
def trace(
    prompt: str | None, file: str | None, record: tuple[str, ...], positions: tuple[int, ...], save: str | None,
    llama_cpp: str | None, as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Record the named values of a pass over PROMPT: show them in a few numbers each, or save them.

    Names, and what others call them, are in docs/points.md.
    """
    if llama_cpp is not None and (record or positions):
        raise click.UsageError("--llama-cpp records all points and positions that it can")
    text = read_prompt(prompt, file)
    model = load_reader(options)
    ids = model.tokenizer.encode(text, parse_special=options["parse_special"])
    recording: Recording
    if llama_cpp is None:
        recording = model.trace(ids, record or "*", positions=list(positions) or None)
    else:
        recording = llama_cpp_run(model, options["model"], ids, llama_cpp)
    if save is not None:
        recording.save(save)
        note(f"{len(recording)} points, {recording.nbytes / 1e6:.1f} MB, in {save}")
    if as_json:
        print_json({"tokens": recording.tokens, "points": list(_summaries(recording))})
    elif save is None:
        _print_values(recording)


def llama_cpp_run(model: LanguageModel, name: str, ids: list[int], folder: str) -> Recording:
    """Return what llama.cpp, imported from a folder, computes for a text."""
    from minillama.verify.llama_cpp import LlamaCpp
    from minillama.verify.recording import llama_cpp_recording

    return llama_cpp_recording(model, find_file(name), ids, LlamaCpp(Path(folder)))


def _summaries(recording: Recording) -> Iterator[dict[str, Any]]:
    from minillama.trace.inspection import summary

    for name, value in recording.items():
        yield {"name": name, **asdict(summary(value))}


def _print_values(recording: Recording) -> None:
    bars = console().width >= _ROOM_FOR_BARS
    rows = table("point", "shape", *_NUMBERS, "", right=_NUMBERS, whole=("point", "shape", *_NUMBERS))
    for found in _summaries(recording):
        numbers = (f"{found[key]:.3g}" for key in ("low", "high", "mean", "norm"))
        odd = (f"{found[key]} {what}" for key, what in (("n_nan", "NaN"), ("n_inf", "inf")) if found[key])
        last = " ".join([*([found["histogram"]] if bars else []), *odd])
        rows.add_row(found["name"], "x".join(map(str, found["shape"])), *numbers, last)
    print_table(rows)


@click.command(
    epilog=examples(
        "minillama compare ours.npz theirs.npz",
        "minillama compare q4.npz q8.npz --all",
        'minillama compare a.npz b.npz --record "*.l_out" --plot errors.png',
    )
)
@click.argument("ours")
@click.argument("theirs")
@click.option("--record", "patterns", multiple=True, metavar="POINT", help="Only these points, such as blk.*.l_out.")
@click.option("--all", "show_all", is_flag=True, help="List every point, not only the worst.")
@click.option("--plot", metavar="FILE", help="Draw the relative error after each layer.")
@json_option
@debug_option
def compare(ours: str, theirs: str, patterns: tuple[str, ...], show_all: bool, plot: str | None, as_json: bool) -> None:
    """Compare two recordings, made by "minillama trace --save", point by point.

    They can be of two models, two quantizations, two backends, or of llama.cpp; errors are relative to the second.
    The exit code is 1 if any bit differs.
    """
    from fnmatch import fnmatchcase

    from minillama.trace import Recording
    from minillama.trace import compare as compare_runs
    from minillama.trace.figures import error_figure

    first, second = Recording.load(ours), Recording.load(theirs)
    if patterns:
        first = Recording(
            {name: first.rows(name) for name in first if any(fnmatchcase(name, pattern) for pattern in patterns)},
            first.tokens_by_sequence(),
        )
    found = compare_runs(first, second)
    if plot is not None:
        errors = {point.name.removesuffix(".l_out"): point.relative for point in found.points if "l_out" in point.name}
        error_figure(errors, "Relative error after each layer").savefig(plot, dpi=120)
        note(f"picture in {plot}")
    if as_json:
        print_json({**asdict(found), "equal": found.equal})
    else:
        _print_comparison(found, show_all)
    if not found.equal:
        raise click.exceptions.Exit(_DIFFERENT)


def _print_comparison(found: Comparison, show_all: bool) -> None:
    points = sorted(found.points, key=lambda point: -point.relative) if not show_all else found.points
    if not found.equal:
        columns = ("different", "of", "cosine", "relative error", "largest")
        rows = table("point", *columns, right=columns, whole=("point",))
        for point in points if show_all else points[:_SHOWN]:
            numbers = (f"{point.cosine:.6f}", f"{point.relative:.4g}", f"{point.largest:.4g}")
            rows.add_row(visible(point.name), str(point.n_different), str(point.n_values), *numbers)
        print_table(rows)
    n = len(found.points)
    equal = f"all {n} points equal in every bit"
    click.echo(equal if found.equal else f"{n} points compared, the first that differs is {found.first_difference}")
    if found.mean_kl is not None:
        click.echo(
            f"head: KL mean {found.mean_kl:.4g} max {found.max_kl:.4g}, same likeliest token at {found.n_same_top} of "
            f"{found.n_positions} positions"
        )
    if found.only_one:
        click.echo(f"{len(found.only_one)} points are in only one of the files")
