"""Typed access to the metadata keys of an architecture."""

from __future__ import annotations

import numpy as np

from minillama.errors import GGUFError, UnsupportedError
from minillama.gguf import GGUFFile


def architecture_of(file: GGUFFile) -> str:
    """``general.architecture`` of a file."""
    return file.get("general.architecture", str)


class Keys:
    """The keys under the architecture's prefix; a default of None means that the key must be there."""

    def __init__(self, file: GGUFFile) -> None:
        self._file = file
        self.architecture = architecture_of(file)
        self.path = str(file.path)

    def integer(self, key: str, default: int | None = None) -> int:
        """A whole number: at least 1, or at least 0 if that is the default."""
        full = self._name(key)
        if isinstance(self._file.metadata.get(full), np.ndarray):
            raise UnsupportedError(f"{self.path}: {full} is an array; a value per layer is not supported yet")
        value = self._file.get(full, int) if default is None else self._file.get(full, int, default)
        least = 0 if default == 0 else 1
        if not least <= value < 2**31:
            raise GGUFError(f"{full} is {value}, a number from {least} to 2^31 is wanted", path=self.path)
        return value

    def integer_or_array(self, key: str, default: int, length: int) -> int | list[int]:
        """A whole number, or one for each of ``length`` layers."""
        value = self._file.metadata.get(self._name(key))
        if not isinstance(value, np.ndarray):
            return self.integer(key, default)
        if len(value) < length:
            raise GGUFError(f"{self._name(key)} has {len(value)} values, {length} are wanted", path=self.path)
        return [int(element) for element in value[:length]]

    def number(self, key: str, default: float | None = None) -> float:
        """A finite positive number, or 0 if that is the default."""
        full = self._name(key)
        value = self._file.get(full, float) if default is None else self._file.get(full, float, default)
        if not (np.isfinite(value) and (value > 0 or value == default == 0)):
            raise GGUFError(f"{full} is {value}, a positive number is wanted", path=self.path)
        return value

    def flag(self, key: str, default: bool | None = None) -> bool:
        """A truth value."""
        full = self._name(key)
        return self._file.get(full, bool) if default is None else self._file.get(full, bool, default)

    def text(self, key: str, default: str) -> str:
        """A string."""
        return self._file.get(self._name(key), str, default)

    def _name(self, key: str) -> str:
        return f"{self.architecture}.{key}"
