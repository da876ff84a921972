"""Liveness of processes on other machines: one that shows no new sign of life for a while is taken for lost.

Every process gives signs from a thread of its own, also while it waits for a disk. How a sign travels is up to its
transport: MPI messages (executors/_heartbeat.py), a file's modification time (locking/claim.py,
stage/meeting/folder.py), or an answer (stage/meeting/introduced.py). Whether a process on this machine
runs is answered by `dlio.locking.owner` at once.

Read the constants as `liveness.LOST_SECONDS` when they are needed, so that a test can shorten them.
"""

from __future__ import annotations

from collections.abc import Hashable

from dlio.io import world

BEAT_SECONDS = 1.0  # between two signs of life
LOST_SECONDS = 20.0  # a block of 4 MiB takes milliseconds; a process that is silent for so long does not come back
LOST_WRITER_SECONDS = 30.0  # signs that pass through a shared file system, which may hang under load
ARRIVAL_SECONDS = 180.0  # until all processes have come: they may all load Python from one file system
ABORT_SECONDS = 60.0  # for a process to end by itself, before MPI ends all
LOST_WORKER_SECONDS = 300.0  # Python code that computes, such as a long sort, keeps the heartbeat's thread waiting


class Signs:
    """The last sign of life of each peer, and when it was first seen by this process's clock; for one thread."""

    def __init__(self) -> None:
        self._seen: dict[Hashable, tuple[object, float]] = {}

    def note(self, peer: Hashable, sign: object) -> float:
        """Notes a peer's present sign of life, and returns for how many seconds it has been the same."""
        now = world.monotonic()
        last, since = self._seen.setdefault(peer, (sign, now))
        if sign == last:
            return now - since
        self._seen[peer] = (sign, now)
        return 0.0
