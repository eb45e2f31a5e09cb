"""How many processors there are to share work among."""

from __future__ import annotations

from pathlib import Path

import pytest

from minillama.runtime import processors
from minillama.runtime.processors import usable_processors


def affinity(monkeypatch: pytest.MonkeyPatch, n: int) -> None:
    monkeypatch.setattr(processors.os, "sched_getaffinity", lambda _process: set(range(n)), raising=False)


@pytest.mark.parametrize(
    ("quota", "n_affinity", "expected"),
    [("max 100000", 48, 48), ("765000 100000", 48, 7), ("50000 100000", 4, 1), ("400000 100000", 1, 1), ("junk", 3, 3)],
)
def test_quota_of_the_container(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, quota: str, n_affinity: int, expected: int
) -> None:
    affinity(monkeypatch, n_affinity)
    (tmp_path / "cpu.max").write_text(quota + "\n")
    assert usable_processors(tmp_path) == expected


def test_quota_of_the_first_version(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    affinity(monkeypatch, 8)
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("250000\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert usable_processors(tmp_path) == 2
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("-1\n")
    assert usable_processors(tmp_path) == 8


def test_no_control_groups(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    affinity(monkeypatch, 5)
    assert usable_processors(tmp_path / "none") == 5
