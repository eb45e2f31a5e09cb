"""Tokenize with llama.cpp in a process of its own, so that an abort in C++ ends only this worker.

With ``llama_cpp`` on ``PYTHONPATH``, ``tokenizer_worker.py COMMAND VOCAB.gguf < requests > answers`` prints
"open" and answers each line:

- ``encode``: ``[base64 of the bytes, add_special, parse_special]`` with a line of ids,
- ``decode``: ``[ids, remove_special, unparse_special]`` with the bytes in hexadecimal,
- ``describe``: any line with special ids, end-of-generation ids, and attributes, scores and pieces of all tokens.
"""

from __future__ import annotations

import base64
import ctypes
import json
import sys
from typing import Any

import llama_cpp

_SPECIAL = ("bos", "eos", "eot", "sep", "pad", "mask", "fim_pre", "fim_suf", "fim_mid", "fim_pad", "fim_rep", "fim_sep")


@llama_cpp.llama_log_callback
def _discard_log(_level: int, _text: bytes, _user_data: Any) -> None:
    pass


def _open(path: str) -> tuple[Any, Any]:
    llama_cpp.llama_log_set(_discard_log, ctypes.c_void_p(0))
    params = llama_cpp.llama_model_default_params()
    params.vocab_only = True
    model = llama_cpp.llama_model_load_from_file(path.encode(), params)
    if not model:
        sys.exit(f"llama.cpp cannot load {path}")
    return model, llama_cpp.llama_model_get_vocab(model)


def _piece(vocab: Any, token: int, special: bool) -> bytes:
    buffer = ctypes.create_string_buffer(4096)
    n = llama_cpp.llama_token_to_piece(vocab, token, buffer, len(buffer), 0, special)
    return buffer.raw[:n]


def _describe(vocab: Any) -> dict[str, Any]:
    n_vocab = llama_cpp.llama_vocab_n_tokens(vocab)
    special = {name: getattr(llama_cpp, f"llama_vocab_{name}")(vocab) for name in _SPECIAL}
    return {
        "n_vocab": n_vocab,
        "special": {name: token if token >= 0 else None for name, token in special.items()},
        "add_bos": llama_cpp.llama_vocab_get_add_bos(vocab),
        "add_eos": llama_cpp.llama_vocab_get_add_eos(vocab),
        "add_sep": llama_cpp.llama_vocab_get_add_sep(vocab),
        "eog": [i for i in range(n_vocab) if llama_cpp.llama_vocab_is_eog(vocab, i)],
        "scores": [llama_cpp.llama_vocab_get_score(vocab, i) for i in range(n_vocab)],
        "attributes": [llama_cpp.llama_vocab_get_attr(vocab, i) for i in range(n_vocab)],
        "pieces": [_piece(vocab, i, True).hex() for i in range(n_vocab)],
        "not_rendered": [i for i in range(n_vocab) if not _piece(vocab, i, False)],
    }


def _tokenize(vocab: Any, text: bytes, add_special: bool, parse_special: bool) -> list[int]:
    capacity = len(text) + 8
    while True:
        ids = (llama_cpp.llama_token * capacity)()
        n = llama_cpp.llama_tokenize(vocab, text, len(text), ids, capacity, add_special, parse_special)
        if n >= 0:
            return list(ids[:n])
        capacity = -n


def _detokenize(vocab: Any, ids: list[int], remove_special: bool, unparse_special: bool) -> str:
    tokens = (llama_cpp.llama_token * len(ids))(*ids)
    capacity = 64 * len(ids) + 8
    buffer = ctypes.create_string_buffer(capacity)
    n = llama_cpp.llama_detokenize(vocab, tokens, len(ids), buffer, capacity, remove_special, unparse_special)
    return buffer.raw[:n].hex()


def main(command: str, path: str) -> None:
    """Answer the requests on standard input."""
    model, vocab = _open(path)
    print("open", flush=True)
    for line in sys.stdin:
        if command == "encode":
            text, add_special, parse_special = json.loads(line)
            answer: Any = _tokenize(vocab, base64.b64decode(text), add_special, parse_special)
        elif command == "decode":
            answer = _detokenize(vocab, *json.loads(line))
        else:
            answer = _describe(vocab)
        print(json.dumps(answer), flush=True)
    llama_cpp.llama_model_free(model)


if __name__ == "__main__":
    main(*sys.argv[1:])
