"""What runs inside llama.cpp's own process: it reads a request, asks llama.cpp, and writes the answer.

This file is run as a script, with ``llama_cpp`` importable and nothing of minillama (see llama_cpp.py). The request is
a JSON object with a ``task``:

- ``describe``: version and compiled-in features.
- ``tokenize``: ids of texts.
- ``evaluate``: for each text, ids of the prompt and of its greedy continuation, and a hash of every position's logits.
- ``logits``: full logits of every position of each list of ids, saved as .npz.
- ``tensors``: every float32 tensor of the evaluation of one list of ids, saved as .npz in graph order.
- ``embed``: vectors of each list of ids, with ``pooling`` (a number of llama.cpp's, -1: the model's own), as .npz.
- ``time``: load, compute ``ids``, then time a run for each line of standard input and answer with a line.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

import llama_cpp
import numpy as np

FLOAT32 = 0
KV_TYPES = {"f32": 0, "f16": 1, "bf16": 30, "q8_0": 8, "q4_0": 2}


@llama_cpp.llama_log_callback  # type: ignore[untyped-decorator]
def _discard_log(_level: int, _text: bytes, _user_data: Any) -> None:
    pass


class _Tensor(ctypes.Structure):
    """The head of ``struct ggml_tensor`` (ggml 0.25), up to the name."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("buffer", ctypes.c_void_p),
        ("ne", ctypes.c_int64 * 4),
        ("nb", ctypes.c_size_t * 4),
        ("op", ctypes.c_int),
        ("op_params", ctypes.c_int32 * 16),
        ("flags", ctypes.c_int32),
        ("src", ctypes.c_void_p * 10),
        ("view_src", ctypes.c_void_p),
        ("view_offs", ctypes.c_size_t),
        ("data", ctypes.c_void_p),
        ("name", ctypes.c_char * 64),
    )


class Recorder:
    """Keeps every float32 tensor of an evaluation; a name that occurs again gets a number."""

    def __init__(self) -> None:
        self.tensors: dict[str, np.ndarray] = {}
        self.callback = llama_cpp.ggml_backend_sched_eval_callback(self._seen)

    def _seen(self, pointer: int, ask: bool, _user_data: Any) -> bool:
        if ask:
            return True
        tensor = ctypes.cast(pointer, ctypes.POINTER(_Tensor)).contents
        if tensor.type == FLOAT32 and tensor.data:
            name = tensor.name.decode()
            again = sum(key == name or key.startswith(f"{name}#") for key in self.tensors)
            self.tensors[f"{name}#{again}" if again else name] = _copy(tensor)
        return True


def _copy(tensor: _Tensor) -> np.ndarray:
    sizes, strides = tuple(tensor.ne)[::-1], tuple(tensor.nb)[::-1]
    last = sum((n - 1) * s for n, s in zip(sizes, strides, strict=True)) + 4
    raw = (ctypes.c_uint8 * last).from_address(tensor.data)
    return np.ndarray(sizes, np.float32, raw, strides=strides).copy()


def tokenize(vocab: Any, text: str, add_special: bool, parse_special: bool) -> list[int]:
    """Ids of a text."""
    data = text.encode()
    ids = (llama_cpp.llama_token * (len(data) + 8))()
    n = llama_cpp.llama_tokenize(vocab, data, len(data), ids, len(ids), add_special, parse_special)
    return list(ids[:n])


