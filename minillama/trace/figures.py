"""Pictures of what is inside, each as a matplotlib figure: save it with ``figure.savefig("name.png")``."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from minillama.errors import InvalidInputError, MissingDependencyError
from minillama.trace.lens import Lens
from minillama.trace.patching import PatchGrid
from minillama.trace.recording import Values

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LONGEST_LABEL = 12
_MOST_NAMED = 170  # bars


def _figure(width: float, height: float) -> Figure:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingDependencyError("matplotlib is needed: pip install 'minillama[plot]'") from None
    return Figure(figsize=(width, height), layout="constrained")


def label(text: str) -> str:
    """A token's text for an axis: spaces and line breaks visible, not too long, no mathematics."""
    shown = text.replace("\n", "⏎").replace("\t", "⇥").replace(" ", "·").replace("$", r"\$")
    shown = "".join(letter if letter.isprintable() else "�" for letter in shown)
    return shown if len(shown) <= _LONGEST_LABEL else f"{shown[: _LONGEST_LABEL - 1]}…"


def attention_figure(pattern: Values, tokens: Sequence[str], *, heads: Sequence[int] | None = None) -> Figure:
    """Attention maps of a layer's heads: a row is a token, a column what it looks at.

    Parameters
    ----------
    pattern
        ``blk.N.kq_soft_max``, float32 [n_tokens, n_head, n_kv].
    tokens
        Text of each token.
    heads
        Which heads; None: all.
    """
    if pattern.ndim != 3 or len(pattern) != len(tokens) or pattern.shape[2] != len(tokens):
        raise InvalidInputError(f"the pattern has shape {pattern.shape} for {len(tokens)} tokens")
    chosen = list(range(pattern.shape[1]) if heads is None else heads)
    columns = min(len(chosen), 3)
    rows = -(-len(chosen) // columns)
    size = max(2.6, 0.2 * len(tokens)) + 0.8
    figure = _figure(size * columns + 0.8, size * rows)
    axes = figure.subplots(rows, columns, squeeze=False)
    for i, panel in enumerate(axes.flat):
        if i >= len(chosen):
            panel.axis("off")
            continue
        image = panel.imshow(pattern[:, chosen[i]], cmap="Blues", vmin=0, vmax=1, aspect="equal")
        panel.set_title(f"head {chosen[i]}", fontsize=9)
        _token_ticks(panel.xaxis, tokens)
        panel.tick_params(axis="x", labelrotation=90)
        _token_ticks(panel.yaxis, tokens if i % columns == 0 else [])
    figure.colorbar(image, ax=axes, shrink=0.6, label="attention weight")
    figure.supxlabel("looks at", fontsize=9)
    figure.supylabel("token", fontsize=9)
    return figure


def lens_figure(lens: Lens, tokens: Mapping[int, str]) -> Figure:
    """Logit lens: for each layer and position the likeliest next token, coloured by its probability.

    Parameters
    ----------
    lens
        As from :func:`~minillama.trace.logit_lens`.
    tokens
        Text of every token that occurs.
    """
    chances, best = np.exp(lens.logprobs[:, :, 0]), lens.tokens[:, :, 0]
    n_layer, n = best.shape
    figure = _figure(1.6 + 0.85 * n, 1.4 + 0.26 * n_layer)
    axes = figure.subplots()
    image = axes.imshow(chances, cmap="YlGnBu", vmin=0, vmax=1, aspect="auto", origin="lower")
    for layer in range(n_layer):
        for position in range(n):
            colour = "white" if chances[layer, position] > 0.6 else "black"
            text = label(tokens[int(best[layer, position])])
            axes.text(position, layer, text, ha="center", va="center", fontsize=7, color=colour)
    _token_ticks(axes.xaxis, [tokens[token] for token in lens.ids])
    axes.tick_params(axis="x", labelrotation=45)
    axes.set_yticks(range(n_layer), [name.split(".")[1] for name in lens.layers], fontsize=7)
    axes.set_xlabel("token")
    axes.set_ylabel("after layer")
    figure.colorbar(image, ax=axes, label="probability of the token shown", shrink=0.6)
    return figure


def patch_figure(grid: PatchGrid, tokens: Sequence[str]) -> Figure:
    """Activation patching: how much of the answer each layer and position brings back.

    Parameters
    ----------
    grid
        As from :func:`~minillama.trace.patch_grid`.
    tokens
        Text of the corrupted text's tokens.
    """
    shares = grid.recovered
    limit = max(1.0, float(np.abs(shares).max()))
    figure = _figure(2.2 + 0.5 * len(grid.positions), 1.6 + 0.2 * len(grid.layers))
    axes = figure.subplots()
    image = axes.imshow(shares, cmap="RdBu", vmin=-limit, vmax=limit, aspect="auto", origin="lower")
    _token_ticks(axes.xaxis, [tokens[position] for position in grid.positions])
    axes.tick_params(axis="x", labelrotation=45)
    axes.set_yticks(range(len(grid.layers)), [str(layer) for layer in grid.layers], fontsize=7)
    axes.set_xlabel("patched position")
    axes.set_ylabel("patched layer")
    figure.colorbar(image, ax=axes, label="share of the difference recovered")
    return figure


def norms_figure(streams: Mapping[str, Values], tokens: Sequence[str]) -> Figure:
    """Length of the residual stream after each layer, a line for each token.

    Parameters
    ----------
    streams
        ``blk.*.l_out`` by point, each float32 [n_tokens, n_embd].
    tokens
        Text of each token.
    """
    lengths = np.array([np.linalg.norm(value.astype(np.float64), axis=1) for value in streams.values()])
    figure = _figure(7, 4)
    axes = figure.subplots()
    for position in range(lengths.shape[1]):
        colour = _gradient(position / max(1, lengths.shape[1] - 1))
        axes.plot(lengths[:, position], color=colour, label=f"{position} {label(tokens[position])}", linewidth=1.2)
    axes.set_yscale("log")
    axes.set_xlabel("after layer")
    axes.set_ylabel("length of the residual stream")
    axes.set_title("Residual stream")
    axes.grid(visible=True, alpha=0.3)
    if lengths.shape[1] <= 20:
        axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def surprise_figure(tokens: Sequence[str], logprobs: Sequence[float] | npt.NDArray[np.float64]) -> Figure:
    """Surprise of each token of a text, -log2 of its probability, and the perplexity of all.

    Parameters
    ----------
    tokens, logprobs
        Text and natural log probability of each token.
    """
    bits = -np.asarray(logprobs, np.float64) / math.log(2)
    return _bars(tokens, bits, "bits of surprise", lambda mean: f"perplexity {2**mean:.2f}, {mean:.2f} bits a token")


def entropy_figure(tokens: Sequence[str], entropies: Sequence[float]) -> Figure:
    """Entropy of the distribution that each generated token was drawn from, in bits."""
    bits = np.asarray(entropies, np.float64)
    return _bars(tokens, bits, "entropy in bits", lambda mean: f"Uncertainty of a generation, {mean:.2f} bits a token")


def error_figure(errors: Mapping[str, float], title: str = "Error of each layer") -> Figure:
    """A bar for each layer's relative error, as from :func:`~minillama.trace.layer_errors`."""
    figure = _figure(max(5.0, 0.3 * len(errors) + 1), 3.5)
    axes = figure.subplots()
    axes.bar(range(len(errors)), list(errors.values()), color="#4878a8")
    axes.set_xticks(range(len(errors)), [name.removeprefix("blk.") for name in errors], fontsize=7)
    axes.set_xlabel("layer")
    axes.set_ylabel("relative error")
    axes.set_title(title)
    axes.grid(visible=True, axis="y", alpha=0.3)
    return figure


def _bars(tokens: Sequence[str], heights: npt.NDArray[np.float64], axis: str, title: Callable[[float], str]) -> Figure:
    if len(tokens) != len(heights) or not len(tokens):
        raise InvalidInputError(
            f"{len(tokens)} tokens and {len(heights)} numbers: equally many are wanted, at least one"
        )
    named = len(tokens) <= _MOST_NAMED
    figure = _figure(max(5.0, 0.22 * len(tokens) + 1.5) if named else 14.0, 3.6)
    axes = figure.subplots()
    axes.bar(
        range(len(tokens)),
        heights,
        width=0.8 if named else 1.0,
        color=[_gradient(min(1.0, height / 12)) for height in heights],
    )
    axes.axhline(float(heights.mean()), color="black", linewidth=0.8, linestyle="--", label="mean")
    if named:
        _token_ticks(axes.xaxis, tokens)
        axes.tick_params(axis="x", labelrotation=90)
    else:
        axes.set_xlabel("number of the token")
    axes.set_xlim(-0.8, len(tokens) - 0.2)
    axes.set_ylabel(axis)
    axes.set_title(title(float(heights.mean())))
    axes.legend(fontsize=7)
    return figure


def _gradient(share: float) -> tuple[float, float, float]:
    """A colour from blue (0) to red (1)."""
    return 0.2 + 0.65 * share, 0.35 * (1 - share) + 0.1, 0.75 - 0.6 * share


def _token_ticks(axis: Any, tokens: Sequence[str]) -> None:
    axis.set_ticks(range(len(tokens)), [label(token) for token in tokens], fontsize=7)
