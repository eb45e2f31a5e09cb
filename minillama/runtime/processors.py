"""How many processors this process may use."""

from __future__ import annotations

import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


def usable_processors(cgroup: Path = _CGROUP) -> int:
    """Processors this process may really use: the affinity mask, cut to the container's CPU quota if there is one.

    Parameters
    ----------
    cgroup
        Root of the control-group file system (version 2's ``cpu.max``, or version 1's two files).
    """
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _cpu_quota(cgroup)
    return affinity if quota is None else max(1, min(affinity, int(quota)))


def _cpu_quota(cgroup: Path) -> float | None:
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota = (cgroup / "cpu" / "cpu.cfs_quota_us").read_text().strip()
            period = (cgroup / "cpu" / "cpu.cfs_period_us").read_text().strip()
        except OSError:
            return None
    try:
        parts, whole = float(quota), float(period)
    except ValueError:  # "max": no quota
        return None
    return parts / whole if parts > 0 and whole > 0 else None
