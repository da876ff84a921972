"""Lowest priority: runs only while no other process wants the processor or the disk."""

from __future__ import annotations

import ctypes
import os
import platform

_NICEST = 19
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30, "riscv64": 30, "ppc64le": 273}  # asm/unistd.h
_OF_PROCESS, _IDLE = 1, 3 << 13  # IOPRIO_WHO_PROCESS; IOPRIO_CLASS_IDLE, see ioprio_set(2)


def step_back() -> None:
    """Gives this process and its children the lowest priority for good, as far as the system allows."""
    os.nice(_NICEST)
    number = _IOPRIO_SET.get(platform.machine())
    if number is not None:
        ctypes.CDLL(None).syscall(number, _OF_PROCESS, 0, _IDLE)  # a kernel without it answers ENOSYS
