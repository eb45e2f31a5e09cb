"""The captured driver: the forward pass is run once to record a plan, which is then replayed without Python.

A plan fits every batch of one shape: so many tokens of so many sequences, with so many outputs. What changes from one
batch to the next (ids, positions, blocks) is copied into arrays that the plan reads.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from minillama.kernels.registry import KernelSet
from minillama.kernels.types import F32, I64
from minillama.runtime.arena import Arena
from minillama.runtime.batch import Batch
from minillama.runtime.eager import Eager, Forward
from minillama.runtime.operations import Operations
from minillama.runtime.plan import Call, Operation, Plan
from minillama.runtime.probe import Probe, is_attention, is_packed
from minillama.runtime.threads import ThreadTeam

# Plans kept: decoding, whole chunks, the rest of a prompt, and one to spare.
_KEPT = 4
# Bytes of their results, unless one plan alone has more: those of a prompt's chunk are 70 MB in a model of 1.5B.
_KEPT_BYTES = 80_000_000
# A plan keeps the values that are recorded if they take no more than so many bytes, which it does not give back.
_MOST_KEPT = 64_000_000


@dataclass(frozen=True)
class Value:
    """A named result of a plan.

    Attributes
    ----------
    name
        Its name in the forward pass.
    made_by
        The operation after which it is there; a later one may use its memory again.
    array
        The memory.
    """

    name: str
    made_by: int
    array: npt.NDArray[Any]


class Recorder(Operations):
    """Notes operations down instead of running them; the arrays it returns hold no values yet.

    Parameters
    ----------
    kernels
        The backend's kernels.
    reads
        Names of values that are wanted. Their memory is not used again, so that they are there when the plan ends,
    changes
        unless they are among these, which are looked at as soon as they are made.
    """

    def __init__(
        self, kernels: KernelSet, reads: frozenset[str] = frozenset(), changes: frozenset[str] = frozenset()
    ) -> None:
        super().__init__(kernels)
        self._reads, self._keep = reads, reads - changes
        self.arena = Arena()
        self.calls: list[Call] = []
        self.values: list[Value] = []
        self.kept: list[npt.NDArray[Any]] = []
        self.kept_values: list[tuple[str, F32]] = []

    def _empty(self, shape: tuple[int, ...], dtype: npt.DTypeLike = np.float32) -> npt.NDArray[Any]:
        return self.arena.empty(shape, dtype)

    def _wants(self, name: str) -> bool:
        return name in self._reads

    def _n_kv(self, batch: Batch) -> int:
        return batch.longest  # what a replay may need

    def _do(self, operation: Operation) -> None:
        arrays = (argument for argument in operation.arguments if isinstance(argument, np.ndarray))
        self.kept += [array for array in arrays if not self.arena.owns(array)]
        self.calls.append(operation.call())

    def _result(self, name: str, value: F32) -> F32:
        self.values.append(Value(name, len(self.calls) - 1, self.arena.alias(value)))
        if name in self._keep:
            self.kept_values.append((name, value))
        return value


class Captured:
    """Records a plan for each shape of batch, and replays it.

    Parameters
    ----------
    kernels
        The backend's kernels.
    team
        Threads that run the plans.
    """

    def __init__(self, kernels: KernelSet, team: ThreadTeam) -> None:
        self.kernels = kernels
        self.team = team
        self._eager = Eager(kernels, team)
        self._plans: OrderedDict[tuple[Any, ...], RecordedPass] = OrderedDict()

    def run(self, forward: Forward, batch: Batch, probe: Probe | None = None) -> F32:
        """Run a forward pass; eagerly if a probe wants more than a plan can keep, or what it does not have."""
        if probe is None:
            with self.team.lock:
                return self.recorded(forward, batch).run(batch)
        reads = probe.reads
        if reads is None or any(map(is_packed, reads)) or probe.kept_bytes(batch) > _MOST_KEPT:
            return self._eager.run(forward, batch, probe)
        with self.team.lock:
            return self.recorded(forward, batch, reads, probe.changes).run_probed(batch, probe)

    def recorded(
        self,
        forward: Forward,
        batch: Batch,
        reads: frozenset[str] = frozenset(),
        changes: frozenset[str] = frozenset(),
    ) -> RecordedPass:
        """The pass for batches like this one, and for probes of these values, recorded now if it has not been."""
        memory, n_blocks = batch.memory, tuple(pool.n_blocks for pool in batch.memory.pools)
        size = batch.n_tokens, batch.n_sequences, batch.longest, len(batch.outputs)
        shape = (reads, changes, batch.until, batch.adapted, *size, memory, n_blocks)
        if shape not in self._plans:
            # Keys and values have moved when a pool has grown: plans that point to the old memory are dropped.
            for other in [other for other in self._plans if other[-2] is memory and other[-1] != n_blocks]:
                del self._plans[other]
            while len(self._plans) >= _KEPT:
                self._plans.popitem(last=False)
            self._plans[shape] = RecordedPass(self.kernels, self.team, forward, batch, reads, changes)
            while len(self._plans) > 1 and sum(plan.nbytes for plan in self._plans.values()) > _KEPT_BYTES:
                self._plans.popitem(last=False)
        self._plans.move_to_end(shape)
        return self._plans[shape]


class RecordedPass:
    """A forward pass as a plan, for batches of one shape.

    Attributes
    ----------
    plan
        Its operations.
    values
        Its named results, in the order in which they are made.
    """

    def __init__(
        self,
        kernels: KernelSet,
        team: ThreadTeam,
        forward: Forward,
        batch: Batch,
        reads: frozenset[str] = frozenset(),
        changes: frozenset[str] = frozenset(),
    ) -> None:
        self._team = team
        arrays: dict[str, Any] = {name: getattr(batch, name).copy() for name in _BATCH_ARRAYS}
        self._batch = replace(batch, tables=tuple(table.copy() for table in batch.tables), **arrays)
        recorder = Recorder(kernels, reads, changes)
        self._result = recorder.arena.alias(forward(recorder, self._batch))
        self.plan, self.values = Plan(recorder.calls, team.n_threads), tuple(recorder.values)
        self._stretches = _cut(self.plan, [value for value in self.values if value.name in changes], team.n_threads)
        self._kept, self._kept_values = (recorder.arena, recorder.kept), recorder.kept_values

    @property
    def nbytes(self) -> int:
        """Bytes of its results."""
        return self._kept[0].nbytes

    def run(self, batch: Batch, times: I64 | None = None) -> F32:
        """Logits of a batch of the shape the pass was recorded for.

        Parameters
        ----------
        batch
            What to compute.
        times
            As for :meth:`ThreadTeam.run_plan`.
        """
        with self._team.lock:
            self._load(batch)
            self._team.run_plan(self.plan, times=times)
            return self._result.copy()

    def run_probed(self, batch: Batch, probe: Probe) -> F32:
        """Logits of a batch; a probe is shown what it changes on the way, and the values that are kept at the end."""
        with self._team.lock:
            self._load(batch)
            for stretch, value in self._stretches:
                self._team.run_plan(stretch)
                if value is None:
                    continue
                array = _seen(value.name, value.array, batch)
                replacement = probe.take(value.name, array)
                if replacement is not None:
                    array[...] = replacement
            for name, kept in self._kept_values:
                probe.take(name, _seen(name, kept, batch))
            return self._result.copy()

    def step(self, batch: Batch) -> Iterator[Value]:
        """Run the pass one operation at a time: an iterator over its named results, each as soon as it is made.

        Changing a result's array changes what follows. The result of the pass is the last value.
        """
        with self._team.lock:
            self._load(batch)
            done = 0
            for value in self.values:
                self._team.run_plan(Plan(self.plan.calls[done : value.made_by + 1], self._team.n_threads))
                done = value.made_by + 1
                yield value

    def _load(self, batch: Batch) -> None:
        for name in _BATCH_ARRAYS:
            getattr(self._batch, name)[...] = getattr(batch, name)
        for table, new in zip(self._batch.tables, batch.tables, strict=True):
            table[...] = new


def _cut(plan: Plan, stops: Sequence[Value], n_threads: int) -> list[tuple[Plan, Value | None]]:
    """A plan in pieces that end where values are there, and the rest."""
    ends: list[tuple[int, Value | None]] = [(stop.made_by + 1, stop) for stop in stops]
    starts = [0, *(end for end, _ in ends)]
    ends.append((plan.n_operations, None))
    pieces = zip(starts, ends, strict=True)
    return [(Plan(plan.calls[start:end], n_threads), value) for start, (end, value) in pieces]


def _seen(name: str, array: npt.NDArray[Any], batch: Batch) -> npt.NDArray[Any]:
    """A value without the room that a plan leaves for longer texts."""
    return array[..., : batch.n_kv] if is_attention(name) else array


_BATCH_ARRAYS = ("ids", "position", "last", "sequence", "outputs")
