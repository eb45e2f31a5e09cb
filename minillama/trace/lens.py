"""What the residual stream says about the next token: logit lens, direct attribution, outputs of single heads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from minillama.errors import InvalidInputError, UnsupportedError
from minillama.kernels.types import F32, I64
from minillama.model.model import Model
from minillama.trace.differences import log_softmax
from minillama.trace.points import Points
from minillama.trace.recording import Recording
from minillama.trace.trace import Trace


@dataclass(frozen=True)
class Lens:
    """What the model would say if it ended after each layer.

    Attributes
    ----------
    layers
        Points whose residual stream was read.
    ids
        The text.
    tokens
        Likeliest tokens, likeliest first, int64 [n_layers, n_tokens, k].
    logprobs
        Their log probabilities, float64 of the same shape.
    ranks
        Rank of the token that does follow, 0 being the likeliest, int64 [n_layers, n_tokens - 1].
    """

    layers: tuple[str, ...]
    ids: tuple[int, ...]
    tokens: I64
    logprobs: npt.NDArray[np.float64]
    ranks: I64

    def first_layer(self, token: int, position: int = -1) -> int | None:
        """The first layer from which on the token is always the likeliest at a position; None if it never is."""
        best = self.tokens[:, position, 0] == token
        if not best[-1]:
            return None
        return int(np.flatnonzero(~best)[-1]) + 1 if not best.all() else 0


def logit_lens(model: Model, ids: Sequence[int], *, k: int = 5) -> Lens:
    """Send the residual stream after each layer through the last norm and the head.

    The last layer's row is what the model says, in bits.

    Parameters
    ----------
    model
        The model.
    ids
        Token ids of a text.
    k
        How many of the likeliest tokens to list.
    """
    model.check_makes_text()
    trace = Trace(model, "blk.*.l_out").run(ids, model, model.new_cache())
    last = f"blk.{model.config.n_layer - 1}.l_out"
    tokens, chances, ranks = [], [], []
    for name in trace:
        logits = model.resume({last: trace[name]}, [model.new_cache()], [len(ids)])[0]
        logp = log_softmax(logits)
        order = _largest(logp, k)
        tokens.append(order)
        chances.append(np.take_along_axis(logp, order, axis=1))
        follows = np.take_along_axis(logits[:-1], np.asarray(ids)[1:, None], axis=1)
        ranks.append((logits[:-1] > follows).sum(axis=1))
    return Lens(tuple(trace), tuple(ids), np.array(tokens), np.array(chances), np.array(ranks))


def _largest(logp: npt.NDArray[np.float64], k: int) -> I64:
    """Columns of the ``k`` largest values of each row, largest first."""
    some = np.sort(np.argpartition(-logp, k - 1, axis=1)[:, :k], axis=1)
    order = np.argsort(-np.take_along_axis(logp, some, axis=1), axis=1, kind="stable")
    columns: I64 = np.take_along_axis(some, order, axis=1)
    return columns


@dataclass(frozen=True)
class Attribution:
    """What each part of the model adds to a logit, or to a difference of two.

    Attributes
    ----------
    names
        Parts: what enters layer 0, then attention and feed-forward of each layer, or the whole layer where they work
        side by side.
    values
        What each adds, float64 [n_parts].
    logit
        The logit, or difference, that the model computes; its product rounds to blocks, so that the sum is near it.
    """

    names: tuple[str, ...]
    values: npt.NDArray[np.float64]
    logit: float


def direct_logit_attribution(
    model: Model, ids: Sequence[int], token: int, *, minus: int | None = None, position: int = -1
) -> Attribution:
    """Split a logit into what each part of the model writes to the residual stream in its direction.

    The last norm's scale is held fixed at its value in this pass, so that the logit is linear in the parts. Scales and
    caps after the head are left out.

    Parameters
    ----------
    model
        A model whose last norm is a root-mean-square norm.
    ids
        Token ids of a text.
    token, minus
        Whose logit; less whose, if given.
    position
        At which position.

    Raises
    ------
    UnsupportedError
        The model's last norm is another.
    """
    model.check_makes_text()
    if "output_norm.bias" in model.weights or model.config.architecture in ("command-r", "cohere2"):
        raise UnsupportedError("direct logit attribution is made for models whose last norm is an RMS norm")
    stream, parts = _written(model, ids, position)
    weight = model.weights["output_norm.weight"].dequantize().astype(np.float64)
    head = "output.weight" if "output.weight" in model.weights else "token_embd.weight"
    chosen = [token] if minus is None else [token, minus]
    rows = model.weights[head][np.array(chosen)].dequantize().astype(np.float64)
    direction = rows[0] if minus is None else rows[0] - rows[1]
    # The norm multiplies by its weight and by one number, found from what went in and came out.
    scaled, normed = stream["in"] * weight, stream["out"]
    inverse = float(scaled @ normed / (scaled @ scaled))
    values = np.array([part @ (direction * weight) * inverse for part in parts.values()])
    logits = stream["logits"]
    return Attribution(tuple(parts), values, float(logits[token] - (0 if minus is None else logits[minus])))


def _written(
    model: Model, ids: Sequence[int], position: int
) -> tuple[dict[str, npt.NDArray[np.float64]], dict[str, npt.NDArray[np.float64]]]:
    """What went into and came out of the last norm, the logits, and what each part wrote."""
    points = Points(model)
    names, parts = [], {}
    for i in range(model.config.n_layer):
        middle = [name for name in (f"blk.{i}.ffn_inp", f"blk.{i}.sa_out") if name in points]
        names += [*middle, f"blk.{i}.l_out"]
    first, before_cap = points.block_input(0), next(name for name in points if name.startswith("result_output"))
    place = position % len(ids)
    trace = Trace(model, [first, *names, "result_norm", before_cap], positions=place).run(ids, model, model.new_cache())
    rows = {name: trace[name][0].astype(np.float64) for name in trace}
    before = parts[first] = rows[first]
    for name in names:
        layer, what = name.rsplit(".", 1)
        whole = f"{layer}.ffn_inp" not in rows and f"{layer}.sa_out" not in rows
        label = layer if whole else f"{layer}.{'ffn' if what == 'l_out' else 'attn'}"
        parts[label], before = rows[name] - before, rows[name]
    return {"in": before, "out": rows["result_norm"], "logits": rows[before_cap]}, parts


def head_outputs(model: Model, trace: Recording, layer: int) -> F32:
    """What each head of a layer adds to the residual stream: float32 [n_tokens, n_head, n_embd].

    Each head's part of ``kqv`` is multiplied with the packed weights, the others being zero. The sum over heads is
    ``attn_out`` (without bias) up to rounding: the product adds in another order, and where blocks of 256 span several
    heads, they are quantized with other scales.

    Parameters
    ----------
    model, trace
        The model, and a recording of it with ``blk.N.kqv``.
    layer
        The layer.
    """
    kqv = trace[f"blk.{layer}.kqv"]
    n_head = model.config.layer(layer).n_head
    if kqv.shape[1] % n_head:
        raise InvalidInputError(f"blk.{layer}.kqv has {kqv.shape[1]} values, not a multiple of {n_head} heads")
    alone = np.zeros((len(kqv), n_head, *kqv.reshape(len(kqv), n_head, -1).shape[1:]), np.float32)
    for head in range(n_head):
        alone[:, head, head] = kqv.reshape(len(kqv), n_head, -1)[:, head]
    products: F32 = alone.reshape(-1, kqv.shape[1]) @ model.weights[f"blk.{layer}.attn_output.weight"].T
    return products.reshape(len(kqv), n_head, -1)
