"""``minillama warmup``: compile the kernels of models before they are needed."""

from __future__ import annotations

import time

import click

from minillama.cli.loading import find_file
from minillama.cli.notices import Notices
from minillama.cli.options import DEFAULT_MODEL, debug_option, examples
from minillama.cli.output import counted


@click.command(epilog=examples("minillama warmup", "minillama warmup smollm2-135m path/to/model.gguf"))
@click.argument("models", nargs=-1, metavar="[MODEL]...")
@click.option("--kv-type", "kv_types", multiple=True, metavar="TYPE", help="Only for this type of cache, f32 or f16.")
@debug_option
def warmup(models: tuple[str, ...], kv_types: tuple[str, ...]) -> None:
    """Compile all kernels that models need, and keep them for the programs that come after.

    That a kernel is compiled on first use needs no warm-up; this is for machines that are set up once, and for images.
    """
    from minillama.generate import compile_kernels
    from minillama.kernels.jit import cache_folder

    for name in models or (DEFAULT_MODEL,):
        path = find_file(name)
        start = time.perf_counter()
        with Notices() as notices:
            compile_kernels(path, kv_types=kv_types or ("f32", "f16"))
        seconds = time.perf_counter() - start
        if notices.compiled:
            click.echo(f"{name}: {counted(notices.compiled, 'kernel')} compiled in {seconds:.1f} s")
        else:
            click.echo(f"{name}: nothing to do, all kernels are there")
    click.echo(f"kept in {cache_folder()}")
