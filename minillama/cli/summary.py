"""What a GGUF file says about itself, as plain values; works for any architecture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from minillama.errors import MinillamaError

if TYPE_CHECKING:
    from minillama.gguf import GGUFFile, TensorInfo

_SHOWN_OF_ARRAY = 8
_SIZES = {
    "layers": "block_count",
    "embedding": "embedding_length",
    "feed_forward": "feed_forward_length",
    "heads": "attention.head_count",
    "kv_heads": "attention.head_count_kv",
    "context": "context_length",
}


def summarize(file: GGUFFile) -> dict[str, Any]:
    """Return the facts about a file; what it does not state is None."""
    metadata = file.metadata
    architecture = metadata.get("general.architecture")
    problems = find_problems(file)
    return {
        "files": [str(path) for path in file.paths],
        "bytes": sum(path.stat().st_size for path in file.paths),
        "version": file.version,
        "name": abbreviated(metadata.get("general.name")),
        "architecture": abbreviated(architecture),
        "license": abbreviated(metadata.get("general.license")),
        "parameters": sum(tensor.n_elements for tensor in file.tensors.values()),
        "tensors": len(file.tensors),
        "types": _types(file),
        **{name: abbreviated(metadata.get(f"{architecture}.{key}")) for name, key in _SIZES.items()},
        "vocabulary": _vocabulary_size(file),
        "tokenizer": abbreviated(metadata.get("tokenizer.ggml.model")),
        "pre_tokenizer": abbreviated(metadata.get("tokenizer.ggml.pre")),
        "chat_template": "tokenizer.chat_template" in metadata,
        "runs": not problems,
        "problems": problems,
    }


def find_problems(file: GGUFFile) -> list[str]:
    """Return why minillama cannot run the file, in the library's words; empty if it can."""
    from minillama.kernels.layouts import weight_layout
    from minillama.model.config import read_config
    from minillama.model.families import check_supported
    from minillama.model.keys import architecture_of
    from minillama.tokenizer import Tokenizer

    def configuration() -> None:
        check_supported(architecture_of(file))
        read_config(file)

    one_of_each_type = {tensor.type_id: tensor for tensor in reversed(list(file.tensors.values()))}
    checks: list[Callable[[], Any]] = [
        configuration,
        *(_bound(weight_layout, tensor) for tensor in one_of_each_type.values()),
        lambda: Tokenizer.from_gguf(file),
    ]
    problems = []
    for check in checks:
        try:
            check()
        except MinillamaError as error:
            problems.append(str(error).removeprefix(f"{file.path}: "))
    return problems


def _bound(check: Callable[..., Any], tensor: TensorInfo) -> Callable[[], Any]:
    return lambda: check(tensor.type, tensor.name)


def abbreviated(value: Any) -> Any:
    """Return a metadata value as plain data: of an array the length and the first elements."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    first = value[:_SHOWN_OF_ARRAY]
    shown = first.tolist() if hasattr(first, "tolist") else [abbreviated(item) for item in first]
    return {"length": len(value), "first": shown}


def describe_tensor(tensor: TensorInfo) -> dict[str, Any]:
    """Return a row of the table of tensors."""
    return {
        "name": tensor.name,
        "type": tensor.type_name,
        "shape": list(tensor.shape),
        "bytes": tensor.nbytes,
        "offset": tensor.offset,
    }


def _types(file: GGUFFile) -> list[dict[str, Any]]:
    """Types of the tensors, those that take most bytes first; unknown ones, whose bytes are not known, last."""
    counts: dict[str, int] = {}
    totals: dict[str, int | None] = {}
    for tensor in file.tensors.values():
        name = tensor.type_name
        counts[name] = counts.get(name, 0) + 1
        totals[name] = None if tensor.nbytes is None else (totals.get(name) or 0) + tensor.nbytes
    ordered = sorted(counts, key=lambda name: -(totals[name] or 0))
    return [{"type": name, "tensors": counts[name], "bytes": totals[name]} for name in ordered]


def _vocabulary_size(file: GGUFFile) -> int | None:
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    return len(tokens) if isinstance(tokens, Sequence) else None
