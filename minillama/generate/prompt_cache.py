"""A file that keeps what was computed of a text for the next text that begins alike."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from minillama.model.model import Model
from minillama.runtime.kv_cache import KVCache
from minillama.runtime.kv_layout import check_kept


class PromptCache:
    """A cache and the file it comes from and goes to.

    Parameters
    ----------
    model
        The model.
    path
        The file; it need not be there yet.

    Attributes
    ----------
    cache
        What the file held, or an empty cache.

    Raises
    ------
    CacheFileError
        The file is there and is not a cache of this model.
    InvalidInputError
        The model's caches keep only windows, and cannot be written.
    """

    def __init__(self, model: Model, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._there = self._path.exists()
        self.cache: KVCache = model.load_cache(self._path) if self._there else model.new_cache()
        check_kept(self.cache)
        self._saved = self.cache.tokens

    def begin(self, ids: Sequence[int]) -> int:
        """Forget all but the beginning of a text; returns how many of its ids are held: never the last."""
        return self.cache.begin(ids)

    def save(self) -> None:
        """Write the file, if anything is new.

        Raises
        ------
        OSError
            It cannot be written.
        """
        if not self._there or self.cache.tokens != self._saved:
            self.cache.save(self._path)
            self._there, self._saved = True, self.cache.tokens
