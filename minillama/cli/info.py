"""``minillama info``: what is in a model file, and whether it runs here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from minillama.cli.loading import find_file
from minillama.cli.notices import Notices
from minillama.cli.options import DEFAULT_MODEL, debug_option, examples, json_option
from minillama.cli.output import counted, print_json, print_table, size, table, visible
from minillama.cli.summary import abbreviated, describe_tensor, summarize

if TYPE_CHECKING:
    from minillama.gguf import GGUFFile

_LONGEST_TEXT = 200


@click.command(
    epilog=examples(
        "minillama info qwen2.5-coder-0.5b",
        "minillama info --tensors path/to/model.gguf",
        "minillama info --metadata --json path/to/model.gguf",
    )
)
@click.argument("model", default=DEFAULT_MODEL, metavar="[MODEL]")
@click.option("--tensors", is_flag=True, help="List the tensors.")
@click.option("--metadata", is_flag=True, help="List the metadata; long arrays and texts are cut.")
@json_option
@debug_option
def info(model: str, tensors: bool, metadata: bool, as_json: bool) -> None:
    """Summarize a model file, of any architecture, and say whether minillama can run it."""
    from minillama import gguf

    with Notices(), gguf.open(find_file(model)) as file:
        if as_json:
            print_json(_report(file, tensors, metadata))
        elif tensors:
            _print_tensors(file)
        elif metadata:
            _print_metadata(file)
        else:
            _print_summary(summarize(file))


def _report(file: GGUFFile, tensors: bool, metadata: bool) -> dict[str, Any]:
    report: dict[str, Any] = summarize(file)
    if metadata:
        report["metadata"] = {key: abbreviated(value) for key, value in file.metadata.items()}
    if tensors:
        report["tensor_list"] = [describe_tensor(tensor) for tensor in file.tensors.values()]
    return report


def _print_summary(facts: Mapping[str, Any]) -> None:
    rows = table("", "")
    rows.show_header = False
    for name, value in _lines(facts):
        rows.add_row(name, visible(value))
    print_table(rows)


def _lines(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "name", _shown(facts["name"])
    yield "file", facts["files"][0]
    shards = f", {counted(len(facts['files']), 'file')}" if len(facts["files"]) > 1 else ""
    yield "size", f"{size(facts['bytes'])}{shards}, GGUF version {facts['version']}"
    yield "architecture", _shown(facts["architecture"])
    yield "parameters", f"{facts['parameters'] / 1e6:,.1f} million in {counted(facts['tensors'], 'tensor')}"
    for i, kind in enumerate(facts["types"]):
        yield "types" if i == 0 else "", f"{kind['type']}: {counted(kind['tensors'], 'tensor')}, {size(kind['bytes'])}"
    yield "layers", _shown(facts["layers"])
    yield "embedding", f"{_shown(facts['embedding'])}, feed-forward {_shown(facts['feed_forward'])}"
    yield "heads", f"{_shown(facts['heads'])}, of keys and values {_shown(facts['kv_heads'])}"
    yield "context", f"{_shown(facts['context'])} tokens"
    yield "vocabulary", f"{_shown(facts['vocabulary'])} tokens"
    yield "tokenizer", f"{_shown(facts['tokenizer'])}, pre-tokenizer {_shown(facts['pre_tokenizer'])}"
    yield "chat template", "yes" if facts["chat_template"] else "no"
    yield "license", _shown(facts["license"])
    for i, problem in enumerate(facts["problems"]):
        yield "runs here" if i == 0 else "", f"no: {problem}" if i == 0 else problem
    if facts["runs"]:
        yield "runs here", "yes"


def _shown(value: Any) -> str:
    """A fact in words."""
    if value is None:
        return "not stated"
    if isinstance(value, dict):
        more = ", ..." if value["length"] > len(value["first"]) else ""
        return f"[{', '.join(map(_shown, value['first']))}{more}] ({value['length']})"
    if isinstance(value, float):
        return f"{value:g}"
    text = str(value)
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}... ({len(text)} characters)"


def _print_metadata(file: GGUFFile) -> None:
    rows = table("key", "type", "value")
    for key, value in file.metadata.items():
        rows.add_row(visible(key), file.value_type(key).name.lower(), visible(_shown(abbreviated(value))))
    print_table(rows)


def _print_tensors(file: GGUFFile) -> None:
    rows = table("name", "type", "shape", "bytes", "offset", right=("bytes", "offset"))
    for tensor in file.tensors.values():
        shape = "×".join(map(str, tensor.shape)) or "scalar"
        n_bytes = "?" if tensor.nbytes is None else str(tensor.nbytes)
        rows.add_row(visible(tensor.name), tensor.type_name, shape, n_bytes, str(tensor.offset))
    print_table(rows)
