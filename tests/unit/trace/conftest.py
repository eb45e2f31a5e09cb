"""What the tests of tracing share."""

from __future__ import annotations

from pathlib import Path

import pytest

from minillama import gguf
from minillama.generate import LanguageModel
from minillama.gguf import GGMLType
from tests.tiny_models import TinyModel


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with quantized weights, three layers, grouped heads."""
    model = TinyModel(n_layer=3, n_ctx=600, matrix_type=GGMLType.Q8_0, embedding_type=GGMLType.Q8_0)
    return model.write(tmp_path_factory.mktemp("trace") / "tiny.gguf")


@pytest.fixture(scope="session")
def model(tiny_path: Path) -> LanguageModel:
    """That model on the default backend and driver."""
    return LanguageModel(gguf.open(tiny_path))
