"""One HTML page about a pass: tokens to click, layers to scroll, attention, logit lens; no server, no network."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from minillama.errors import InvalidInputError
from minillama.model.model import Model
from minillama.trace.lens import logit_lens
from minillama.trace.trace import Trace

# Attention maps grow with the square of the length: a page of so many tokens has a few dozen megabytes.
MOST_TOKENS = 256
_TEMPLATE = Path(__file__).with_name("report.html")
_MARK = "/*DATA*/null"


def report(model: Model, ids: Sequence[int], text_of: Callable[[int], str], *, k: int = 8) -> str:
    """The page's HTML.

    Parameters
    ----------
    model
        The model.
    ids
        Token ids of a text.
    text_of
        Text of a token.
    k
        How many of the likeliest tokens to list.

    Raises
    ------
    InvalidInputError
        The text is too long for a page.
    """
    if len(ids) > MOST_TOKENS:
        raise InvalidInputError(f"the text has {len(ids)} tokens, a page has room for {MOST_TOKENS}")
    lens = logit_lens(model, ids, k=k)
    trace = Trace(model, ["blk.*.l_out", "blk.*.kq_soft_max"]).run(ids, model, model.new_cache())
    n_layer = model.config.n_layer
    data: dict[str, Any] = {
        "model": model.config.name or "",
        "architecture": model.config.architecture,
        "ids": [int(token) for token in ids],
        "n_head": [model.config.layer(i).n_head for i in range(n_layer)],
        "texts": {int(token): text_of(int(token)) for token in {*lens.tokens.flat, *ids}},
        "top": lens.tokens.tolist(),
        "chance": np.round(np.exp(lens.logprobs), 4).tolist(),
        "norms": [np.linalg.norm(trace[f"blk.{i}.l_out"].astype(np.float64), axis=1).round(2).tolist()
                  for i in range(n_layer)],
        "attention": [_bytes(trace[f"blk.{i}.kq_soft_max"]) for i in range(n_layer)],
    }  # fmt: skip
    # "<" would end the script element where a token's text is "</script>".
    text = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return _TEMPLATE.read_text(encoding="utf-8").replace(_MARK, text)


def _bytes(pattern: np.ndarray[Any, Any]) -> str:
    """Weights in 256 steps, [head, token, position], as base64."""
    steps = np.round(pattern.transpose(1, 0, 2) * 255).astype(np.uint8)
    return base64.b64encode(np.ascontiguousarray(steps).tobytes()).decode()
