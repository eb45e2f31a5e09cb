"""The page docs/points.md, made from the registry."""

from __future__ import annotations

from collections.abc import Iterable

from minillama.trace.registry import FIRST, LAST, LAYER, PointKind


def document() -> str:
    """The text of docs/points.md."""
    layer = _table("Each layer", "blk.N.", LAYER, "{}-N")
    return "\n".join(
        [_INTRODUCTION, *_table("The model", "", FIRST, "{}"), *layer, *_table("The head", "", LAST, "{}"), _END]
    )


def _table(title: str, prefix: str, kinds: Iterable[PointKind], tensor: str) -> list[str]:
    lines = [f"## {title}", "", "| point | shape | meaning | llama.cpp | TransformerLens | only |", "| --- " * 6 + "|"]
    for kind in kinds:
        tensors = ", ".join(f"`{tensor.format(name)}`" for name in kind.llama_cpp)
        lens = kind.transformer_lens and f"`{'blocks.N.' if prefix else ''}{kind.transformer_lens}`"
        lines.append(f"| `{prefix}{kind.name}` | {kind.shape} | {kind.meaning} | {tensors} | {lens} | {kind.only} |")
    return [*lines, ""]


_INTRODUCTION = """# Points

Every named value of a forward pass is a point: it can be recorded, replaced, stepped to and compared. This page is made
from `minillama/trace/registry.py` (`python -m minillama.trace.document > docs/points.md`); `model.points` lists those
that a model has, with their sizes.

T is the number of tokens, d the size of a head; values are float32. Wherever a name is wanted, a pattern
(`blk.*.l_out`), llama.cpp's name (`l_out-3`) or TransformerLens's (`blocks.3.hook_resid_post`) will do.
TransformerLens's `blocks.N.hook_resid_pre` is the value that enters layer N. A tensor name that llama.cpp gives to
several values means the last of them that the model has. Shapes are ours: queries, keys, values and `kqv` have the
heads side by side in one axis, and attention has the token first.
"""

_END = """## On demand

`blk.N.kq` and `blk.N.kq_soft_max` are never made when attention runs as one kernel; when one of them is recorded or
replaced, attention is done in three parts, with the same bits. A value that goes into a product of quantized weights
can also be had as the blocks that the dot products take, in ggml's own layout: `blk.N.attn_norm.q8_0` (uint8 [T, row
bytes]; `q8_1` or `q8_k` for other weights). These can be recorded, not replaced. Wildcards match points on demand only
where the pattern ends in their own name: `*` records none of them, `blk.*.kq_soft_max` all patterns.

A value with `_no_bias` at its end is a product before its bias is added, in layers that have biases.
"""

if __name__ == "__main__":
    print(document(), end="")
