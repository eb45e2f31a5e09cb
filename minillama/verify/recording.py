"""llama.cpp's named values under our names, as a recording to compare with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from minillama.generate import LanguageModel
from minillama.trace.recording import Recording, Rows
from minillama.verify.llama_cpp import LlamaCpp
from minillama.verify.points import points, tensor_of


def llama_cpp_recording(model: LanguageModel, path: Path, ids: Sequence[int], llama: LlamaCpp) -> Recording:
    """What llama.cpp computes for a text, by our points.

    Parameters
    ----------
    model, path
        The model and its file.
    ids
        Token ids of the text.
    llama
        A build of llama.cpp.
    """
    theirs = llama.tensors(path, ids, kv_type=model.kv_type, threads=model.n_threads)
    positions, rows = np.arange(len(ids)), {}
    for point in points(model.config.n_layer, set(model.points)):
        tensor = tensor_of(point, theirs)
        if tensor is not None:
            value = np.ascontiguousarray(tensor, np.float32)
            shape = (len(ids), *model.points[point.name].shape)
            rows[point.name] = [Rows(0, 0, positions, value.reshape([n for n in shape if n is not None]))]
    return Recording(rows, {0: [int(token) for token in ids]})
