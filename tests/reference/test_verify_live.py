"""Verification of tiny models against llama.cpp's baseline build: what passes, and where a fault is found."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from minillama import gguf
from minillama.generate import LanguageModel
from minillama.gguf import GGMLType
from minillama.verify import LlamaCpp, compare
from minillama.verify.logits import verify_logits
from tests.reference.build_llama_cpp import ensure
from tests.tiny_models import TinyModel

pytestmark = pytest.mark.llama_cpp


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_a_good_file_passes(tmp_path: Path, architecture: str) -> None:
    tiny = TinyModel(architecture=architecture, matrix_type=GGMLType.Q6_K, embedding_type=GGMLType.Q8_0)
    report = compare(tiny.write(tmp_path / "tiny.gguf"), llama_cpp=ensure("baseline"))
    assert [level.passed for level in report.levels] == [True, True, True]
    logits = report.levels[2]
    assert logits.n_points == 2 * 12 + 3
    assert logits.distance is not None
    assert logits.distance.n_equal == logits.distance.n_positions > 20


@pytest.mark.parametrize("tensor", ["blk.1.attn_k.weight", "blk.0.ffn_down.weight", "output_norm.weight"])
def test_a_changed_weight_is_found_where_it_first_shows(tmp_path: Path, tensor: str) -> None:
    """llama.cpp gets the same file but for one byte of one tensor."""
    ours = TinyModel(matrix_type=GGMLType.Q8_0).write(tmp_path / "ours.gguf")
    theirs = tmp_path / "theirs.gguf"
    shutil.copy(ours, theirs)
    with theirs.open("r+b") as file:
        file.seek(gguf.open(ours).tensors[tensor].offset + 2)
        file.write(b"\x55")
    shows = {"blk.1.attn_k.weight": "blk.1.k_rope", "blk.0.ffn_down.weight": "blk.0.ffn_out"}
    llama = LlamaCpp(ensure("baseline"))

    level = verify_logits(LanguageModel(gguf.open(ours)), theirs, llama)
    assert level.passed is False
    assert level.first_point is not None
    assert level.first_point.point == shows.get(tensor, "result_norm")