class Session:
    """A model and a context of llama.cpp."""

    def __init__(self, request: dict[str, Any], n_ctx: int, recorder: Recorder | None) -> None:
        llama_cpp.llama_log_set(_discard_log, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        self.model = llama_cpp.llama_model_load_from_file(
            request["model"].encode(), llama_cpp.llama_model_default_params()
        )
        if not self.model:
            sys.exit(f"llama.cpp cannot load {request['model']}")
        self.vocab = llama_cpp.llama_model_get_vocab(self.model)
        self.n_vocab = llama_cpp.llama_vocab_n_tokens(self.vocab)
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = n_ctx, n_ctx, request["ubatch"]
        params.n_threads = params.n_threads_batch = request["threads"]
        kv_types = request["kv_type"].split(",")  # one for both, or keys' and values'
        params.type_k, params.type_v = KV_TYPES[kv_types[0]], KV_TYPES[kv_types[-1]]
        params.flash_attn_type = request.get("flash_attention", 0)
        if "pooling" in request:
            params.embeddings, params.pooling_type = True, request["pooling"]
        if recorder is not None:
            params.cb_eval = recorder.callback
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        if not self.context:
            sys.exit("llama.cpp cannot make a context")
        self._adapt(request.get("adapters", []))

    def _adapt(self, files: list[tuple[str, float]]) -> None:
        """Apply LoRA adapters, each with its scale."""
        adapters = [llama_cpp.llama_adapter_lora_init(self.model, path.encode()) for path, _ in files]
        for (path, _), adapter in zip(files, adapters, strict=True):
            if not adapter:
                sys.exit(f"llama.cpp cannot load the adapter {path}")
        if adapters:
            pointers = (llama_cpp.llama_adapter_lora_p_ctypes * len(files))(*adapters)
            scales = (ctypes.c_float * len(files))(*(scale for _, scale in files))
            llama_cpp.llama_set_adapters_lora(self.context, pointers, len(files), scales)

    def tokenize(self, text: str, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """Ids of a text."""
        return tokenize(self.vocab, text, add_special, parse_special)

    def clear(self) -> None:
        """Forget everything."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)

    def truncate(self, n: int) -> None:
        """Forget all positions from ``n`` on."""
        llama_cpp.llama_memory_seq_rm(llama_cpp.llama_get_memory(self.context), 0, n, -1)

    def decode(self, ids: list[int], first: int, wanted: str = "all") -> np.ndarray:
        """Logits of all or the last of ``ids``, at positions ``first`` and on: float32 [n, n_vocab]."""
        outputs = range(len(ids)) if wanted == "all" else [len(ids) - 1]
        self._decode(ids, first, outputs)
        rows = (llama_cpp.llama_get_logits_ith(self.context, i) for i in outputs)
        return np.stack([np.ctypeslib.as_array(row, (self.n_vocab,)) for row in rows])

    def embed(self, ids: list[int]) -> np.ndarray:
        """The vector of a text, float32 [n_embd], or without pooling those of its tokens, [n_tokens, n_embd]."""
        self._decode(ids, 0, range(len(ids)))
        shape = (llama_cpp.llama_model_n_embd(self.model),)
        if llama_cpp.llama_pooling_type(self.context) != llama_cpp.LLAMA_POOLING_TYPE_NONE:
            return np.ctypeslib.as_array(llama_cpp.llama_get_embeddings_seq(self.context, 0), shape).copy()
        rows = (llama_cpp.llama_get_embeddings_ith(self.context, i) for i in range(len(ids)))
        return np.stack([np.ctypeslib.as_array(row, shape) for row in rows])

    def _decode(self, ids: list[int], first: int, outputs: Sequence[int]) -> None:
        batch = llama_cpp.llama_batch_init(len(ids), 0, 1)
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i], batch.logits[i] = token, first + i, i in outputs
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
        if llama_cpp.llama_decode(self.context, batch):
            sys.exit("llama_decode failed")
        llama_cpp.llama_batch_free(batch)


def position_hash(logits: np.ndarray) -> str:
    """First 16 hex digits of the SHA-256 of one position's float32 logits."""
    return hashlib.sha256(np.ascontiguousarray(logits, np.float32).tobytes()).hexdigest()[:16]


def evaluate(session: Session, text: str, n_predict: int) -> dict[str, Any]:
    """One text's prompt and greedy continuation."""
    session.clear()
    ids = session.tokenize(text)
    n_prompt = len(ids)
    start = time.perf_counter()
    logits = session.decode(ids, 0)
    prompt_seconds = time.perf_counter() - start
    hashes, heads = [position_hash(row) for row in logits], [row[:4].tolist() for row in logits]
    last = logits[-1]
    start = time.perf_counter()
    for _ in range(n_predict):
        token = int(last.argmax())
        ids.append(token)
        last = session.decode([token], len(ids) - 1)[0]
        hashes.append(position_hash(last))
        heads.append(last[:4].tolist())
    seconds = time.perf_counter() - start
    return {
        "text": text, "ids": ids, "n_prompt": n_prompt, "sha": hashes, "head": heads,
        "prompt_seconds": prompt_seconds, "predict_seconds": seconds,
    }  # fmt: skip


def context_size(longest: int) -> int:
    """Room for so many positions, in llama.cpp's steps of 256."""
    return 256 * -(-longest // 256)


def task_describe(_request: dict[str, Any]) -> dict[str, str]:
    """Version and compiled-in features."""
    llama_cpp.llama_backend_init()
    return {"version": llama_cpp.__version__, "features": llama_cpp.llama_print_system_info().decode()}


def task_tokenize(request: dict[str, Any]) -> list[list[int]]:
    """Ids of texts, from the vocabulary alone."""
    llama_cpp.llama_log_set(_discard_log, ctypes.c_void_p(0))
    params = llama_cpp.llama_model_default_params()
    params.vocab_only = True
    model = llama_cpp.llama_model_load_from_file(request["model"].encode(), params)
    if not model:
        sys.exit(f"llama.cpp cannot load {request['model']}")
    vocab = llama_cpp.llama_model_get_vocab(model)
    return [tokenize(vocab, text, request["add_special"], request["parse_special"]) for text in request["texts"]]


def task_evaluate(request: dict[str, Any]) -> list[dict[str, Any]]:
    """Hashes of prompts and greedy continuations."""
    longest = max(len(text.encode()) for text in request["texts"]) + request["n_predict"]
    session = Session(request, context_size(longest), None)
    return [evaluate(session, text, request["n_predict"]) for text in request["texts"]]


def task_logits(request: dict[str, Any]) -> None:
    """Save the logits of every position of lists of ids."""
    session = Session(request, context_size(max(len(ids) for ids in request["ids"])), None)
    answers = {}
    for i, ids in enumerate(request["ids"]):
        session.clear()
        answers[str(i)] = session.decode(ids, 0)
    np.savez(request["save"], **answers)  # type: ignore[arg-type]


def task_embed(request: dict[str, Any]) -> None:
    """Save the vectors of lists of ids."""
    session = Session(request, context_size(max(len(ids) for ids in request["ids"])), None)
    answers = {}
    for i, ids in enumerate(request["ids"]):
        session.clear()
        answers[str(i)] = session.embed(ids)
    np.savez(request["save"], **answers)  # type: ignore[arg-type]


def task_tensors(request: dict[str, Any]) -> None:
    """Save every named tensor of one evaluation."""
    recorder = Recorder()
    (ids,) = request["ids"]
    Session(request, context_size(len(ids)), recorder).decode(ids, 0)
    np.savez(request["save"], **recorder.tensors)  # type: ignore[arg-type]


def timed(session: Session, run: dict[str, Any]) -> float:
    """Seconds for ``ids`` after the first ``at`` positions, at once or one by one."""
    session.truncate(run["at"])
    parts = [[token] for token in run["ids"]] if run["one_by_one"] else [run["ids"]]
    first = run["at"]
    start = time.perf_counter()
    for part in parts:
        session.decode(part, first, wanted="last")
        first += len(part)
    return time.perf_counter() - start


def task_time(request: dict[str, Any]) -> None:
    """Time runs until there are no more."""
    start = time.perf_counter()
    session = Session(request, context_size(request["n_ctx"]), None)
    loaded = time.perf_counter() - start
    timed(session, {"ids": request["ids"], "at": 0, "one_by_one": False})
    print(json.dumps({"load_seconds": loaded}), flush=True)
    for line in sys.stdin:
        print(json.dumps({"seconds": timed(session, json.loads(line))}), flush=True)


if __name__ == "__main__":
    with open(sys.argv[1]) as _file:  # noqa: PTH123 - nothing but numpy and llama_cpp is imported here
        _request = json.load(_file)
    json.dump(globals()[f"task_{_request['task']}"](_request), sys.stdout)
