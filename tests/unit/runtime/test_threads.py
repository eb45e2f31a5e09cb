"""Sharing out the items of plans: every item once, by as many threads as are asked for."""

from __future__ import annotations

import gc
import itertools
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minillama.errors import InvalidInputError
from minillama.runtime import execute, threads
from minillama.runtime.atomics import add
from minillama.runtime.plan import (
    ASKED,
    FIRST,
    INDEX,
    LATER,
    MEMORY,
    MEMORY_BYTES,
    ROW_BYTES,
    STEP,
    WAITED,
    Ahead,
    Operation,
    Plan,
    aligned,
)
from minillama.runtime.threads import ThreadTeam


@numba.njit(nogil=True)
def count(visits: np.ndarray, start: int, stop: int) -> None:
    for i in range(start, stop):
        add(visits.ctypes.data + 8 * i, 1)


@numba.njit(nogil=True)
def count_all(visits: np.ndarray, start: int, stop: int) -> None:
    count(visits, 0, len(visits) * (stop - start))


@numba.njit(nogil=True)
def reversed_double(source: np.ndarray, target: np.ndarray, start: int, stop: int) -> None:
    for i in range(start, stop):
        target[i] = 2 * source[-1 - i]


@numba.njit(nogil=True)
def note_scratch(seen: np.ndarray, scratch: np.ndarray, start: int, stop: int) -> None:
    scratch[0] += 1
    for i in range(start, stop):
        seen[i, 0], seen[i, 1] = scratch.ctypes.data, len(scratch)


def plan_of(team: ThreadTeam, *operations: Operation) -> Plan:
    return Plan([operation.call() for operation in operations], team.n_threads)


@settings(deadline=None)  # the first call compiles
@given(
    st.integers(1, 5), st.integers(0, 200), st.sampled_from([(1, 1), (3, 1), (16, 1), (1, 3), (1, 7)]),
    st.sampled_from([1, 1000, 10**7]),
)  # fmt: skip
def test_every_item_is_covered_once(n_threads: int, n_items: int, units: tuple[int, int], work: int) -> None:
    visits = np.zeros(n_items, np.int64)
    team = ThreadTeam(n_threads)
    team.run(count, n_items, visits, work_per_item=work)
    if n_items:
        sizes = {"work_per_item": work, "granularity": units[0], "group": units[1]}
        operation = Operation("count", count, (visits,), n_items, **sizes)
        team.run_plan(plan_of(team, operation, operation))
    assert (visits == 3).all()


@pytest.mark.parametrize(
    ("sizes", "n_threads", "shares"),
    [
        ({"n_items": 9, "group": 3}, 2, (3, 6, 1)),  # a group each, and the third shared out
        ({"n_items": 14, "group": 7}, 2, (7, 14, 1)),
        ({"n_items": 4, "group": 4}, 2, (4, 0, 1)),
        ({"n_items": 32, "group": 4}, 2, (4, 32, 1)),
        ({"n_items": 1600, "granularity": 16}, 2, (208, 1184, 64)),  # the last are smaller
        ({"n_items": 5}, 1, (2, 3, 1)),
    ],
)
def test_shares(sizes: dict[str, int], n_threads: int, shares: tuple[int, int, int]) -> None:
    visits = np.zeros(sizes["n_items"], np.int64)
    call = Operation("count", count, (visits,), **sizes, work_per_item=10**6).call()
    assert call.shares(n_threads) == shares


@pytest.mark.parametrize("n_threads", [1, 2, 3, 4, 64])
def test_an_operation_sees_all_of_the_one_before(n_threads: int) -> None:
    # The order is reversed, so that a thread mostly reads what another one wrote.
    team, n = ThreadTeam(n_threads), 1000
    arrays = np.arange(n, dtype=np.int64), np.zeros(n, np.int64)
    steps = [Operation("reverse", reversed_double, (arrays[i % 2], arrays[1 - i % 2]), n) for i in range(40)]
    plan = plan_of(team, *steps)
    for _ in range(20):
        arrays[0][:] = np.arange(n)
        team.run_plan(plan)
        assert (arrays[0] == (np.arange(n) << 40)).all()


