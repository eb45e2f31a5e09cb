"""``minillama pull``: fetch models before they are needed."""

from __future__ import annotations

import click

from minillama.cli.loading import find_file
from minillama.cli.options import debug_option, examples


@click.command(epilog=examples("minillama pull smollm2-135m", "minillama pull hf:owner/repo:Q4_K_M"))
@click.argument("names", nargs=-1, required=True, metavar="MODEL...")
@debug_option
def pull(names: tuple[str, ...]) -> None:
    """Fetch models, verify them, and print where they are.

    What is on this machine already is not fetched again.
    """
    for name in names:
        click.echo(find_file(name))
