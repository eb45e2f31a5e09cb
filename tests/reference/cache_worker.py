"""What runs in llama.cpp's own process for the tests of the cache: shifting, and types of keys and values.

    python cache_worker.py <minillama's worker.py> <request.json>

The request is one of worker.py's (model, threads, ubatch, kv_type), with ``ids`` to compute first, and ``more`` after
a shift of ``n_discard`` positions that leaves the first ``n_keep`` (none: no shift). Logits of ``more`` are saved.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import sys
from typing import Any

import llama_cpp
import numpy as np


def shift(session: Any, n: int, n_keep: int, n_discard: int, repack: bool) -> None:
    """Shift; with ``repack`` cells are afterwards in the order of positions, as they are in a new cache."""
    memory = llama_cpp.llama_get_memory(session.context)
    llama_cpp.llama_memory_seq_rm(memory, 0, n_keep, n_keep + n_discard)
    llama_cpp.llama_memory_seq_add(memory, 0, n_keep + n_discard, -1, -n_discard)
    if not repack:
        return
    session.decode([0], n - n_discard, wanted="last")  # the shift is carried out before the next tokens
    session.truncate(n - n_discard)
    data = (ctypes.c_uint8 * llama_cpp.llama_state_seq_get_size(session.context, 0))()
    if llama_cpp.llama_state_seq_get_data(session.context, data, len(data), 0) != len(data):
        sys.exit("the state cannot be read")
    session.clear()
    if not llama_cpp.llama_state_seq_set_data(session.context, data, len(data), 0):
        sys.exit("the state cannot be written")


def main() -> None:
    """Answer a request."""
    spec = importlib.util.spec_from_file_location("worker", sys.argv[1])
    assert spec is not None
    assert spec.loader is not None
    worker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(worker)
    with open(sys.argv[2]) as file:  # noqa: PTH123 - only numpy and llama_cpp are imported here
        request = json.load(file)
    ids, more = request["ids"], request["more"]
    session = worker.Session(request, worker.context_size(len(ids) + len(more) + 1), None)
    logits, n = [session.decode(ids, 0)], len(ids)
    for n_keep, n_discard in request["shifts"]:
        shift(session, n, n_keep, n_discard, request["repack"])
        n -= n_discard
    for part in request["parts"]:
        logits.append(session.decode(more[:part], n))
        n, more = n + part, more[part:]
    np.savez(request["save"], logits=np.concatenate(logits))


if __name__ == "__main__":
    main()
