"""Pictures: drawn without warnings, with what they are about in them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from minillama.errors import InvalidInputError
from minillama.generate import LanguageModel
from minillama.trace import figures, logit_difference, logit_lens, patch_grid

IDS = [5, 77, 200, 13]
TOKENS = ["a", " $x$", "line\nbreak", "very long token text"]


def saved(figure: object, tmp_path: Path) -> object:
    figure.savefig(tmp_path / "picture.png")  # type: ignore[attr-defined]
    assert (tmp_path / "picture.png").stat().st_size > 3000
    return figure


def test_labels() -> None:
    assert [figures.label(token) for token in TOKENS] == ["a", r"·\$x\$", "line⏎break", "very·long·t…"]
    assert figures.label("\x00") == "�"


def test_attention(model: LanguageModel, tmp_path: Path) -> None:
    pattern = model.trace(IDS, "blk.0.kq_soft_max")["blk.0.kq_soft_max"]
    figure = saved(figures.attention_figure(pattern, TOKENS), tmp_path)
    panels = [axes for axes in figure.axes if axes.get_title()]
    assert [axes.get_title() for axes in panels] == [f"head {i}" for i in range(4)]
    np.testing.assert_array_equal(panels[2].images[0].get_array(), pattern[:, 2])
    few = saved(figures.attention_figure(pattern, TOKENS, heads=[3]), tmp_path)
    assert [axes.get_title() for axes in few.axes if axes.get_title()] == ["head 3"]
    with pytest.raises(InvalidInputError, match=r"the pattern has shape \(4, 4, 4\) for 3 tokens"):
        figures.attention_figure(pattern, TOKENS[:3])


def test_lens(model: LanguageModel, tmp_path: Path) -> None:
    lens = logit_lens(model, IDS)
    names = {int(token): f"t{token}" for token in {*lens.tokens.flat, *IDS}}
    figure = saved(figures.lens_figure(lens, names), tmp_path)
    assert [text.get_text() for text in figure.axes[0].texts] == [f"t{token}" for token in lens.tokens[:, :, 0].flat]


def test_patching(model: LanguageModel, tmp_path: Path) -> None:
    grid = patch_grid(model, IDS, IDS[::-1], logit_difference(1, 2))
    figure = saved(figures.patch_figure(grid, TOKENS), tmp_path)
    np.testing.assert_array_equal(figure.axes[0].images[0].get_array(), grid.recovered)


def test_norms(model: LanguageModel, tmp_path: Path) -> None:
    streams = model.trace(IDS, "blk.*.l_out")
    figure = saved(figures.norms_figure(streams, TOKENS), tmp_path)
    lines = figure.axes[0].lines
    assert len(lines) == len(IDS)
    assert lines[1].get_ydata()[2] == pytest.approx(np.linalg.norm(streams["blk.2.l_out"][1]), rel=1e-6)


def test_bars(tmp_path: Path) -> None:
    figure = saved(figures.surprise_figure(TOKENS, np.log([0.5, 0.25, 1, 0.125])), tmp_path)
    assert [bar.get_height() for bar in figure.axes[0].patches] == pytest.approx([1, 2, 0, 3])
    assert figure.axes[0].get_title() == "perplexity 2.83, 1.50 bits a token"
    saved(figures.entropy_figure(TOKENS * 60, [1.5] * 240), tmp_path)
    saved(figures.error_figure({"blk.0": 0.1, "blk.1": 0.3}), tmp_path)
    with pytest.raises(InvalidInputError, match="4 tokens and 0 numbers"):
        figures.surprise_figure(TOKENS, [])
