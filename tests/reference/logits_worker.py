"""Run llama.cpp on texts in a process of its own and report every position's logits, as hashes.

With ``llama_cpp`` on ``PYTHONPATH`` (see build_llama_cpp.py)::

    logits_worker.py REQUEST.json

The request names the model, the texts, the cache type, the threads, the ubatch size and how many tokens to continue
greedily; the answer, on standard output, has for each text the token ids (prompt and continuation), a hash of the
float32 logits of each position, the first logits of each, and the seconds spent on prompt and continuation. With
``tensors`` (a file) the named tensors of the first prompt's evaluation are saved there instead of continuing.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import sys
import time
from typing import Any

import llama_cpp
import numpy as np

FLOAT32 = 0


@llama_cpp.llama_log_callback
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
        params.type_k = params.type_v = {"f32": 0, "f16": 1}[request["kv_type"]]
        params.flash_attn_type = request.get("flash_attention", 0)
        if recorder is not None:
            params.cb_eval = recorder.callback
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        if not self.context:
            sys.exit("llama.cpp cannot make a context")

    def tokenize(self, text: str) -> list[int]:
        data = text.encode()
        ids = (llama_cpp.llama_token * (len(data) + 8))()
        n = llama_cpp.llama_tokenize(self.vocab, data, len(data), ids, len(ids), True, True)
        return list(ids[:n])

    def clear(self) -> None:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)

    def decode(self, ids: list[int], first: int, wanted: str = "all") -> np.ndarray:
        """Logits of all or the last of ``ids``, at positions ``first`` and on: float32 [n, n_vocab]."""
        outputs = range(len(ids)) if wanted == "all" else [len(ids) - 1]
        batch = llama_cpp.llama_batch_init(len(ids), 0, 1)
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i], batch.logits[i] = token, first + i, i in outputs
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
        if llama_cpp.llama_decode(self.context, batch):
            sys.exit("llama_decode failed")
        llama_cpp.llama_batch_free(batch)
        rows = (llama_cpp.llama_get_logits_ith(self.context, i) for i in outputs)
        return np.stack([np.ctypeslib.as_array(row, (self.n_vocab,)).copy() for row in rows])


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


def main() -> None:
    with open(sys.argv[1]) as file:  # noqa: PTH123
        request = json.load(file)
    texts, n_predict = request["texts"], request["n_predict"]
    recorder = Recorder() if "tensors" in request else None
    session = Session(request, 256 * -(-(max(len(t.encode()) for t in texts) + n_predict) // 256), recorder)
    if recorder is not None:
        session.decode(session.tokenize(texts[0]), 0)
        np.savez(request["tensors"], **recorder.tensors)
        return
    json.dump([evaluate(session, text, n_predict) for text in texts], sys.stdout)


if __name__ == "__main__":
    main()
