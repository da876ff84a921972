"""Runs a child process of the benchmark to its end and watches its memory."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.loaders.process_tree import memory_bytes

ROOT = Path(__file__).parents[2]
TIMEOUT_SECONDS = 300
_SAMPLE_SECONDS = 0.1
_QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "2"}


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a child gave no result.

    Attributes:
        reason: the last line it wrote.
    """

    reason: str


def run_child(python: str, *words: object) -> dict[str, Any] | Failure:
    """Returns what a child prints, its peak `memory` in bytes added; its whole process group is ended with it."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        child = subprocess.Popen(
            [python, "-m", "benchmarks.loaders.child", *map(str, words)],
            cwd=ROOT,
            env=os.environ | _QUIET,
            stdout=out,
            stderr=errors,
            start_new_session=True,
        )
        memory = _watch(child)
        out.seek(0)
        errors.seek(0)
        results = [line for line in out if line.startswith("{")]
        complaints = [line.strip() for line in errors if line.strip()]
    if results:
        return json.loads(results[-1]) | {"memory": memory}
    if child.returncode == 0:
        return {}
    return Failure(complaints[-1] if complaints else f"ended with {child.returncode}")


def _watch(child: subprocess.Popen[bytes]) -> int:
    peak, end = 0, time.monotonic() + TIMEOUT_SECONDS
    while child.poll() is None and time.monotonic() < end:
        peak = max(peak, memory_bytes(child.pid))
        time.sleep(_SAMPLE_SECONDS)
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    return peak
