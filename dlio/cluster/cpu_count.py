"""The number of usable CPU cores."""

from __future__ import annotations

import os
from pathlib import Path


def num_usable_cores() -> int:
    """Returns how many cores this process may use: those of its affinity mask, bounded by the control group's quota."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):  # no control groups of version 2, or this process is in the root group
        return cores
    return cores if quota == "max" else max(1, min(cores, int(quota) // int(period)))
