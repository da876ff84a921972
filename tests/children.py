"""Processes of their own whose memory is measured."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass

MiB = 1 << 20


@dataclass(frozen=True, slots=True)
class Ended:
    """How a process ended; `peak_bytes` is the most memory that it had at a time."""

    code: int
    out: str
    err: str
    peak_bytes: int


def python(*arguments: object, environ: Mapping[str, str] | None = None) -> Ended:
    """Returns how `python ...` ended, a process of this machine."""
    command = [sys.executable, *map(str, arguments)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **(environ or {})}
    ) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        out, err = child.stdout.read(), child.stderr.read()
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    return Ended(child.returncode, out, err, usage.ru_maxrss << 10)


def dlio(*arguments: object, environ: Mapping[str, str] | None = None) -> Ended:
    """Returns how the command `dlio ...` ended."""
    return python("-m", "dlio", *arguments, environ=environ)
