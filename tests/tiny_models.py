"""Tiny models written at test time: real GGUF files with random weights of every kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from minillama.gguf import GGMLType, Writer
from minillama.kernels.layouts import LAYOUTS

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = ("t h", "th e", "a n", "an d", "i n", "Ġ the", "Ġ and")
_CONTROL, _NORMAL = 3, 1


@dataclass(frozen=True)
class TinyModel:
    """What to write. Sizes are the smallest that every block type allows (rows of 256 values).

    ``matrix_type`` is the type of the layers' matrices; the embedding and the head may differ.
    """

    architecture: str = "llama"
    n_layer: int = 2
    n_embd: int = 256
    n_ff: int = 512
    n_head: int = 4
    n_head_kv: int = 2
    n_ctx: int = 512
    matrix_type: GGMLType = GGMLType.F32
    embedding_type: GGMLType = GGMLType.F32
    tied: bool = False
    bias: bool = False
    seed: int = 0
    metadata: Mapping[str, Any] = field(default_factory=dict)
    without: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    vocabulary: bool = True

    def write(self, path: Path) -> Path:
        """Write the file."""
        with Writer(path, self.architecture) as writer:
            for key, value in self._metadata().items():
                writer.add(key, value)
            rng = np.random.default_rng(self.seed)
            for name, shape, type_ in self._tensors():
                if name in self.without:
                    continue
                if len(shape) == 1:
                    values = rng.standard_normal(shape).astype(np.float32) * 0.1
                    writer.add_tensor(name, values + (1 if name.endswith("norm.weight") else 0))
                else:
                    writer.add_tensor(name, random_packed(type_, *shape, rng), type_, shape)
        return path

    def _metadata(self) -> dict[str, Any]:
        values: dict[str, Any] = {
            "block_count": self.n_layer,
            "embedding_length": self.n_embd,
            "feed_forward_length": self.n_ff,
            "attention.head_count": self.n_head,
            "attention.head_count_kv": self.n_head_kv,
            "attention.layer_norm_rms_epsilon": 1e-5,
            "context_length": self.n_ctx,
            "rope.freq_base": 10000.0,
        }
        prefixed = {f"{self.architecture}.{key}": value for key, value in values.items()}
        return {**prefixed, **(vocabulary_metadata() if self.vocabulary else {}), **self.metadata}

    def _tensors(self) -> list[tuple[str, tuple[int, ...], GGMLType]]:
        n_embd, n_ff, head_dim = self.n_embd, self.n_ff, self.n_embd // self.n_head
        n_vocab = len(vocabulary())
        listed: list[tuple[str, tuple[int, ...], GGMLType]] = [
            ("token_embd.weight", (n_vocab, n_embd), self.embedding_type),
            ("output_norm.weight", (n_embd,), GGMLType.F32),
        ]
        if not self.tied:
            listed.append(("output.weight", (n_vocab, n_embd), self.matrix_type))
        matrices = {
            "attn_q": (n_embd, n_embd),
            "attn_k": (self.n_head_kv * head_dim, n_embd),
            "attn_v": (self.n_head_kv * head_dim, n_embd),
            "attn_output": (n_embd, n_embd),
            "ffn_gate": (n_ff, n_embd),
            "ffn_up": (n_ff, n_embd),
            "ffn_down": (n_embd, n_ff),
        }
        for i in range(self.n_layer):
            listed += [(f"blk.{i}.{name}.weight", (n_embd,), GGMLType.F32) for name in ("attn_norm", "ffn_norm")]
            listed += [(f"blk.{i}.{name}.weight", shape, self.matrix_type) for name, shape in matrices.items()]
            if self.bias:
                biased = ("attn_q", "attn_k", "attn_v")
                listed += [(f"blk.{i}.{name}.bias", matrices[name][:1], GGMLType.F32) for name in biased]
        return listed + [(name, (4,), GGMLType.F32) for name in self.extra]


# How large values of random bytes are with a scale of 1; 4 in blocks of 32, 200 in K-quants, or:
_MAGNITUDE = {
    **dict.fromkeys((GGMLType.Q1_0, GGMLType.Q2_0, GGMLType.TQ1_0, GGMLType.TQ2_0), 1),
    **dict.fromkeys((GGMLType.MXFP4, GGMLType.IQ1_S, GGMLType.IQ1_M), 6),
    **dict.fromkeys((GGMLType.IQ2_XXS, GGMLType.IQ2_XS, GGMLType.IQ2_S), 25),
    **dict.fromkeys((GGMLType.IQ3_XXS, GGMLType.IQ4_NL), 60),
    **{GGMLType.IQ3_S: 120, GGMLType.IQ4_XS: 1100},
}


def random_packed(type_: GGMLType, rows: int, n: int, rng: np.random.Generator) -> np.ndarray:
    """Random packed rows, uint8 [rows, row_bytes], that decode to finite values of about 1 / sqrt(n)."""
    layout = LAYOUTS[type_]
    if layout.block_size == 1:
        values = (rng.standard_normal((rows, n)) / np.sqrt(n)).astype(np.float32)
        if type_ is GGMLType.F16:
            return values.astype(np.float16).view(np.uint8)
        if type_ is GGMLType.BF16:
            return np.ascontiguousarray(values.view(np.uint16)[:, 1::2]).view(np.uint8)
        return values.view(np.uint8)
    n_blocks = rows * n // layout.block_size
    blocks = rng.integers(0, 256, (n_blocks, layout.type_size), np.uint8)
    size = 0.4 / _MAGNITUDE.get(type_, 4 if layout.block_size == 32 else 200) / np.sqrt(n)
    for name, width in layout.fields:
        if name in ("d", "m", "dmin") and type_ is not GGMLType.NVFP4:
            scales = (rng.uniform(0.5, 1, (n_blocks, 1)) * size * (-8 if name == "m" else 1)).astype(np.float16)
            blocks[:, layout.offset(name) : layout.offset(name) + width] = scales.view(np.uint8)
    if type_ is GGMLType.MXFP4:  # the exponent of half a power of two
        blocks[:, 0] = 128 + np.round(np.log2(size)) - rng.integers(0, 2, n_blocks)
    if type_ is GGMLType.NVFP4:  # 8-bit floats of 2^-7 to 2^-5, halved
        blocks[:, :4] = rng.integers(0x00, 0x10, (n_blocks, 4))
    if type_ is GGMLType.IQ1_M:  # the scale's nibbles are the top ones of four 16-bit integers
        halves = (rng.uniform(0.5, 1, (n_blocks, 1)) * size).astype(np.float16).view(np.uint16)
        at = layout.offset("scales")
        blocks[:, at + 1 :: 2] = blocks[:, at + 1 :: 2] & 15 | (halves >> [0, 4, 8, 12] & 15) << 4
    return blocks.reshape(rows, -1)


def byte_letters() -> list[str]:
    """The letters that stand for the 256 bytes in a byte-level vocabulary."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(others)) for byte in range(256)]


def vocabulary() -> list[str]:
    """All bytes, what the merges make, and the special tokens."""
    return [*byte_letters(), *(merge.replace(" ", "") for merge in MERGES), *SPECIAL_TOKENS]


def vocabulary_metadata() -> dict[str, Any]:
    """Metadata of a byte-level vocabulary with a few merges."""
    tokens = vocabulary()
    n_special = len(SPECIAL_TOKENS)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array([_NORMAL] * (len(tokens) - n_special) + [_CONTROL] * n_special, np.int32),
        "tokenizer.ggml.merges": list(MERGES),
        "tokenizer.ggml.bos_token_id": len(tokens) - n_special,
        "tokenizer.ggml.eos_token_id": len(tokens) - 1,
    }
