"""Loading a model with a bar while it is fetched."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minillama.cli.options import loading_arguments, without_effect
from minillama.cli.output import note

if TYPE_CHECKING:
    from minillama.generate import LanguageModel


def load_model(options: Mapping[str, Any]) -> LanguageModel:
    """Load the model of a command that generates."""
    if unused := without_effect(options):
        note(f"{', '.join(unused)}: without effect at temperature 0, the default (try --temp 0.8)")
    model = load_reader(options)
    model.check_makes_text()
    return model


def load_reader(options: Mapping[str, Any]) -> LanguageModel:
    """Load the model of a command that only reads."""
    from minillama.generate import load
    from minillama.generate.warmup import share_compilation

    path, arguments = find_file(options["model"]), loading_arguments(options)
    loaded = load(path, **arguments)
    if arguments.get("backend") != "reference":
        share_compilation(path, kv_type=arguments.get("kv_type", "f32"))
    return loaded


def find_file(model: str) -> Path:
    """Return the path of a model's file, fetched if need be."""
    from minillama.hub import console_progress, resolve

    with console_progress(model) as progress:
        return resolve(model, progress)
