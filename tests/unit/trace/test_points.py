"""The registry of points: every value has an entry, the page is up to date, names are found or refused with advice."""

from __future__ import annotations

from pathlib import Path

import pytest

from minillama import gguf
from minillama.errors import UnknownPointError
from minillama.generate import LanguageModel
from minillama.model.model import Model
from minillama.trace import Points
from minillama.trace.document import document
from minillama.trace.registry import LAYER, kind_of
from minillama.verify.points import FIRST_POINTS, LAST_POINTS, LAYER_POINTS
from tests.tiny_families import FAMILIES

PAGE = Path(__file__).parents[3] / "docs" / "points.md"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == document(), "run: python -m minillama.trace.document > docs/points.md"


@pytest.mark.parametrize("name", FAMILIES)
def test_every_value_of_every_family_has_a_meaning(name: str, tmp_path: Path) -> None:
    family = FAMILIES[name]
    points = Points(Model(gguf.open(family.write(tmp_path / "tiny.gguf", family.types[-1]))))
    assert not [point for point in points if not points[point].meaning]
    rank = {kind.name: i for i, kind in enumerate(LAYER)}
    names = [point.removeprefix("blk.0.") for point in points if point.startswith("blk.0.")]
    assert len(set(names)) == len(names)
    assert all(bare in rank or kind_of(bare) for bare in names)


def test_llama_cpp_names_are_those_that_verify_compares() -> None:
    for point in (*FIRST_POINTS, *LAYER_POINTS, *LAST_POINTS):
        kind = kind_of(point.name)
        assert kind is not None, point.name
        assert point.tensor.removesuffix("-{i}") in kind.llama_cpp or point.name.endswith("_no_bias"), point.name


def test_shapes(model: LanguageModel) -> None:
    points = model.points
    assert points["blk.1.l_out"].shape == (256,)
    assert points["blk.1.kq"].shape == (4, None)
    assert points["blk.1.kq"].on_demand
    assert points["blk.0.attn_norm.q8_0"].shape == (256 // 32 * 34,)
    assert points["blk.0.attn_norm.q8_0"].dtype == "uint8"
    assert points["result_output"].shape == (model.config.n_vocab,)


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("l_out-2", "blk.2.l_out"),
        ("Qcur-1", "blk.1.q_rope"),  # the last of the values that llama.cpp calls so
        ("embd", "token_embd"),
        ("blocks.1.hook_resid_post", "blk.1.l_out"),
        ("blocks.0.hook_resid_pre", "token_embd"),
        ("blocks.2.hook_resid_pre", "blk.1.l_out"),
        ("blocks.1.hook_resid_mid", "blk.1.ffn_inp"),
        ("blocks.1.attn.hook_pattern", "blk.1.kq_soft_max"),
        ("hook_embed", "token_embd"),
        ("ln_final.hook_normalized", "result_norm"),
    ],
)
def test_aliases(model: LanguageModel, alias: str, name: str) -> None:
    assert model.points.find(alias) == name
    assert model.points[alias].name == name


def test_patterns(model: LanguageModel) -> None:
    points = model.points
    assert points.resolve("blk.*.l_out") == [f"blk.{i}.l_out" for i in range(3)]
    assert points.resolve(["result_norm", "blk.[02].q"]) == ["blk.0.q", "blk.2.q", "result_norm"]
    assert points.resolve("blocks.*.attn.hook_pattern") == [f"blk.{i}.kq_soft_max" for i in range(3)]
    assert points.resolve("l_out-*") == points.resolve("blk.*.l_out")
    assert not any(points[name].on_demand for name in points.resolve("*"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("blk.1.lout", "no point 'blk.1.lout', the nearest are blk.1.l_out"),
        ("blk.3.l_out", "no point 'blk.3.l_out': the model has layers 0 to 2"),
        ("blocks.7.hook_resid_pre", "layers 0 to 2"),
        ("blk.0.q_norm", r"this model has no point 'blk.0.q_norm' \(queries after their norm\); qwen3"),
        ("", "no point ''"),
    ],
)
def test_unknown_points(model: LanguageModel, name: str, message: str) -> None:
    with pytest.raises(UnknownPointError, match=message):
        model.points.resolve(name)


def test_one_point_is_wanted(model: LanguageModel) -> None:
    with pytest.raises(UnknownPointError, match="matches 3 points, one is wanted"):
        model.points.find("blk.*.l_out")
