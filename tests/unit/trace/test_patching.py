"""Activation patching: every number is that of a whole pass with an edit."""

from __future__ import annotations

import numpy as np
import pytest

from minillama.errors import InvalidInputError
from minillama.generate import LanguageModel
from minillama.trace import edits, logit_difference, patch_grid, patching

CLEAN, CORRUPTED = [5, 77, 200, 13, 13, 90, 31], [5, 78, 200, 14, 13, 90, 32]
METRIC = logit_difference(40, 41)


@pytest.mark.parametrize("most", [512, 9])  # all positions in one batch, or a few at a time
@pytest.mark.parametrize("point", ["l_out", "attn_out", "ffn_out", "kqv", "v", "q_rope", "ffn_inp"])
def test_each_number_is_that_of_an_edited_pass(
    model: LanguageModel, point: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patching, "_MOST_TOKENS", most)
    grid = patch_grid(model, CLEAN, CORRUPTED, METRIC, point=point)
    source = model.trace(CLEAN, f"blk.*.{point}")
    for layer in range(3):
        for position in range(len(CLEAN)):
            edit = {f"blk.{layer}.{point}": edits.patch(source, positions=position)}
            want = METRIC(model.trace(CORRUPTED, edits=edit).logits[-1])
            assert grid.values[layer, position] == want, (layer, position)
    assert grid.clean == METRIC(model.logits(CLEAN)[-1])
    assert grid.corrupted == METRIC(model.logits(CORRUPTED)[-1])


def test_layers_and_positions(model: LanguageModel) -> None:
    whole = patch_grid(model, CLEAN, CORRUPTED, METRIC)
    part = patch_grid(model, CLEAN, CORRUPTED, METRIC, layers=[2, 0], positions=[-1, 1])
    assert (part.layers, part.positions) == ((2, 0), (6, 1))
    np.testing.assert_array_equal(part.values, whole.values[[2, 0]][:, [6, 1]])


def test_the_last_residual_brings_everything_back(model: LanguageModel) -> None:
    grid = patch_grid(model, CLEAN, CORRUPTED, METRIC)
    assert grid.recovered[-1, -1] == 1
    assert not grid.recovered[-1, :-1].any()


def test_texts_of_different_lengths(model: LanguageModel) -> None:
    with pytest.raises(InvalidInputError, match="the texts have 7 and 6 tokens, equally many are wanted"):
        patch_grid(model, CLEAN, CORRUPTED[:6], METRIC)
    same = patch_grid(model, CLEAN, CLEAN, METRIC)
    with pytest.raises(InvalidInputError, match="nothing to recover"):
        same.recovered  # noqa: B018
