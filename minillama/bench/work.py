"""How much a model must read and multiply for a token, by its tensors: what rates are held against the machine's."""

from __future__ import annotations

from dataclasses import dataclass

from minillama.gguf import GGUFFile

# Tables of which a token reads one row.
_LOOKED_UP = ("token_embd", "position_embd", "token_types", "per_layer_token_embd")
_HEAD = "output.weight"


@dataclass(frozen=True)
class Work:
    """What a token takes.

    Attributes
    ----------
    bytes_per_token
        Bytes of weights that decoding a token reads.
    layers, head
        Multiply-adds of a token in the layers' matrices, and in the head, which only the last token of a prompt needs.
    """

    bytes_per_token: float
    layers: float
    head: float

    @classmethod
    def of(cls, file: GGUFFile) -> Work:
        """The work that a file's tensors make; of experts, only those used count."""
        tied = _HEAD not in file.tensors
        architecture = file.get("general.architecture", str)
        used = file.get(f"{architecture}.expert_used_count", int, 1)
        experts = file.get(f"{architecture}.expert_count", int, 0) or 1
        read, layers, head = 0.0, 0.0, 0.0
        for name, tensor in file.tensors.items():
            is_head = name == _HEAD or (tied and name == "token_embd.weight")
            if name.split(".")[0] in _LOOKED_UP and not is_head:
                continue
            share = used / experts if "_exps." in name else 1
            read += share * (tensor.nbytes or 0)
            if len(tensor.shape) > 1:
                layers, head = (layers, head + tensor.n_elements) if is_head else (
                    layers + share * tensor.n_elements, head,
                )  # fmt: skip
        return cls(read, layers, head)

    def of_prompt(self, n_tokens: int) -> float:
        """Multiply-adds in the matrices for a prompt of which the last token's logits are wanted."""
        return n_tokens * self.layers + self.head
