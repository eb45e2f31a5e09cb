"""One side of `benchmarks.tokenizers`: ``tokenizer_sides SIDE VOCAB.gguf FOLDER ROUNDS`` prints seconds as JSON."""

from __future__ import annotations

import ctypes
import json
import logging
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Encode = Callable[[bytes], Any]
_LIMIT = 20.0  # seconds: a side that took longer on one text is not run again on it


def minillama(path: str) -> tuple[Encode, float]:
    from minillama import gguf
    from minillama.tokenizer import Tokenizer

    file = gguf.open(path)
    metadata = file.metadata
    Tokenizer.from_metadata(metadata)  # once before, for what is made once per process
    start = time.perf_counter()
    tokenizer = Tokenizer.from_metadata(metadata)
    loaded = time.perf_counter() - start
    return lambda text: tokenizer.encode(text, add_special=False), loaded


def llama_cpp(path: str) -> tuple[Encode, float]:
    import llama_cpp as library

    silent = library.llama_log_callback(lambda *_: None)
    library.llama_log_set(silent, ctypes.c_void_p(0))
    parameters = library.llama_model_default_params()
    parameters.vocab_only = True
    start = time.perf_counter()
    model = library.llama_model_load_from_file(path.encode(), parameters)
    loaded = time.perf_counter() - start
    vocab = library.llama_model_get_vocab(model)
    ids = (library.llama_token * 2_000_000)()

    def encode(text: bytes, _keep: Any = silent) -> Any:
        n = library.llama_tokenize(vocab, text, len(text), ids, len(ids), False, False)
        return ids[:n]

    return encode, loaded


def hugging_face(path: str) -> tuple[Encode, float]:
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    from minillama import gguf
    from minillama.tokenizer import Tokenizer as Ours

    metadata = gguf.open(path).metadata
    ours = Ours.from_metadata(metadata, None)
    texts = [text.decode("utf-8", "replace") for text in ours.vocabulary.texts]
    ids = {text: i for i, text in enumerate(texts)}
    start = time.perf_counter()
    if ours.model in ("gpt2", "gemma4"):
        merges = [tuple(line.split(" ", 1)) for line in metadata["tokenizer.ggml.merges"]]
        known = [pair for pair in merges if "".join(pair) in ids and pair[0] in ids and pair[1] in ids]
        tokenizer = Tokenizer(models.BPE(ids, known, byte_fallback=ours.model == "gemma4"))
    elif ours.model == "llama":
        tokenizer = Tokenizer(models.BPE(ids, _merges_by_score(ours, ids), byte_fallback=True, unk_token=texts[0]))
    elif ours.model == "t5":
        scores = ours.vocabulary.scores_or_zeros.tolist()
        tokenizer = Tokenizer(models.Unigram(list(zip(texts, scores, strict=True)), ours.unk_id))
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    else:
        tokenizer = Tokenizer(models.WordPiece({_wordpiece(text): i for text, i in ids.items()}, unk_token="[UNK]"))
        tokenizer.normalizer = normalizers.BertNormalizer()
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    if ours.model == "gpt2":
        splits = [pre_tokenizers.Split(Regex(part), "isolated") for part in _PATTERNS.get(ours.pre, [])]
        last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not splits)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, last])
        tokenizer.decoder = decoders.ByteLevel()
    elif ours.model in ("llama", "gemma4"):
        tokenizer.normalizer = normalizers.Replace(" ", "▁")
    loaded = time.perf_counter() - start
    return lambda text: tokenizer.encode(text.decode(), add_special_tokens=False).ids, loaded


# As published in the models' tokenizer.json.
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
_PATTERNS = {"llama-bpe": [_LLAMA3], "qwen2": [_LLAMA3.replace("{1,3}", "")]}


def _wordpiece(text: str) -> str:
    """Text of a token in BERT's own spelling."""
    if text.startswith("▁"):
        return text[1:]
    return text if text.startswith("[") else f"##{text}"


def _merges_by_score(ours: Any, ids: dict[str, int]) -> list[tuple[str, str]]:
    scores = ours.vocabulary.scores_or_zeros
    found = [
        (-float(scores[i]), text[:cut], text[cut:])
        for text, i in ids.items()
        for cut in range(1, len(text))
        if text[:cut] in ids and text[cut:] in ids
    ]
    return [(left, right) for _, left, right in sorted(found, key=lambda merge: merge[0])]


def main(side: str, path: str, folder: str, rounds: str) -> None:
    """Measure one side."""
    logging.disable(logging.WARNING)
    open_side = {"minillama": minillama, "llama.cpp": llama_cpp, "hugging face": hugging_face}[side]
    encode, loaded = open_side(path)
    seconds = {"load": loaded}
    for file in sorted(Path(folder).iterdir()):
        text = file.read_bytes()
        for _ in range(int(rounds) + 1):  # the first one also warms up
            start = time.perf_counter()
            encode(text)
            taken = time.perf_counter() - start
            seconds[file.name] = min(taken, seconds.get(file.name, taken))
            if taken > _LIMIT:
                break
    print(json.dumps(seconds))


if __name__ == "__main__":
    main(*sys.argv[1:])
