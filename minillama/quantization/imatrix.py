"""Importance matrices: how much the columns of each matrix matter, from files that llama.cpp's ``imatrix`` writes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from minillama import gguf
from minillama.errors import GGUFError
from minillama.gguf import GGMLType, GGUFFile, StringArray, TensorInfo
from minillama.gguf.cursor import Cursor, quoted
from minillama.kernels.types import F32

_SUMS, _COUNTS = ".in_sum2", ".counts"
_DATASETS, _N_CHUNKS, _CHUNK_SIZE = "imatrix.datasets", "imatrix.chunk_count", "imatrix.chunk_size"
_MIN_ENTRY = 12  # bytes of an entry of the older format: length of the name, number of calls, number of values


@dataclass(frozen=True)
class ImportanceMatrix:
    """What an importance file holds.

    Attributes
    ----------
    path
        The file, as it was named.
    values
        By tensor name the mean square of each column's input, float32 [n], or [n_expert * n].
    datasets
        Names of the texts it was computed on.
    n_chunks
        How many chunks of them.
    """

    path: str
    values: Mapping[str, F32]
    datasets: tuple[str, ...]
    n_chunks: int


def read_imatrix(path: str | os.PathLike[str]) -> ImportanceMatrix:
    """Read an importance matrix: a GGUF file, or the older format without one.

    Parameters
    ----------
    path
        The file.

    Returns
    -------
    ImportanceMatrix
        Values as llama.cpp's quantizer uses them: sums of squares over counts, ones for what was never used.

    Raises
    ------
    GGUFError
        The file is damaged or is no importance matrix.
    OSError
        The file cannot be opened.
    """
    with Path(path).open("rb") as file:
        is_gguf = file.read(4) == b"GGUF"
    if not is_gguf:
        return _read_older(path)
    with gguf.open(path) as opened:
        for key in (_DATASETS, _N_CHUNKS, _CHUNK_SIZE):
            if key not in opened.metadata:
                raise GGUFError(f"key {key!r} is missing: the file is no importance matrix", path=str(path))
        names = sorted({name.removesuffix(_SUMS) for name in opened.tensors if name.endswith(_SUMS)})
        names += sorted(
            name.removesuffix(_COUNTS)
            for name in opened.tensors
            if name.endswith(_COUNTS) and name.removesuffix(_COUNTS) not in names
        )
        if not names:
            raise GGUFError("the file has no importances", path=str(path))
        values = {name: _means(opened, name) for name in names}
        datasets = tuple(opened.get(_DATASETS, StringArray))
        return ImportanceMatrix(str(path), values, datasets, opened.get(_N_CHUNKS, int))


def _means(file: GGUFFile, name: str) -> F32:
    sums, counts = (_floats(file, name + suffix) for suffix in (_SUMS, _COUNTS))
    if not counts.size or sums.size % counts.size:
        found = f"{sums.size} sums and {counts.size} counts found"
        raise GGUFError(f"importances of {quoted(name)}: {found}, a count for each expert wanted", path=str(file.path))
    whole = np.floor(counts.astype(np.float64) + 0.5).astype(np.float32)[:, None]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        means = np.where(whole > 0, sums.reshape(counts.size, -1) / whole, np.float32(1))
    return means.ravel()


def _floats(file: GGUFFile, name: str) -> F32:
    tensor: TensorInfo | None = file.tensors.get(name)
    if tensor is None or tensor.type is not GGMLType.F32:
        found = "is missing" if tensor is None else f"has type {tensor.type_name}"
        raise GGUFError(f"tensor {quoted(name)} {found}, sums and counts in F32 are wanted", path=str(file.path))
    return tensor.data.view(np.float32).ravel()


def _read_older(path: str | os.PathLike[str]) -> ImportanceMatrix:
    """The format before GGUF: each entry's mean times the number of calls, then the number of chunks and the text."""
    cursor = Cursor(memoryview(Path(path).read_bytes()), str(path))
    cursor.context = "importance matrix"
    values: dict[str, F32] = {}
    n_entries = cursor.u32("number of entries")
    if not 0 < n_entries * _MIN_ENTRY <= cursor.left:
        raise cursor.error(f"{n_entries} entries declared: the file is no importance matrix", 0)
    for _ in range(n_entries):
        name = str(cursor.take(cursor.u32("length of the name"), "name"), "utf-8", "surrogateescape")
        n_calls, n_values = cursor.u32("number of calls"), cursor.u32("number of values")
        numbers = np.frombuffer(cursor.take(4 * n_values, "values"), "<f4").astype(np.float32)
        values[name] = numbers / np.float32(n_calls) if 0 < n_calls < 1 << 31 else numbers
    n_chunks = cursor.u32("number of chunks") if cursor.left else 0
    datasets: tuple[str, ...] = ()
    if cursor.left:
        datasets = (str(cursor.take(cursor.u32("length of the dataset"), "dataset"), "utf-8", "surrogateescape"),)
    return ImportanceMatrix(str(path), values, tuple(filter(None, datasets)), n_chunks)
