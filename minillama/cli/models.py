"""``minillama models``: the catalog."""

from __future__ import annotations

from dataclasses import asdict

import click

from minillama.cli.options import DEFAULT_MODEL, debug_option, examples, json_option
from minillama.cli.output import note, print_json, print_table, size, table


@click.command(epilog=examples("minillama models", "minillama models --json"))
@json_option
@debug_option
def models(as_json: bool) -> None:
    """List the models that can be used by name, and which are on this machine."""
    from minillama.hub import local_models

    found = local_models()
    if as_json:
        print_json([{**asdict(model), "path": str(model.path)} for model in found])
        return
    rows = table("name", "architecture", "quant", "size", "license", "here", right=("size",))
    for model in found:
        name = f"{model.name} *" if model.name == DEFAULT_MODEL else model.name
        here = "yes" if model.present else "no"
        rows.add_row(name, model.architecture, model.quant, size(model.bytes), model.license, here)
    print_table(rows)
    note("* used when no model is named")
