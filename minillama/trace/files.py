"""Recordings in files: numpy's ``.npz`` and ``.safetensors``.

Both hold an array for each point (``1/blk.0.l_out`` where there are several sequences) and a JSON text that says which
step and position each row belongs to.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from minillama.errors import InvalidInputError
from minillama.trace.recording import Recording, Rows, Values

_INDEX = "__trace__"
_ENDINGS = (".npz", ".safetensors")
_TYPES = {"F32": np.float32, "U8": np.uint8}
_NAMES = {np.dtype(type_): name for name, type_ in _TYPES.items()}


def save(recording: Recording, path: Path) -> Path:
    """Write a recording; see :meth:`Recording.save`."""
    _check_ending(path)
    arrays: dict[str, Values] = {}
    index: dict[str, Any] = {"tokens": recording.tokens_by_sequence(), "points": {}}
    for sequence in recording.sequences:
        part = recording.sequence(sequence)
        for name in part:
            key = name if len(recording.sequences) == 1 else f"{sequence}/{name}"
            arrays[key] = part[name]
            steps = [row.step for row in part.rows(name) for _ in row.positions]
            place = {"name": name, "sequence": sequence, "steps": steps, "positions": part.positions(name).tolist()}
            index["points"][key] = place
    text = json.dumps(index)
    if path.suffix == ".npz":
        with path.open("wb") as file:
            np.savez(file, **{_INDEX: np.frombuffer(text.encode(), np.uint8)}, **arrays)  # type: ignore[arg-type]
    else:
        _write_safetensors(path, arrays, text)
    return path


def load(path: Path) -> Recording:
    """Read a recording; see :meth:`Recording.load`."""
    _check_ending(path)
    try:
        arrays, text = _read_npz(path) if path.suffix == ".npz" else _read_safetensors(path)
        return _recording(arrays, json.loads(text))
    except (ValueError, KeyError, TypeError, zipfile.BadZipFile, EOFError) as error:
        raise InvalidInputError(f"{path}: not a saved recording ({error})") from None


def _recording(arrays: dict[str, Values], index: dict[str, Any]) -> Recording:
    rows: dict[str, list[Rows]] = {}
    for key, place in index["points"].items():
        steps, positions = np.array(place["steps"], np.int64), np.array(place["positions"], np.int64)
        if not len(steps) == len(positions) == len(arrays[key]):
            raise ValueError(f"{key} has {len(arrays[key])} rows, {len(positions)} are listed")
        for step in np.unique(steps):
            chosen = steps == step
            part = Rows(int(step), place["sequence"], positions[chosen], arrays[key][chosen])
            rows.setdefault(place["name"], []).append(part)
    return Recording(rows, {int(sequence): ids for sequence, ids in index["tokens"].items()})


def _read_npz(path: Path) -> tuple[dict[str, Values], str]:
    with np.load(path) as saved:
        arrays = dict(saved)
    return arrays, bytes(arrays.pop(_INDEX)).decode()


def _write_safetensors(path: Path, arrays: dict[str, Values], text: str) -> None:
    header: dict[str, Any] = {"__metadata__": {_INDEX: text}}
    offset = 0
    for key, array in arrays.items():
        place = [offset, offset + array.nbytes]
        header[key] = {"dtype": _NAMES[array.dtype], "shape": list(array.shape), "data_offsets": place}
        offset += array.nbytes
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    with path.open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for array in arrays.values():
            file.write(np.ascontiguousarray(array).tobytes())


def _read_safetensors(path: Path) -> tuple[dict[str, Values], str]:
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    text: str = header.pop("__metadata__")[_INDEX]
    arrays = {}
    for key, tensor in header.items():
        first, last = tensor["data_offsets"]
        values = np.frombuffer(data[start + first : start + last], _TYPES[tensor["dtype"]])
        arrays[key] = values.reshape(tensor["shape"]).copy()
    return arrays, text


def _check_ending(path: Path) -> None:
    if path.suffix not in _ENDINGS:
        raise InvalidInputError(f"{path}: wanted a name that ends in {' or '.join(_ENDINGS)}")
