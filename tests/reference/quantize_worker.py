"""Run by the tests in a process of its own: llama.cpp's quantizer, over a list of jobs.

Usage: ``PYTHONPATH=<build> python quantize_worker.py jobs.json``; a job is
``{"source", "target", "file_type", "allow_requantize", "importance": {tensor name: numbers} or null}``, and optionally
``"overrides": {key: text or number}``, metadata as ``llama-quantize`` adds it.
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path

import llama_cpp


class ImportanceData(ctypes.Structure):
    """``llama_model_imatrix_data``."""

    _fields_ = (("name", ctypes.c_char_p), ("data", ctypes.POINTER(ctypes.c_float)), ("size", ctypes.c_size_t))


def override_list(overrides: dict) -> ctypes.Array:
    """``llama_model_kv_override`` structures, the last one empty."""
    entries = (llama_cpp.llama_model_kv_override * (len(overrides) + 1))()
    for entry, (key, value) in zip(entries, overrides.items(), strict=False):
        entry.key = key.encode()
        if isinstance(value, str):
            entry.tag, entry.value.val_str = llama_cpp.LLAMA_KV_OVERRIDE_TYPE_STR, value.encode()
        else:
            entry.tag, entry.value.val_i64 = llama_cpp.LLAMA_KV_OVERRIDE_TYPE_INT, value
    return entries


def run(job: dict) -> None:
    """Quantize one file."""
    params = llama_cpp.llama_model_quantize_default_params()
    params.nthread, params.ftype, params.allow_requantize = 2, job["file_type"], job["allow_requantize"]
    if job["importance"] is not None:
        entries = (ImportanceData * (len(job["importance"]) + 1))()
        for entry, (name, numbers) in zip(entries, job["importance"].items(), strict=False):
            data = (ctypes.c_float * len(numbers))(*numbers)
            entry.name, entry.data, entry.size = name.encode(), data, len(numbers)
        kind = next(kind for name, kind in params._fields_ if name == "imatrix")
        params.imatrix = ctypes.cast(entries, kind)
    overrides = override_list(job.get("overrides", {}))
    params.kv_overrides = ctypes.cast(overrides, dict(params._fields_)["kv_overrides"])
    status = llama_cpp.llama_model_quantize(job["source"].encode(), job["target"].encode(), ctypes.byref(params))
    if status:
        raise RuntimeError(f"llama_model_quantize: status {status} for {job}")


if __name__ == "__main__":
    llama_cpp.llama_backend_init()
    for each in json.loads(Path(sys.argv[1]).read_text()):
        run(each)
