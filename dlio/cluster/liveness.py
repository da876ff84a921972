"""Liveness of processes on other machines: a process without a new heartbeat for a while counts as lost.

Every process sends heartbeats from its own thread, even while it waits for a disk. A heartbeat travels by the
transport: MPI messages (executors/mpi.py), or a file's modification time (locking/claim.py). Nodes that stage
together need none: each question and each answer shows that its node lives (stage/meeting/meeting.py). Whether a
process on this machine runs is answered by `dlio.locking.owner` at once.

Read the constants as `liveness.LOST_SECONDS` when they are needed, so that a test can shorten them.
"""

from __future__ import annotations

from collections.abc import Hashable

from dlio.io import world

BEAT_SECONDS = 1.0  # between two heartbeats
LOST_SECONDS = 20.0  # a block of 4 MiB takes milliseconds; a process that is silent for so long does not come back
LOST_WRITER_SECONDS = 30.0  # heartbeats that pass through a shared file system, which may hang under load
ARRIVAL_SECONDS = 180.0  # until all processes have come: they may all load Python from one file system
ABORT_SECONDS = 60.0  # for a process to end by itself, before MPI ends all
LOST_WORKER_SECONDS = 300.0  # Python code that computes, such as a long sort, keeps the heartbeat's thread waiting


class Heartbeats:
    """The latest heartbeat of each peer, and when this process first saw it, by its own clock; for one thread."""

    def __init__(self) -> None:
        self._seen: dict[Hashable, tuple[object, float]] = {}

    def note(self, peer: Hashable, heartbeat: object) -> float:
        """Records the current heartbeat of a peer, and returns for how many seconds it has not changed."""
        now = world.monotonic()
        last, since = self._seen.setdefault(peer, (heartbeat, now))
        if heartbeat == last:
            return now - since
        self._seen[peer] = (heartbeat, now)
        return 0.0
