"""Sharing out work, and how many processors there are to share it among."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minillama.errors import InvalidInputError
from minillama.runtime import threads
from minillama.runtime.threads import ThreadTeam, usable_processors


def count(visits: np.ndarray, start: int, stop: int) -> None:
    visits[start:stop] += 1


@given(st.integers(1, 9), st.integers(0, 50))
def test_every_item_is_covered_once(n_threads: int, n_items: int) -> None:
    visits = np.zeros(n_items, int)
    ThreadTeam(n_threads).run(count, n_items, visits)
    assert (visits == 1).all()


def test_little_work_is_not_shared_out() -> None:
    parts: list[tuple[int, int]] = []

    def note(start: int, stop: int) -> None:
        parts.append((start, stop))

    team = ThreadTeam(4)
    team.run(note, 8, work_per_item=1)
    assert parts == [(0, 8)]
    parts.clear()
    team.run(note, 8, work_per_item=threads.WORTH_A_THREAD // 4)
    assert sorted(parts) == [(0, 4), (4, 8)]


def test_each_thread_has_aligned_scratch_of_its_own() -> None:
    seen: dict[int, np.ndarray] = {}

    def note(scratch: np.ndarray, start: int, stop: int) -> None:
        seen[start] = scratch

    team = ThreadTeam(3)
    team.run(note, 3, scratch_bytes=100)
    assert len({scratch.ctypes.data for scratch in seen.values()}) == 3
    assert all(scratch.ctypes.data % 64 == 0 and len(scratch) >= 100 for scratch in seen.values())


@pytest.mark.parametrize("failing", [0, 1])
def test_an_error_in_any_part_comes_out_and_the_team_goes_on(failing: int) -> None:
    def fail(start: int, stop: int) -> None:
        if start == failing:
            raise ValueError("no")

    team = ThreadTeam(2)
    with pytest.raises(ValueError, match="no"):
        team.run(fail, 2)
    visits = np.zeros(4, int)
    team.run(count, 4, visits)
    assert (visits == 1).all()


def test_two_python_threads_may_use_one_team() -> None:
    team, running, overlaps = ThreadTeam(2), [], []

    def alone(start: int, stop: int) -> None:
        running.append(threading.get_ident())
        overlaps.append(len(running) > 2)
        running.pop()

    users = [threading.Thread(target=lambda: [team.run(alone, 2) for _ in range(200)]) for _ in range(2)]
    for user in users:
        user.start()
    for user in users:
        user.join(timeout=60)
    assert len(overlaps) == 800
    assert not any(overlaps)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_gets_threads_of_its_own() -> None:
    team = ThreadTeam(2)
    team.run(count, 4, np.zeros(4, int))
    child = os.fork()
    if child == 0:
        visits = np.zeros(4, int)
        team.run(count, 4, visits)
        os._exit(0 if (visits == 1).all() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, "2"])
def test_wrong_number_of_threads(wrong: object) -> None:
    with pytest.raises(InvalidInputError, match="threads is"):
        ThreadTeam(wrong)  # type: ignore[arg-type]


def affinity(monkeypatch: pytest.MonkeyPatch, n: int) -> None:
    monkeypatch.setattr(threads.os, "sched_getaffinity", lambda _process: set(range(n)), raising=False)


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
