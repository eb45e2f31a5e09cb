"""Memory of a process, as Linux tells it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Memory:
    """Bytes of a process.

    Attributes
    ----------
    private
        Resident memory that is no file's: what it has allocated.
    peak
        The most that was ever resident, mapped files included.
    """

    private: int
    peak: int


def memory_of(pid: int) -> Memory | None:
    """Memory of a running process; None where there is no ``/proc``."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return None
    kilobytes = {
        name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines) if "kB" in rest
    }
    if not {"RssAnon", "VmHWM"} <= kilobytes.keys():
        return None
    return Memory(1024 * kilobytes["RssAnon"], 1024 * kilobytes["VmHWM"])
