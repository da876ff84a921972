"""CPU time and memory of a process and all its descendants, from /proc."""

from __future__ import annotations

import os
import resource
from contextlib import suppress
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_OWN_MEMORY = ("Pss_Anon:", "Pss_Shmem:")  # not mapped files, which the system takes back when it needs to


def descendants(pid: int) -> list[int]:
    """Returns the living descendants of a process."""
    found = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                found += [child, *descendants(child)]
    return found


def cpu_seconds() -> float:
    """Returns the CPU time, user and system, of this process and its descendants, living and waited for."""
    total = 0.0
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        used = resource.getrusage(who)
        total += used.ru_utime + used.ru_stime
    for pid in descendants(os.getpid()):
        with suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += sum(map(int, fields[11:15])) / _TICKS  # utime, stime, and those of its children; proc(5)
    return total


def memory_bytes(pid: int) -> int:
    """Returns the memory that only this process and its descendants hold, what they share counted once."""
    total = 0
    for member in (pid, *descendants(pid)):
        with suppress(OSError):
            for line in Path(f"/proc/{member}/smaps_rollup").read_text().splitlines():
                if line.startswith(_OWN_MEMORY):
                    total += int(line.split()[1]) << 10
    return total
