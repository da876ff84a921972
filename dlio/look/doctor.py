"""Checks of this machine for dlio: each finding with what to change; no check takes longer than some seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path

from dlio.errors import DlioError
from dlio.io.threads import Threads
from dlio.look.checks import machine, mounts, storage
from dlio.look.checks.finding import Check, Finding, State
from dlio.urls import is_url

_SECONDS = 15.0  # for all checks; the slowest imports MPI from a busy file system

#: By their subject.
CHECKS: dict[str, Check] = {
    "core": machine.core,
    "packages": machine.packages,
    "launcher": machine.launcher,
    "cores": machine.cores,
    "memory": machine.memory,
    "open files": machine.open_files,
    "MPI": machine.mpi,
    "/dev/shm": storage.shared_memory,
    "local storage": storage.local_storage,
    "mounts": mounts.mounted,
    "leftovers": storage.leftovers,
    "rates": storage.rates,
}


def doctor(
    dataset: str | Path | None = None,
    dest: str | Path | None = None,
    *,
    report: Callable[[Finding], None] = lambda finding: None,
) -> list[Finding]:
    """Returns the checks of this machine: each finding is good, or says what to change.

    Args:
        dataset: a packed data set to check, too, in a folder or at a URL.
        dest: a folder to stage to.
        report: called with each finding as soon as it is known.
    """
    checks = dict(CHECKS)
    if dataset is not None:
        checks |= {"data set": partial(storage.data_set_at_url if is_url(dataset) else storage.data_set, dataset)}
    if dest is not None:
        checks |= {"destination": partial(storage.destination, Path(dest), dataset)}
    found = []
    for finding in _all(checks):
        report(finding)
        found.append(finding)
    return found


def _all(checks: dict[str, Check]) -> Iterator[Finding]:
    """Yields the findings of all checks, which run side by side, in their order."""
    deadline = time.monotonic() + _SECONDS
    threads = Threads(len(checks), "dlio-doctor")
    running: dict[str, Future[list[Finding]]] = {
        name: threads.submit(partial(list, check(name))) for name, check in checks.items()
    }
    try:
        for name, check in running.items():
            yield from _of(name, check, max(0.0, deadline - time.monotonic()))
    finally:
        threads.end(0)


def _of(name: str, check: Future[list[Finding]], seconds: float) -> list[Finding]:
    """Returns what a check found; one that hangs or fails is a finding, too."""
    try:
        return check.result(seconds)
    except TimeoutError:
        advice = "a disk or server hangs, or the machine is overloaded: see df, mount and uptime"
        return [Finding(name, State.BROKEN, f"no answer within {_SECONDS:g} s", advice)]
    except (DlioError, OSError, ValueError) as error:
        text = error.text if isinstance(error, DlioError) else str(error)
        return [Finding(name, State.BROKEN, text, "see the message")]
