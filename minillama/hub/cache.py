"""The folder that keeps model files.

``<cache>/models/`` holds the joined files of the catalog, ``<cache>/hf/`` what huggingface_hub downloads,
``<cache>/locks/`` one lock file per model.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from minillama.hub import catalog
from minillama.hub.catalog import CatalogEntry

CACHE_VARIABLE = "MINILLAMA_CACHE"


@dataclass(frozen=True)
class LocalModel:
    """A model of the catalog as it stands on this machine.

    Attributes
    ----------
    name, architecture, quant, license
        From the catalog.
    path
        Where the file is, or would be.
    bytes
        Size of the whole file.
    present
        Whether it is there in full.
    """

    name: str
    path: Path
    bytes: int
    present: bool
    architecture: str
    quant: str
    license: str


def cache_folder() -> Path:
    """Return the folder for everything minillama downloads: ``MINILLAMA_CACHE``, else the platform's user cache."""
    if chosen := os.environ.get(CACHE_VARIABLE):
        return Path(chosen).expanduser().absolute()
    import platformdirs

    return Path(platformdirs.user_cache_dir("minillama"))


def model_path(entry: CatalogEntry) -> Path:
    """Return where the joined file of `entry` is kept."""
    return cache_folder() / "models" / entry.file


def is_present(entry: CatalogEntry) -> bool:
    """Whether the file is there in full; its hash was checked when it was pulled, so only its size is looked at."""
    path = model_path(entry)
    return path.is_file() and path.stat().st_size == entry.bytes


def local_models() -> list[LocalModel]:
    """Every model of the catalog, and whether it is on this machine.

    Returns
    -------
    list of LocalModel
        In catalog order.
    """
    return [
        LocalModel(
            entry.name,
            model_path(entry),
            entry.bytes,
            is_present(entry),
            entry.architecture,
            entry.quant,
            entry.license,
        )
        for entry in catalog.CATALOG.values()
    ]
