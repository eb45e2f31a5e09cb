"""Logit lens, attribution and heads: their sums and ends are the model's own numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from minillama import gguf
from minillama.errors import UnsupportedError
from minillama.generate import LanguageModel
from minillama.model.model import Model
from minillama.trace import direct_logit_attribution, head_outputs, log_softmax, logit_lens
from tests.tiny_families import FAMILIES

IDS = [5, 77, 200, 13, 13, 90]


def test_the_last_layer_of_the_lens_is_the_model(model: LanguageModel) -> None:
    lens = logit_lens(model, IDS, k=3)
    logp = log_softmax(model.logits(IDS))
    assert lens.layers == tuple(f"blk.{i}.l_out" for i in range(3))
    assert lens.tokens.shape == (3, 6, 3)
    assert lens.tokens[-1, :, 0].tolist() == logp.argmax(axis=1).tolist()
    np.testing.assert_array_equal(lens.logprobs[-1], -np.sort(-logp, axis=1)[:, :3])
    follows = logp[np.arange(5), IDS[1:]]
    assert lens.ranks[-1].tolist() == (logp[:-1] > follows[:, None]).sum(axis=1).tolist()


def test_first_layer(model: LanguageModel) -> None:
    lens = logit_lens(model, IDS)
    answer = int(lens.tokens[-1, -1, 0])
    first = lens.first_layer(answer)
    assert first is not None
    assert (lens.tokens[first:, -1, 0] == answer).all()
    assert first == 0 or lens.tokens[first - 1, -1, 0] != answer
    assert lens.first_layer(answer + 1) is None


@pytest.mark.parametrize("minus", [None, 3])
def test_attribution_adds_up(model: LanguageModel, minus: int | None) -> None:
    found = direct_logit_attribution(model, IDS, 42, minus=minus, position=-2)
    logits = model.logits(IDS)[-2]
    assert found.logit == float(np.float64(logits[42]) - (0 if minus is None else logits[minus]))
    assert found.names == ("token_embd", *(f"blk.{i}.{part}" for i in range(3) for part in ("attn", "ffn")))
    chosen = model.weights["output.weight"][np.array([42] if minus is None else [42, minus])].dequantize()
    direction = chosen[0].astype(np.float64) - (0 if minus is None else chosen[1])
    result = model.trace(IDS, "result_norm", positions=-2)["result_norm"][0]
    assert found.values.sum() == pytest.approx(result @ direction, rel=1e-5, abs=1e-5)  # the norm is float32
    # The head's product rounds the norm's 256 values to 8 bits: errors of 1/254 of the largest, at random.
    norm = model.trace(IDS, "result_norm", positions=-2)["result_norm"][0]
    row = model.weights["output.weight"][42].dequantize()[0]
    bound = np.abs(norm).max() / 254 * np.linalg.norm(row) * (1 if minus is None else 2)
    assert abs(found.values.sum() - found.logit) < bound


def test_attribution_of_layers_side_by_side_is_refused_or_whole(tmp_path: Path) -> None:
    family = FAMILIES["gemma2"]
    gemma = Model(gguf.open(family.write(tmp_path / "gemma.gguf", family.types[0])))
    found = direct_logit_attribution(gemma, IDS, 42)
    assert found.values.sum() == pytest.approx(found.logit, abs=2e-2 * np.abs(found.values).max())  # f16 products
    family = FAMILIES["gpt2"]
    gpt2 = Model(gguf.open(family.write(tmp_path / "gpt2.gguf", family.types[0])))
    with pytest.raises(UnsupportedError, match="RMS norm"):
        direct_logit_attribution(gpt2, IDS, 42)


def test_heads_add_up(model: LanguageModel) -> None:
    trace = model.trace(IDS, ["blk.1.kqv", "blk.1.attn_out"])
    heads = head_outputs(model, trace, 1)
    assert heads.shape == (6, 4, 256)
    # Heads of 64 values are whole blocks of 32, so that only the order of the float sums differs.
    np.testing.assert_allclose(heads.sum(axis=1), trace["blk.1.attn_out"], rtol=0, atol=1e-5 * np.abs(heads).max())
    without = trace["blk.1.kqv"].copy()
    without[:, 64:] = 0
    np.testing.assert_array_equal(heads[:, 0], without @ model.weights["blk.1.attn_output.weight"].T)
