"""Whole files: every tensor converted to the type its mix gives it, as llama.cpp's quantizer does."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy.typing as npt

from minillama import gguf
from minillama.errors import InvalidInputError, UnsupportedError
from minillama.gguf import BLOCK_SIZE, GGMLType, GGUFFile, TensorInfo, ValueType, Writer
from minillama.kernels.layouts import LAYOUTS
from minillama.kernels.reference.dequantize import GET_ROWS
from minillama.kernels.types import F32, U8
from minillama.quantization.arrays import check_finite, checked_importance, dequantize_rows, quantize_rows
from minillama.quantization.imatrix import ImportanceMatrix
from minillama.quantization.mixes import Mix, choose_types, mix_named
from minillama.runtime.threads import ThreadTeam

Progress = Callable[[int, int, str], None]

_QUANTIZATION_VERSION = 2  # GGML_QNT_VERSION
_NOT_COPIED = ("general.alignment", "split.no", "split.count", "split.tensors.count")
_MAX_NAME_BYTES = 127
_SLAB_VALUES = 1 << 24  # values decoded at a time: 64 MB of float32


def quantize_file(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    mix: str,
    *,
    allow_requantize: bool = False,
    importance: Mapping[str, npt.ArrayLike] | ImportanceMatrix | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Path:
    """Write a GGUF file whose tensors have the types of a mix, equal to what llama.cpp's quantizer makes of the source.

    The target appears, or replaces an older file, only when it is complete. Tensors are written as they are made, a
    slab at a time.

    Parameters
    ----------
    source
        A GGUF file; of a split model, any shard. The target is one file.
    target
        The file to make.
    mix
        Name of the mix as llama.cpp spells it, in any case: ``"Q4_K_M"``.
    allow_requantize
        Convert tensors that are quantized already; their errors add up.
    importance
        Importance of the columns of tensors, by tensor name, or a file's (`read_imatrix`), which the target's metadata
        then names; tensors without one are quantized without.
    threads
        Threads to use; all the process may use by default.
    progress
        Called as ``progress(done_bytes, total_bytes, tensor_name)``, in bytes of the source, before each tensor and at
        the end.

    Returns
    -------
    Path
        The target.

    Raises
    ------
    UnsupportedError
        The mix does not exist, the model's mixes are not known, or a tensor's type cannot be decoded.
    InvalidInputError
        A quantized tensor would have to be requantized and that was not allowed; a tensor has values that are not
        finite or do not fit its new type; importances do not belong to their tensor; the target is part of the source
        or its folder does not exist.
    """
    chosen_mix, team, target = mix_named(mix), ThreadTeam(threads), Path(target)
    with gguf.open(source) as file:
        _check_target(file, target)
        types = choose_types(file, chosen_mix, has_importance=importance is not None)
        for name, type_ in types.items():
            _check_conversion(file.tensors[name], type_, allow_requantize)
        numbers = importance.values if isinstance(importance, ImportanceMatrix) else importance or {}
        weights = {name: _importance_of(file, name, numbers[name]) for name in numbers if name in file.tensors}
        writer = Writer(target)
        _add_metadata(file, writer, chosen_mix, importance)
        done, total = 0, sum(tensor.nbytes or 0 for tensor in file.tensors.values())
        for name, type_ in types.items():
            tensor = file.tensors[name]

            def make(tensor: TensorInfo = tensor, type_: GGMLType = type_, done: int = done) -> Iterator[U8]:
                if progress is not None:
                    progress(done, total, tensor.name)
                if type_ is tensor.type:
                    yield tensor.data.reshape(-1)
                else:
                    yield from _converted(tensor, type_, weights.get(tensor.name), team)

            writer.add_tensor_later(name, type_, tensor.shape, make)
            done += tensor.nbytes or 0
        path = writer.write()
        if progress is not None:
            progress(total, total, path.name)
        return path


def _check_target(file: GGUFFile, target: Path) -> None:
    if not target.parent.is_dir():
        raise InvalidInputError(f"{target}: the folder {str(target.parent)!r} does not exist")
    if target.exists() and any(target.samefile(path) for path in file.paths):
        raise InvalidInputError(f"{target}: the target is the source")


def _check_conversion(tensor: TensorInfo, type_: GGMLType, allow_requantize: bool) -> None:
    if tensor.type is type_ or tensor.type is None:
        return
    what = f"{tensor.path}: tensor {tensor.name!r} has type {tensor.type_name}"
    if tensor.type not in GET_ROWS:
        raise UnsupportedError(f"{what}, which cannot be decoded; decoded are {', '.join(t.name for t in GET_ROWS)}")
    if BLOCK_SIZE[tensor.type] > 1 and not allow_requantize:
        raise InvalidInputError(
            f"{what}, {type_.name} is wanted: quantizing it again adds its errors to the new ones;"
            " start from F16, BF16 or F32, or allow requantizing"
        )


def _importance_of(file: GGUFFile, name: str, numbers: npt.ArrayLike) -> F32:
    shape = file.tensors[name].shape
    try:
        return checked_importance(numbers, shape[-1] if shape else 1)
    except InvalidInputError as error:
        raise InvalidInputError(f"importance of tensor {name!r}: {error}") from None


def _add_metadata(
    file: GGUFFile, writer: Writer, mix: Mix, importance: Mapping[str, npt.ArrayLike] | ImportanceMatrix | None
) -> None:
    """The source's metadata, then what was done, in llama.cpp's order."""
    made_how: dict[str, int | str] = {
        "general.quantization_version": _QUANTIZATION_VERSION,
        "general.file_type": mix.file_type,
    }
    if isinstance(importance, ImportanceMatrix):
        made_how["quantize.imatrix.file"] = _shortened(importance.path)
        if importance.datasets:
            made_how["quantize.imatrix.dataset"] = _shortened(importance.datasets[0])
        made_how["quantize.imatrix.entries_count"] = len(importance.values)
        if importance.n_chunks:
            made_how["quantize.imatrix.chunks_count"] = importance.n_chunks
    for key, value in file.metadata.items():
        if key not in made_how and key not in _NOT_COPIED:
            kind = file.value_type(key)
            writer.add(key, value, None if kind is ValueType.ARRAY else kind)
    for key, value in made_how.items():
        writer.add(key, value, ValueType.STRING if isinstance(value, str) else ValueType.UINT32)


def _shortened(text: str) -> str:
    """The first 127 bytes, which is what llama.cpp keeps of a name."""
    return text.encode("utf-8", "surrogateescape")[:_MAX_NAME_BYTES].decode("utf-8", "surrogateescape")


def _converted(tensor: TensorInfo, type_: GGMLType, importance: F32 | None, team: ThreadTeam) -> Iterator[U8]:
    """All rows of a tensor in another type, a slab at a time."""
    assert tensor.type is not None
    source, layout, packed = LAYOUTS[tensor.type], LAYOUTS[type_], tensor.data
    step = max(1, _SLAB_VALUES // tensor.shape[-1])
    try:
        for first in range(0, len(packed), step):
            rows = dequantize_rows(packed[first : first + step], source, team)
            check_finite(f"rows from {first}", rows)
            yield quantize_rows(rows, layout, importance, team).reshape(-1)
    except InvalidInputError as error:
        raise InvalidInputError(f"{tensor.path}: tensor {tensor.name!r}: {error}") from None
