"""How a long operation reports its progress, and the bar that shows it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID


class Progress(Protocol):
    """What `pull`, `verify` and `resolve` call about ten times a second, possibly from another thread."""

    def __call__(self, done_bytes: int, total_bytes: int, stage: str) -> None:
        """Report that `done_bytes` of `total_bytes` of `stage` are done; `stage` is a word or two to show."""


def ignore_progress(done_bytes: int, total_bytes: int, stage: str) -> None:
    """Report to nobody."""


def stage_reporter(progress: Progress, total_bytes: int, stage: str) -> Callable[[int], None]:
    """Fix everything of `progress` but the bytes done."""
    return lambda done_bytes: progress(done_bytes, total_bytes, stage)


def piece_reporter(report: Callable[[int], None], start: int, length: int) -> Callable[[int], None]:
    """Report on a piece of something larger, which begins at `start` and counts no more than `length`."""
    return lambda done_bytes: report(start + min(done_bytes, length))


@contextmanager
def console_progress(title: str) -> Iterator[Progress]:
    """Show progress on stderr: a bar with bytes, speed and time left, or one line when it is not a terminal.

    Nothing is printed before the first report, so a file that is already there stays silent.

    Parameters
    ----------
    title
        What is being fetched, shown in front.

    Yields
    ------
    Progress
        To be passed as ``progress=``.
    """
    shown = _Shown(title)
    try:
        yield shown
    finally:
        shown.stop()


class _Shown:
    """A bar or a line, made at the first report: mostly there is none, and the library of bars takes time to load."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._progress: _OneLine | _Bar | None = None

    def __call__(self, done_bytes: int, total_bytes: int, stage: str) -> None:
        if self._progress is None:
            self._progress = self._start()
        self._progress(done_bytes, total_bytes, stage)

    def stop(self) -> None:
        if isinstance(self._progress, _Bar):
            self._progress.stop()

    def _start(self) -> _OneLine | _Bar:
        from rich.console import Console

        console = Console(stderr=True)
        if not console.is_terminal:
            return _OneLine(self._title)
        from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
        from rich.progress import Progress as RichProgress

        bar = RichProgress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=console,
        )
        return _Bar(self._title, bar)


class _OneLine:
    """Says once what is going on; a log file is no place for a bar."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._said = False

    def __call__(self, done_bytes: int, total_bytes: int, stage: str) -> None:
        if not self._said:
            print(f"{self._title}: {stage} ({total_bytes / 1e6:.1f} MB)", file=sys.stderr, flush=True)
            self._said = True


class _Bar:
    """One row for each stage; a row left unfinished (waiting) goes away when the next stage starts."""

    def __init__(self, title: str, bar: RichProgress) -> None:
        self._title = title
        self._bar = bar
        self._stage = ""
        self._row: TaskID | None = None

    def __call__(self, done_bytes: int, total_bytes: int, stage: str) -> None:
        if self._row is None or stage != self._stage:
            self._begin(done_bytes, total_bytes, stage)
        else:
            self._bar.update(self._row, completed=done_bytes, total=total_bytes)

    def stop(self) -> None:
        self._bar.stop()

    def _begin(self, done_bytes: int, total_bytes: int, stage: str) -> None:
        if self._row is not None and not self._bar.tasks[-1].finished:
            self._bar.remove_task(self._row)
        self._bar.start()
        # What was there before does not count towards the speed.
        self._row = self._bar.add_task(f"{self._title}: {stage}", total=total_bytes, completed=done_bytes)
        self._stage = stage