@numba.njit(nogil=True)
def fill_slowly(target: np.ndarray, value: int, start: int, stop: int) -> None:
    for i in range(start, stop):
        for _ in range(2000):
            add(target.ctypes.data + 8 * i, value)


def test_operations_may_run_beside_each_other_and_are_all_waited_for() -> None:
    team, n = ThreadTeam(2), 64
    slow, quick, sums = (np.zeros(n, np.int64) for _ in range(3))
    fill = Operation("fill", fill_slowly, (slow, 1), n, work_per_item=10**6)
    beside = Operation("beside", reversed_double, (np.ones(n, np.int64), quick), n, beside=True)
    after = Operation("after", reversed_double, (slow, sums), n)
    plan = plan_of(team, fill, beside, beside, after, fill, beside)
    assert plan._rows[:, WAITED // 8].tolist() == [0, 0, 3, 1, 0, 2]
    for i in range(20):
        team.run_plan(plan)
        assert (sums == 2 * 2000 * (2 * i + 1)).all()
        assert (slow == 2000 * (2 * i + 2)).all()


def test_operations_beside_each_other_are_not_parted() -> None:
    work, visits = 600_000_000, np.zeros(1, np.int64)  # two take more than is done between two looks at Ctrl-C
    first = Operation("first", count, (visits,), 1, work_per_item=work)
    beside = Operation("beside", count, (visits,), 1, work_per_item=work, beside=True)
    assert plan_of(ThreadTeam(1), first, beside, beside, first, first, first).segments == [(0, 3), (3, 5), (5, 6)]
    assert plan_of(ThreadTeam(1)).segments == []


@pytest.mark.parametrize("index", [None, 0, 3, -1])  # -1: before the array, as of a block that was dropped
def test_who_waits_asks_for_what_is_read_next(index: int | None) -> None:
    team, visits = ThreadTeam(2), np.zeros(1_000_000, np.int64)
    weights = np.zeros((8, 16 * 1024), np.uint8)
    first = None if index is None else np.array([index])
    wait = Operation("wait", count_all, (visits,), 1)
    small = Operation("small", count, (visits,), 1)
    plan = plan_of(team, wait, small, Operation("read", count, (visits,), 1, ahead=Ahead(weights, first)), small)
    asked = plan._rows[:, ASKED // 8]
    for _ in range(100):  # the other thread may wake too late
        team.run_plan(plan)
        if asked[2] >= weights.nbytes:
            break
    assert asked[2] >= weights.nbytes
    assert (asked[[0, 1, 3]] == 0).all()
    assert plan._rows[:3, LATER // 8].tolist() == [plan.address + 2 * ROW_BYTES] * 2 + [0]
    address = plan._rows[2, [MEMORY // 8, STEP // 8, INDEX // 8]]
    assert plan._rows[2, FIRST // 8] == weights.ctypes.data + (index or 0) * weights.shape[1]
    assert address.tolist() == [weights.ctypes.data, weights.shape[1], 0 if first is None else first.ctypes.data]


def test_no_more_is_asked_for_than_caches_hold() -> None:
    weights = np.zeros(10_000_000, np.uint8)
    plan = plan_of(ThreadTeam(1), Operation("read", count, (np.zeros(1, np.int64),), 1, ahead=Ahead(weights)))
    assert plan._rows[0, MEMORY_BYTES // 8] == 256 * 1024


def test_each_thread_has_aligned_scratch_of_its_own() -> None:
    team, seen = ThreadTeam(3), np.zeros((3000, 2), np.int64)
    team.run_plan(plan_of(team, Operation("note", note_scratch, (seen,), 3000, scratch_bytes=100)))
    used = set(seen[:, 0].tolist())
    assert 1 <= len(used) <= 3
    assert all(address % 64 == 0 for address in used)
    assert (seen[:, 1] >= 100).all()


def test_little_work_wakes_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    woken = []
    monkeypatch.setattr(ThreadTeam, "_wake", lambda *_: woken.append(1))
    team = ThreadTeam(4)
    team.run(count, 8, np.zeros(8, np.int64), work_per_item=1)
    assert not woken
    team.run(count, 8, np.zeros(8, np.int64), work_per_item=threads.WORTH_WAKING // 8)
    assert woken


def test_a_plain_python_kernel_runs_where_a_debugger_can_follow() -> None:
    seen = []

    def note(scratch: np.ndarray, start: int, stop: int) -> None:
        seen.append((threading.current_thread(), len(scratch) >= 10, start, stop))

    ThreadTeam(2).run(note, 5, scratch_bytes=10)
    assert seen == [(threading.current_thread(), True, 0, 5)]


def test_an_error_in_a_plain_python_kernel_comes_out_and_the_team_goes_on() -> None:
    def fail(_start: int, _stop: int) -> None:
        raise ValueError("no")

    team, visits = ThreadTeam(2), np.zeros(4, np.int64)
    with pytest.raises(ValueError, match="no"):
        team.run(fail, 2)
    team.run(count, 4, visits)
    assert (visits == 1).all()


@pytest.mark.parametrize("argument", [np.zeros((4, 4))[:, :2], 1.5, "text", True])
def test_arguments_that_kernels_do_not_take(argument: object) -> None:
    with pytest.raises(TypeError, match="kernels take"):
        ThreadTeam(1).run(count, 4, argument)


def test_two_python_threads_may_use_one_team() -> None:
    team, visits = ThreadTeam(2), np.zeros(1000, np.int64)
    plan = plan_of(team, *[Operation("count", count, (visits,), 1000) for _ in range(5)])
    users = [threading.Thread(target=lambda: [team.run_plan(plan) for _ in range(200)]) for _ in range(3)]
    for user in users:
        user.start()
    for user in users:
        user.join(timeout=60)
    assert (visits == 3 * 200 * 5).all()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_gets_threads_of_its_own() -> None:
    team = ThreadTeam(2)
    team.run(count, 4, np.zeros(4, np.int64))
    with team.lock:  # as if another thread were computing at that moment
        child = os.fork()
        if child == 0:
            visits = np.zeros(4, np.int64)
            team.run(count, 4, visits)
            os._exit(0 if (visits == 1).all() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@numba.njit(nogil=True)
def dawdle(progress: np.ndarray, start: int, stop: int) -> None:
    for _item in range(start, stop):
        for _ in range(20_000_000):
            add(progress.ctypes.data, 1)


def test_ctrl_c_stops_a_long_plan_and_all_its_threads() -> None:
    team, progress, visits = ThreadTeam(2), np.zeros(1, np.int64), np.zeros(4, np.int64)
    team.run(dawdle, 1, progress)  # compiled
    dawdling = Operation("dawdle", dawdle, (progress,), 2, work_per_item=10**9)
    plan = plan_of(team, *[dawdling] * 100)
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            team.run_plan(plan)
    finally:
        signal.signal(signal.SIGINT, previous)
    reached = progress[0]
    assert reached < 100 * 2 * 20_000_000
    time.sleep(0.05)
    assert progress[0] == reached
    team.run(count, 4, visits)
    assert (visits == 1).all()


def test_threads_end_with_their_team() -> None:
    before, team = set(threading.enumerate()), ThreadTeam(3)
    team.run(count, 4, np.zeros(4, np.int64))
    own = [thread for thread in threading.enumerate() if thread not in before]
    assert len(own) == 2
    del team
    gc.collect()
    for thread in own:
        thread.join(timeout=10)
        assert not thread.is_alive()


def wait_until(condition: Callable[[], bool]) -> None:
    for _ in range(2000):
        if condition():
            return
        time.sleep(0.005)
    raise AssertionError("it does not come true")


def words_of(worker: threads._Worker) -> dict[str, int]:
    return {name: int(worker._words[getattr(execute, name) // 8]) for name in ("RUN", "LEFT")}


@pytest.mark.parametrize(("n_processors", "stays"), [(2, True), (1, False)])
def test_workers_stay_for_runs_that_follow_soon_and_then_sleep(
    monkeypatch: pytest.MonkeyPatch, n_processors: int, stays: bool
) -> None:
    calls, take_part = [], execute.take_part
    monkeypatch.setattr(threads, "usable_processors", lambda: n_processors)
    monkeypatch.setattr(execute, "take_part", lambda *job: calls.append(job) or take_part(*job))
    team, visits = ThreadTeam(2), np.zeros(1000, np.int64)
    plan = plan_of(team, Operation("count", count, (visits,), 1000, ahead=Ahead(visits)))
    times_awake = []
    for _ in range(20):
        calls.clear()
        for _ in range(20):
            team.run_plan(plan)
            time.sleep(1e-4)
        [worker] = team._workers
        own = [job for job in calls if job[0] == worker._job]  # not of other tests' teams, which end
        assert all(job == (worker._job, stays) for job in own)
        times_awake.append(len(own))
    assert (visits == 400).all()
    wait_until(lambda: words_of(worker) == {"RUN": execute.ASLEEP, "LEFT": 400})
    if stays:  # on a busy machine it may not be: of 20 times one is enough
        assert min(times_awake) < 5


def test_numbers_of_runs_come_again() -> None:
    team, visits = ThreadTeam(2), np.zeros(100, np.int64)
    team._runs = itertools.count(threads._N_RUNS - 3)
    plan = plan_of(team, Operation("count", count, (visits,), 100))
    for _ in range(6):
        team.run_plan(plan)
    assert (visits == 6).all()
    [worker] = team._workers
    wait_until(lambda: words_of(worker) == {"RUN": execute.ASLEEP, "LEFT": 6})
    wait_until(lambda: not worker._plans)


def test_sleeping_workers_keep_no_plan_alive_and_late_ones_do() -> None:
    team, visits = ThreadTeam(2), np.zeros(100, np.int64)
    plan = plan_of(team, Operation("count", count, (visits,), 100))
    team.run_plan(plan)
    [worker] = team._workers
    wait_until(lambda: not worker._plans)
    kept = weakref.ref(plan)
    worker._words[execute.LEFT // 8] = 0  # as if it had not come to the run yet
    worker._plans[1] = plan, team._scratch[1]
    del plan
    worker._forget()
    assert kept() is not None
    worker._words[execute.LEFT // 8] = 1
    worker._forget()
    assert kept() is None


@pytest.mark.parametrize("stays", [False, True])
def test_a_worker_that_comes_too_late_finds_nothing_to_do(stays: bool) -> None:
    visits = np.zeros(100, np.int64)
    plan = Plan([Operation("count", count, (visits,), 100, ahead=Ahead(visits)).call()] * 3, 2)
    words = aligned(execute.JOB_BYTES).view(np.int64)
    job, of_plan = words.ctypes.data, (4, plan.address, plan.n_operations, 0, 0)
    execute.start(plan.address, plan.n_operations, 7)
    execute.execute(plan.address, 0, plan.n_operations, 7, 0, 0, 0)
    for run in (7, 6):  # over, and so long over that the plan is in another run
        execute.post(job, run, *of_plan)
        assert execute.take_part(job, stays)
        assert words[[execute.RUN // 8, execute.LEFT // 8]].tolist() == [execute.ASLEEP, 4]
    assert (visits == 3).all()
    execute.start(plan.address, plan.n_operations, 8)
    execute.post(job, 8, *of_plan)
    assert execute.take_part(job, stays)
    assert (visits == 6).all()
    execute.post(job, execute.END, 0, 0, 0, 0, 0)
    assert not execute.take_part(job, stays)


def test_a_worker_waits_while_its_job_is_changing() -> None:
    visits = np.zeros(100, np.int64)
    plan = Plan([Operation("count", count, (visits,), 100).call()], 2)
    words = aligned(execute.JOB_BYTES).view(np.int64)
    words[execute.RUN // 8], words[execute.ROWS // 8] = execute.CHANGING, 1  # no address
    worker = threading.Thread(target=execute.take_part, args=(words.ctypes.data, False))
    worker.start()
    time.sleep(0.1)
    assert worker.is_alive()
    execute.start(plan.address, 1, 9)
    execute.post(words.ctypes.data, 9, 1, plan.address, 1, 0, 0)
    worker.join(timeout=60)
    assert not worker.is_alive()
    assert (visits == 1).all()


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, "2"])
def test_wrong_number_of_threads(wrong: object) -> None:
    with pytest.raises(InvalidInputError, match="threads is"):
        ThreadTeam(wrong)  # type: ignore[arg-type]
