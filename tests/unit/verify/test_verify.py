"""Verification without llama.cpp: decoding against ggml, distances, and where a difference is said to be."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from minillama import gguf
from minillama.errors import InvalidInputError, MissingDependencyError
from minillama.generate import LanguageModel
from minillama.gguf import GGMLType
from minillama.kernels.registry import kernel_set
from minillama.runtime.eager import Eager
from minillama.runtime.threads import ThreadTeam
from minillama.verify import LlamaCpp, Report, compare
from minillama.verify.ggml import Ggml, installed_ggml
from minillama.verify.logits import distance, first_difference
from minillama.verify.points import points
from minillama.verify.report import Level
from minillama.verify.tensors import verify_tensors
from tests.tiny_models import TinyModel

DRIVER = Eager(kernel_set("cpu"), ThreadTeam(1))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tiny = TinyModel(n_layer=1, matrix_type=GGMLType.Q4_K, embedding_type=GGMLType.Q8_0)
    return tiny.write(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


def test_every_tensor_equals_ggml(path: Path) -> None:
    level = verify_tensors(gguf.open(path), DRIVER)
    assert level.passed
    assert level.summary.startswith("12 of 12 tensors bit-equal")
    assert {result.type for result in level.tensors} == {"F32", "Q4_K", "Q8_0"}


class OneWrongBit(Ggml):
    def __init__(self) -> None:
        super().__init__(installed_ggml().folder)

    def dequantize(self, type_: GGMLType, packed: np.ndarray, n: int) -> np.ndarray:
        values = super().dequantize(type_, packed, n).copy()
        if type_ is GGMLType.Q8_0:
            values.view(np.uint32)[3, 5] ^= 1
        return values


def test_one_wrong_bit_is_found_and_named(path: Path) -> None:
    level = verify_tensors(gguf.open(path), DRIVER, ggml=OneWrongBit())
    assert level.passed is False
    assert level.summary.startswith("11 of 12 tensors bit-equal")
    (wrong,) = [result for result in level.tensors if result.n_different]
    assert (wrong.name, wrong.n_different) == ("token_embd.weight", 1)
    assert wrong.first_different is not None
    assert wrong.first_different.startswith("row 3, index 5: ")


def test_nan_blocks_are_named(tmp_path: Path) -> None:
    path = TinyModel(n_layer=1, matrix_type=GGMLType.Q8_0).write(tmp_path / "nan.gguf")
    offset = gguf.open(path).tensors["blk.0.ffn_up.weight"].offset
    with path.open("r+b") as file:
        file.seek(offset + 8 * 34 * 2 + 34 * 3)  # row 2, block 3
        file.write(b"\x00\x7e")
    level = verify_tensors(gguf.open(path), DRIVER)
    assert level.passed
    (strange,) = [result for result in level.tensors if result.n_nonfinite]
    assert (strange.name, strange.n_nonfinite, strange.first_nonfinite) == ("blk.0.ffn_up.weight", 32, "row 2, block 3")


def test_distance_of_equal_logits_is_zero() -> None:
    logits = np.random.default_rng(0).standard_normal((4, 50)).astype(np.float32)
    found = distance([logits[:1], logits[1:]], [logits])
    assert (found.n_positions, found.n_equal, found.largest, found.n_argmax) == (4, 4, 0, 0)
    assert found.mean_kl == found.max_kl == 0


def test_distance_of_known_distributions() -> None:
    ours = np.log(np.array([[0.5, 0.5], [0.25, 0.75]], np.float32))
    theirs = np.log(np.array([[0.5, 0.5], [0.75, 0.25]], np.float32))
    found = distance([ours], [theirs])
    assert (found.n_equal, found.n_argmax) == (1, 1)
    # KL of (3/4, 1/4) from (1/4, 3/4) is ln(3) / 2; the logs were rounded to float32
    assert found.max_kl == pytest.approx(np.log(3) / 2, rel=1e-6)
    assert found.mean_kl == pytest.approx(np.log(3) / 4, rel=1e-6)


def as_llama_cpp_names(model: LanguageModel, ids: list[int]) -> dict[str, np.ndarray]:
    """Our own values under llama.cpp's names, as if that build agreed in everything."""
    ours: dict[str, np.ndarray] = {}
    model.forward(ids, model.new_cache(), logits="all", watch=lambda name, value: ours.update({name: value.copy()}))
    return {point.tensor: ours[point.name] for point in points(model.config.n_layer, ours)}


def test_thefirst_difference_has_a_place(path: Path) -> None:
    model = LanguageModel(gguf.open(path))
    theirs = as_llama_cpp_names(model, [1, 2, 3])
    assert first_difference(model, [1, 2, 3], theirs) == (None, len(theirs))
    theirs["ffn_up-0"].view(np.uint32)[1, 7] ^= 2
    theirs["result_norm"][:] = 0
    found, _ = first_difference(model, [1, 2, 3], theirs)
    assert found is not None
    assert (found.point, found.row, found.index, found.n_different, found.ulps) == ("blk.0.ffn_up", 1, 7, 1, 2)
    assert "dot product" in found.likely_causes


def test_a_missing_library_is_said_and_counts_neither_way(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(_site: object) -> LlamaCpp:
        raise MissingDependencyError("llama-cpp-python is needed: pip install ...")

    monkeypatch.setattr("minillama.verify.comparison.LlamaCpp", absent)
    report = compare(path)
    verdicts = {level.name: level.passed for level in report.levels}
    assert verdicts == {"tensors": True, "tokens": None, "logits": None}
    assert all("pip install" in str(level.missing) for level in report.levels[1:])
    assert report.passed
    assert report.verdict == "verified: everything that was compared is equal; not compared: tokens, logits"
    assert json.loads(json.dumps(report.to_dict()))["levels"][0]["summary"].startswith("12 of 12")


def test_nothing_compared_is_not_a_pass() -> None:
    report = Report("x", [Level("tokens", missing="no library")])
    assert report.passed is None
    assert report.verdict == "nothing was verified: no level could be compared bit for bit; not compared: tokens"


def test_one_difference_is_a_failure_whatever_else_is_missing() -> None:
    report = Report("x", [Level("tensors", passed=True), Level("tokens", passed=False), Level("logits", missing="no")])
    assert report.passed is False
    assert report.verdict == "NOT verified: see the differences above; not compared: logits"


def test_unknown_level() -> None:
    with pytest.raises(InvalidInputError, match="level 'bits' does not exist, there are tensors, tokens, logits"):
        compare("x", levels=["bits"])


@pytest.mark.parametrize(
    ("features", "baseline"),
    [
        ("CPU : ", True),
        ("CPU : OPENMP = 1 | ", True),
        ("CPU : SSE3 = 1 | SSSE3 = 1 | AVX = 1 | ", False),
        ("CPU : LLAMAFILE = 1 | ", False),
        ("CPU : NEON = 1 | ARM_FMA = 1 | ", False),
    ],
)
def test_which_build_is_the_baseline(monkeypatch: pytest.MonkeyPatch, features: str, baseline: bool) -> None:
    monkeypatch.setattr(LlamaCpp, "_ask", lambda self, request: {"version": "0", "features": features})
    assert LlamaCpp().is_baseline is baseline
