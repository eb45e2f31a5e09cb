"""Models split over several files: finding the other shards and checking that they belong together."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from minillama.errors import GGUFError
from minillama.gguf.cursor import quoted
from minillama.gguf.metadata import metadata_value
from minillama.gguf.part import Part

NO_KEY, COUNT_KEY, TENSORS_KEY = "split.no", "split.count", "split.tensors.count"

_MAX_SHARDS = 65535  # llama.cpp keeps both numbers in 16 bits
_SHARD_NAME = re.compile(r"(?P<prefix>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)


def all_parts(opened: Part, read: Callable[[Path], Part]) -> list[Part]:
    """Return the shards of a split model in order, or the part itself if it is a whole model.

    Parameters
    ----------
    opened
        The file asked for: any shard.
    read
        Reads another file.
    """
    count = metadata_value(opened.metadata, COUNT_KEY, int, 1, path=str(opened.path))
    if count <= 1:
        return [opened]
    own = metadata_value(opened.metadata, NO_KEY, int, path=str(opened.path))
    if not 0 <= own < count <= _MAX_SHARDS:
        message = f"split.no and split.count: shard {own} of {count} found"
        wanted = f"numbers 0 to count - 1 and a count up to {_MAX_SHARDS} wanted"
        raise GGUFError(f"{message}, {wanted}", path=str(opened.path))
    paths = _shard_paths(opened.path, own, count)
    missing = [path.name for path in paths if not path.exists()]
    if missing:
        shown = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
        message = f"{len(missing)} of the {count} shards of this model are missing beside it: {shown}"
        raise GGUFError(message, path=str(opened.path))
    parts = [opened if i == own else read(path) for i, path in enumerate(paths)]
    _check(parts, count)
    return parts


def _shard_paths(path: Path, own: int, count: int) -> list[Path]:
    """Return the paths of all shards, from the name of one; shard numbers in names begin at 1."""
    match = _SHARD_NAME.fullmatch(path.name)
    wanted = f"-{own + 1:05d}-of-{count:05d}.gguf"
    if match is None or not path.name.endswith(wanted):
        message = f"this is shard {own + 1} of {count}, whose name must end in {wanted} to find the others"
        raise GGUFError(message, path=str(path))
    return [path.with_name(f"{match['prefix']}-{i + 1:05d}-of-{count:05d}.gguf") for i in range(count)]


def _check(parts: list[Part], count: int) -> None:
    holders: dict[str, Path] = {}
    declared = metadata_value(parts[0].metadata, TENSORS_KEY, int, path=str(parts[0].path))
    for i, part in enumerate(parts):
        path = str(part.path)
        for key, wanted in ((NO_KEY, i), (COUNT_KEY, count)):
            found = metadata_value(part.metadata, key, int, path=path)
            if found != wanted:
                raise GGUFError(f"key {quoted(key)}: {found} found, {wanted} wanted by the file's name", path=path)
        total = metadata_value(part.metadata, TENSORS_KEY, int, declared, path=path)
        if total != declared:
            message = f"key {quoted(TENSORS_KEY)}: {total} found, {declared} wanted as in {parts[0].path.name}"
            raise GGUFError(f"{message}: this is another model's shard", path=path)
        for name in part.tensors:
            if name in holders:
                raise GGUFError(f"tensor {quoted(name)} is in shard {holders[name].name} too", path=path)
            holders[name] = part.path
    if len(holders) != declared:
        message = f"key {quoted(TENSORS_KEY)}: {declared} tensors declared, {len(holders)} found in all {count} shards"
        raise GGUFError(message, path=str(parts[0].path))
