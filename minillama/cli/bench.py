"""``minillama bench``: tokens a second, ours and llama.cpp's, beside what the machine can do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from minillama.cli.loading import find_file
from minillama.cli.notices import Notices
from minillama.cli.options import DEFAULT_MODEL, debug_option, examples, json_option
from minillama.cli.output import note, print_json, print_table, size, status_line, table, visible

if TYPE_CHECKING:
    from minillama.bench import Bench, Spread
    from minillama.bench.profiling import Profile
    from minillama.verify import LlamaCpp

# Rows of a profile below this share are told together.
_SMALL_SHARE = 0.005


class _Numbers(click.ParamType[tuple[int, ...]]):
    """Whole numbers with commas between them."""

    name = "numbers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """Return the numbers."""
        if isinstance(value, tuple):
            return value
        try:
            return tuple(dict.fromkeys(int(part) for part in str(value).split(",")))
        except ValueError:
            self.fail(f"found {value!r}, wanted whole numbers such as 256,2048", param, ctx)


@click.command(
    epilog=examples(
        "minillama bench",
        "minillama bench -m qwen2.5-coder-0.5b -p 256,2048 -n 64 -t 1,2",
        "minillama bench --profile --rounds 1 --vs nothing",
        "minillama bench --depth 0,512,1024,2048 --plot decode.png",
    )
)
@click.option(
    "-m",
    "--model",
    "models",
    multiple=True,
    default=(DEFAULT_MODEL,),
    show_default=True,
    metavar="MODEL",
    help="Catalog name, path, or hf:...; can be given several times.",
)
@click.option("-p", "--prompt", "prompts", type=_Numbers(), default="256", metavar="N,...", help="Prompts (256).")
@click.option("-n", "n_decode", type=int, default=64, metavar="N", help="Tokens to decode (64).")
@click.option(
    "--depth", "depths", type=_Numbers(), metavar="N,...", help="Decode after so many positions (the prompts)."
)
@click.option("-t", "--threads", type=_Numbers(), metavar="N,...", help="Threads (default: the processors we may use).")
@click.option("--rounds", type=int, default=5, show_default=True, metavar="N", help="Runs, of which the median counts.")
@click.option("--kv-type", default="f32", show_default=True, metavar="TYPE", help="How we store keys and values.")
@click.option(
    "--vs",
    type=click.Choice(["llama.cpp", "nothing"]),
    default="llama.cpp",
    show_default=True,
    help="Whom to compare with, if it is installed.",
)
@click.option("--llama-cpp", metavar="FOLDER", help="Folder that llama_cpp is imported from (default: as installed).")
@click.option("--profile", "profiled", is_flag=True, help="Show where our time goes.")
@click.option("--plot", "plot_file", metavar="FILE", help="Draw decoding rates over the position into this file.")
@json_option
@debug_option
def bench(
    models: tuple[str, ...], threads: tuple[int, ...] | None, vs: str, llama_cpp: str | None, plot_file: str | None,
    as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Measure tokens a second, in turn with llama.cpp (A B A B): same file, threads and tokens.

    Each side has the model loaded in a process of its own, with its own defaults, and sleeps while the other runs. Of
    the machine's limits, measured by small kernels just before, a prompt is held against the multiply-adds, decoding
    against the bytes that can be read. Nothing else should be running.
    """
    from minillama.bench import bench as measure

    llama = _llama_cpp(llama_cpp) if vs == "llama.cpp" else None
    found = []
    for name in models:
        path = find_file(name)
        for n_threads in threads or (None,):
            with Notices(), status_line(f"{name}:") as progress:
                result = measure(path, threads=n_threads, llama_cpp=llama, progress=progress, **options)
            result.model = name
            found.append(result)
            if not as_json:
                _print(result)
    if as_json:
        print_json([result.to_dict() for result in found])
    if plot_file is not None:
        from minillama.bench.plot import plot

        note(f"drawn: {plot(found, plot_file)}")


def _llama_cpp(folder: str | None) -> LlamaCpp | None:
    """Return the llama.cpp to compare with; one that was not asked for may be missing."""
    from pathlib import Path

    from minillama.errors import MissingDependencyError
    from minillama.verify import LlamaCpp

    try:
        return LlamaCpp(None if folder is None else Path(folder).resolve())
    except MissingDependencyError as error:
        if folder is not None:
            raise
        note(f"ours alone; to compare with llama.cpp: {error}")
        return None


def _print(bench: Bench) -> None:
    machine = bench.machine
    click.echo(
        visible(f"{bench.model}, {bench.n_threads} threads, {bench.rounds} rounds, ours with {bench.kv_type} cache")
        + (f", {bench.llama_cpp}" if bench.llama_cpp else "")
    )
    click.echo(
        f"the machine reads {machine.bytes_read / 1e9:.1f} GB/s and does {machine.multiply_adds / 1e9:.0f} GMAC/s "
        f"({machine.tier})"
    )
    rows = table("tokens/s", "minillama", "llama.cpp", "ratio", "of machine", right=("ratio", "of machine"))
    for test in bench.tests:
        name = f"{test.kind} {test.n_tokens}" + (f" at {test.at}" if test.kind == "decode" else "")
        ratio = "" if test.ratio is None else f"{test.ratio:.2f}"
        rows.add_row(name, _spread(test.ours), _spread(test.theirs), ratio, f"{test.of_machine:.0%}")
    for name, ours, theirs in _other_rows(bench):
        rows.add_row(name, ours, theirs, "", "")
    print_table(rows)
    for profile in bench.profiles:
        _print_profile(profile)
    click.echo()


def _spread(spread: Spread | None) -> str:
    """Median, then lowest and highest."""
    return "" if spread is None else f"{spread.median:.1f} ({spread.lowest:.1f}-{spread.highest:.1f})"


def _other_rows(bench: Bench) -> Iterator[tuple[str, str, str]]:
    seconds = {"load": "load_seconds", "start to first token": "first_token_seconds"}
    n_bytes = {"memory, private": "private_bytes", "memory, peak": "peak_bytes"}
    sides = (bench.ours, bench.theirs)
    for name, attribute in seconds.items():
        ours, theirs = ("" if side is None else f"{getattr(side, attribute):.2f} s" for side in sides)
        yield name, ours, theirs
    for name, attribute in n_bytes.items():
        ours, theirs = ("" if side is None else size(getattr(side, attribute)) for side in sides)
        yield name, ours, theirs


def _print_profile(profile: Profile) -> None:
    what = f"prompt of {profile.n_tokens}" if profile.n_tokens > 1 else f"decode at {profile.at}"
    click.echo(f"\n{what}: {1000 * profile.seconds:.1f} ms")
    columns = ("operation", "calls", "ms", "share", "GMAC/s", "GB/s")
    rows = table(*columns, right=columns[1:])
    small = [row for row in profile.rows if row.seconds < _SMALL_SHARE * profile.seconds]
    for row in profile.rows[: len(profile.rows) - len(small)]:
        rates = (
            "" if work is None else f"{work / row.seconds / 1e9:.1f}" for work in (row.multiply_adds, row.bytes_read)
        )
        share = f"{row.seconds / profile.seconds:.1%}"
        rows.add_row(row.name, str(row.calls), f"{1000 * row.seconds:.2f}", share, *rates)
    if small:
        seconds = sum(row.seconds for row in small)
        share = f"{seconds / profile.seconds:.1%}"
        rows.add_row("others", str(sum(row.calls for row in small)), f"{1000 * seconds:.2f}", share, "", "")
    print_table(rows)
