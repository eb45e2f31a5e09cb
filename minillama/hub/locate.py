"""From what a user types to a file: a catalog name, a path, or ``hf:owner/repo:file-or-quant``."""

from __future__ import annotations

import os
from pathlib import Path

from minillama.errors import HubError, InvalidInputError
from minillama.hub import catalog, huggingface
from minillama.hub.fetch import pull
from minillama.hub.progress import Progress


def resolve(spec: str | os.PathLike[str], progress: Progress | None = None) -> Path:
    """Return the path of the GGUF that `spec` means, downloading it if it is not on this machine.

    Parameters
    ----------
    spec
        A name of the catalog, the path of an existing file, or ``hf:owner/repo[@revision][:pattern]`` (see
        `minillama.hub.huggingface.download`). A path object is always a path.
    progress
        Told about bytes and stage, see `Progress`.

    Returns
    -------
    Path
        An existing file; the first one of a split set.

    Raises
    ------
    HubError
        If it means nothing, or cannot be fetched.
    """
    text = os.fspath(spec)
    if not text:
        raise InvalidInputError("the model is an empty string; wanted a catalog name, a path or hf:owner/repo:file")
    if isinstance(spec, str):
        if text.startswith(huggingface.PREFIX):
            return huggingface.download(text, progress)
        if text in catalog.CATALOG:
            return pull(text, progress)
    path = Path(text).expanduser()
    if path.is_file():
        return path
    raise HubError(_explain(spec, path))


def _explain(spec: str | os.PathLike[str], path: Path) -> str:
    if path.is_dir():
        return f"{path} is a folder; wanted a GGUF file"
    if not isinstance(spec, str) or path.suffix.lower() == ".gguf" or len(path.parts) > 1:
        return f"the file {path} does not exist"
    names = ", ".join(catalog.catalog_names(spec))
    return (
        f"unknown model {spec!r}: the catalog has {names}; the path of a GGUF file and "
        "hf:owner/repo:file-or-quant work too"
    )
