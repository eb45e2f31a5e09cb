"""``minillama quantize`` on tiny files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from minillama import gguf
from minillama.cli import main
from minillama.gguf import GGMLType
from tests.importance_files import write_imatrix
from tests.tiny_models import TinyModel


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return TinyModel(n_layer=1, matrix_type=GGMLType.F16, embedding_type=GGMLType.F16).write(tmp_path / "f16.gguf")


def test_the_target_is_made_and_named(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "q8.gguf"
    done = CliRunner().invoke(main, ["quantize", str(source), str(target), "q8_0"])
    assert done.exit_code == 0, done.stderr
    assert done.stdout.strip() == str(target)
    types = {tensor.type for tensor in gguf.open(target).tensors.values()}
    assert types == {GGMLType.Q8_0, GGMLType.F32}


def test_requantizing_has_to_be_asked_for(source: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "q8.gguf", tmp_path / "q4.gguf"
    CliRunner().invoke(main, ["quantize", str(source), str(first), "Q8_0"])
    refused = CliRunner().invoke(main, ["quantize", str(first), str(second), "Q4_0"])
    assert refused.exit_code == 2
    assert len(refused.stderr.strip().splitlines()) == 1
    assert not second.exists()
    allowed = CliRunner().invoke(main, ["quantize", str(first), str(second), "Q4_0", "--allow-requantize"])
    assert allowed.exit_code == 0
    assert second.stat().st_size < first.stat().st_size


def test_unknown_mix_lists_the_known(source: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["quantize", str(source), str(tmp_path / "x.gguf"), "Q9"])
    assert done.exit_code == 2
    assert "'Q9' is not supported, supported are" in done.stderr
    assert not (tmp_path / "x.gguf").exists()


def test_importances_come_from_a_file(source: Path, tmp_path: Path) -> None:
    name = "blk.0.attn_q.weight"
    path = write_imatrix(tmp_path / "imatrix.gguf", {name: np.linspace(1, 9, 256, dtype=np.float32)}, {name: [3]})
    target = tmp_path / "q4.gguf"
    done = CliRunner().invoke(main, ["quantize", str(source), str(target), "Q4_K_S", "--imatrix", str(path)])
    assert done.exit_code == 0, done.stderr
    assert gguf.open(target).metadata["quantize.imatrix.file"] == str(path)
    missing = CliRunner().invoke(main, ["quantize", str(source), str(target), "Q4_K_S", "--imatrix", "no-such-file"])
    assert missing.exit_code == 2
    assert len(missing.stderr.strip().splitlines()) == 1
