"""Heartbeats between the ranks of an MPI job, since srun, unlike mpiexec, lets a job wait for a dead rank forever."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from dlio.cluster import liveness
from dlio.io import world

if TYPE_CHECKING:
    from mpi4py import MPI

_BEATS = 5  # rank 0 sends a message to every rank at a time, maybe thousands


class Heartbeat:
    """Sends heartbeats to some ranks, and listens for theirs, in its own thread.

    Needs an MPI that takes calls from several threads (MPI_THREAD_MULTIPLE), and a communicator that nobody else uses.
    """

    def __init__(self, comm: MPI.Intracomm, peers: Sequence[int], silent: Callable[[], None]) -> None:
        """Starts; calls `silent`, in its thread, once one of `peers` sends none for LOST_WORKER_SECONDS."""
        self._comm = comm
        self._peers = peers
        self._silent = silent
        self._sent: dict[int, MPI.Request] = {}
        self._stopping = threading.Event()
        self._thread = world.start(self._beat, "dlio-mpi-heartbeat")

    def __enter__(self) -> Heartbeat:
        return self

    def __exit__(self, *_: object) -> None:
        """Says goodbye, and waits for the peers to do so."""
        self._stopping.set()
        self._thread.join()

    def _beat(self) -> None:
        beats, heartbeats = dict.fromkeys(self._peers, 0), liveness.Heartbeats()
        said_goodbye = False
        while beats or not said_goodbye:
            if said_goodbye:
                time.sleep(0.001)
            else:
                said_goodbye = self._stopping.wait(_BEATS * liveness.BEAT_SECONDS)
                self._send(said_goodbye)
            self._listen(beats)
            if any(heartbeats.note(peer, beat) > liveness.LOST_WORKER_SECONDS for peer, beat in beats.items()):
                self._silent()
                return

    def _send(self, goodbye: bool) -> None:
        for peer in self._peers:
            if goodbye or peer not in self._sent or self._sent[peer].test()[0]:  # a dead rank never receives
                self._sent[peer] = self._comm.isend((self._comm.rank, goodbye), peer)

    def _listen(self, beats: dict[int, int]) -> None:
        """Counts each peer's heartbeats, and forgets those that say goodbye."""
        while self._comm.iprobe():
            peer, goodbye = self._comm.recv()
            beats[peer] += 1
            if goodbye:
                del beats[peer]
