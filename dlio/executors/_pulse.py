"""A pulse between the ranks of an MPI job: srun, unlike mpiexec, lets a job go on, and wait, when a rank has died."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

BEAT_SECONDS = 5.0
SILENCE_SECONDS = 300.0  # beyond any time that a rank's own thread may be kept from running, such as a long sort


class Pulse:
    """Sends a beat to some ranks, and listens for theirs, in a thread of its own.

    Needs an MPI that lets several threads in (MPI_THREAD_MULTIPLE), and a communicator that nobody else uses.
    """

    def __init__(self, comm: Any, peers: Sequence[int], silent: Callable[[], None]) -> None:
        """Starts; calls `silent`, in its thread, when one of `peers` has not been heard for SILENCE_SECONDS."""
        self._comm = comm
        self._peers = peers
        self._silent = silent
        self._sent: dict[int, Any] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="dlio-mpi-pulse", daemon=True)
        self._thread.start()

    def __enter__(self) -> Pulse:
        return self

    def __exit__(self, *_: object) -> None:
        """Says goodbye, and waits for the peers to do so."""
        self._stopping.set()
        self._thread.join()

    def _beat(self) -> None:
        heard = dict.fromkeys(self._peers, time.monotonic())
        said_goodbye = False
        while heard or not said_goodbye:
            if said_goodbye:
                time.sleep(0.001)
            else:
                said_goodbye = self._stopping.wait(BEAT_SECONDS)
                self._send(said_goodbye)
            self._listen(heard)
            if heard and min(heard.values()) < time.monotonic() - SILENCE_SECONDS:
                self._silent()
                return

    def _send(self, goodbye: bool) -> None:
        for peer in self._peers:
            if goodbye or peer not in self._sent or self._sent[peer].test()[0]:  # nobody takes what the dead are sent
                self._sent[peer] = self._comm.isend((self._comm.rank, goodbye), peer)

    def _listen(self, heard: dict[int, float]) -> None:
        """Notes when each peer was heard, and forgets those who say goodbye."""
        while self._comm.iprobe():
            peer, goodbye = self._comm.recv()
            heard[peer] = time.monotonic()
            if goodbye:
                del heard[peer]
