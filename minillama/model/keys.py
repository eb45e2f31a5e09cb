"""Typed access to the metadata keys of an architecture."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minillama.errors import GGUFError, UnsupportedError
from minillama.gguf import GGUFFile


def architecture_of(file: GGUFFile) -> str:
    """``general.architecture`` of a model's file.

    Raises
    ------
    GGUFError
        The key is missing.
    UnsupportedError
        The file is an adapter for a model.
    """
    if file.metadata.get("general.type") == "adapter":
        raise UnsupportedError(
            f"{file.path}: it is an adapter, not a model; load the model it is for, with --lora {file.path.name} "
            "(in Python model.load_adapter)"
        )
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
        value = self._file.get(full, int) if default is None else self._file.get(full, int, default)
        return self._checked(full, value, 0 if default == 0 else 1)

    def per_layer(self, key: str, n_layer: int, default: tuple[int, ...] | None = None) -> tuple[int, ...]:
        """Whole numbers, at least 1, one for each layer; the file has an array, or one number for all of them."""
        full = self._name(key)
        values = self._file.metadata.get(full, default)
        if isinstance(values, tuple):
            return values
        if not isinstance(values, np.ndarray):
            return (self.integer(key, 0 if default == (0,) * n_layer else None),) * n_layer
        if values.dtype.kind not in "iu":
            raise GGUFError(f"{full} is an array of {values.dtype}, whole numbers are wanted", path=self.path)
        if len(values) != n_layer:
            raise GGUFError(f"{full} has {len(values)} values, {n_layer} are wanted", path=self.path)
        return tuple(self._checked(f"{full}[{i}]", int(value), 1) for i, value in enumerate(values))

    def integer_or_array(self, key: str, default: int, length: int) -> int | list[int]:
        """A whole number, or one for each of ``length`` layers."""
        value = self._file.metadata.get(self._name(key))
        if not isinstance(value, np.ndarray):
            return self.integer(key, default)
        if len(value) < length:
            raise GGUFError(f"{self._name(key)} has {len(value)} values, {length} are wanted", path=self.path)
        return [int(element) for element in value[:length]]

    def number(self, key: str, default: float | None = None) -> float:
        """A finite positive number, or 0 if that is the default; a file may have it as a whole number."""
        full = self._name(key)
        value = self._file.metadata.get(full)
        if isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        else:
            value = self._file.get(full, float) if default is None else self._file.get(full, float, default)
        if not (np.isfinite(value) and (value > 0 or value == default == 0)):
            raise GGUFError(f"{full} is {value}, a positive number is wanted", path=self.path)
        return value

    def flag(self, key: str, default: bool | None = None) -> bool:
        """A truth value."""
        full = self._name(key)
        return self._file.get(full, bool) if default is None else self._file.get(full, bool, default)

    def choice(self, key: str, names: Sequence[str]) -> str:
        """One of some names, by its number; empty if the key is missing."""
        full = self._name(key)
        if full not in self._file.metadata:
            return ""
        number = self._file.get(full, int)
        if not 0 <= number < len(names):
            raise GGUFError(f"{full} is {number}, a number below {len(names)} is wanted", path=self.path)
        return names[number]

    def text(self, key: str, default: str) -> str:
        """A string."""
        return self._file.get(self._name(key), str, default)

    def _checked(self, name: str, value: int, least: int) -> int:
        if not least <= value < 2**31:
            raise GGUFError(f"{name} is {value}, a number from {least} to 2^31 is wanted", path=self.path)
        return value

    def _name(self, key: str) -> str:
        return f"{self.architecture}.{key}"
