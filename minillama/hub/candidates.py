"""Which of a repository's files a pattern means: pure functions on file names."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable

from minillama.errors import HubError

_SHARD = re.compile(r"-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf$")
# GGUFs beside a model that are none: vision projectors and importance matrices.
_COMPANION = re.compile(r"(^|/)(imatrix|[^/]*mmproj)[^/]*$", re.IGNORECASE)
# What may continue a quant name, so that Q4_K is not found in Q4_K_M, nor Q4_0 in Q4_0_4_4.
_LONGER = r"(?!_(?:K|XXS|XS|S|M|L|XL|NL|\d+)(?![A-Za-z0-9]))"


def select(names: Iterable[str], pattern: str | None) -> list[str]:
    """Pick the one model that `pattern` means.

    Parameters
    ----------
    names
        Paths of all files of the repository.
    pattern
        A path or file name, a glob, or a part of the name between dashes, dots, underscores or slashes, such as a
        quant (``Q4_K_M``; case does not matter). None: the only model there is. Vision projectors and importance
        matrices are found by file name or glob only.

    Returns
    -------
    list of str
        One path, or all paths of a split set in order.

    Raises
    ------
    HubError
        If none or several match (it lists the candidates), or a split set has gaps.
    """
    models = _group(names)
    if not models:
        raise HubError("it has no .gguf file")
    found: list[list[str]] = []
    for matches in (lambda name: name == pattern, lambda name: _basename(name) == pattern, _matcher(pattern)):
        found = [members for members in models if any(map(matches, members))]
        if len(found) == 1:
            return _checked(found[0])
    wanted = "a GGUF file" if pattern is None else f"{pattern!r}"
    if found:
        raise HubError(f"{len(found)} models match {wanted}, wanted one of: {_listing(found)}")
    raise HubError(f"no model matches {wanted}; there are: {_listing(models)}")


def _matcher(pattern: str | None) -> Callable[[str], bool]:
    if pattern is None:
        return lambda name: not _COMPANION.search(name)
    if any(character in pattern for character in "*?["):
        return lambda name: fnmatch.fnmatchcase(name, pattern) or fnmatch.fnmatchcase(_basename(name), pattern)
    component = re.compile(rf"(?<![A-Za-z0-9]){re.escape(pattern)}(?![A-Za-z0-9]){_LONGER}", re.IGNORECASE)
    return lambda name: bool(component.search(name)) and not _COMPANION.search(name)


def _group(names: Iterable[str]) -> list[list[str]]:
    """GGUF files, the shards of one model together and in order."""
    groups: dict[str, list[str]] = {}
    for name in sorted(names):
        if name.lower().endswith(".gguf"):
            shard = _SHARD.search(name)
            key = f"{name[: shard.start()]} of {shard['count']}" if shard else name
            groups.setdefault(key, []).append(name)
    return list(groups.values())


def _checked(members: list[str]) -> list[str]:
    shard = _SHARD.search(members[0])
    if shard:
        there = {_SHARD.search(name)["number"] for name in members}  # type: ignore[index]  # grouped by this pattern
        gaps = [n for n in range(1, int(shard["count"]) + 1) if f"{n:05}" not in there]
        if gaps:
            raise HubError(f"{members[0]} is part of a split set that lacks part {gaps[0]} of {int(shard['count'])}")
    return members


def _basename(name: str) -> str:
    return name.rsplit("/", 1)[-1]


def _listing(models: list[list[str]]) -> str:
    return ", ".join(members[0] for members in models)
