"""Separate processes whose memory is measured."""

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


# A process counts the memory of the one that started it, which is a large one here: so a small one starts it.
_STARTER = """
import resource, subprocess, sys
code = subprocess.call(sys.argv[2:])
with open(int(sys.argv[1]), "w") as pipe:
    pipe.write(f"{code} {resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss}")
"""


def python(*arguments: object, environ: Mapping[str, str] | None = None) -> Ended:
    """Returns how `python ...` ended, a process of this machine."""
    reader, writer = os.pipe()
    command = [sys.executable, "-S", "-c", _STARTER, str(writer), sys.executable, *map(str, arguments)]
    with os.fdopen(reader) as pipe:
        ended = subprocess.run(
            command,
            capture_output=True,
            text=True,
            env={**os.environ, **(environ or {})},
            pass_fds=[writer],
            check=False,
        )
        os.close(writer)
        code, peak = map(int, pipe.read().split())
    return Ended(code, ended.stdout, ended.stderr, peak << 10)


def dlio(*arguments: object, environ: Mapping[str, str] | None = None) -> Ended:
    """Returns how the command `dlio ...` ended."""
    return python("-m", "dlio", *arguments, environ=environ)
