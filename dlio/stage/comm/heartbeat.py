"""Liveness over MPI: each process of a communicator has a thread that answers when another process asks.

A process that syncs a file for minutes answers too. One that is stopped, or whose node has lost power, does not.
A process that finds others lost informs the rest, so that all report the same ranks.
"""

from __future__ import annotations

import json
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from dlio.io.threads import started

if TYPE_CHECKING:
    from mpi4py import MPI

_WORD_TAG = 2
_LOOK_SECONDS = 0.25  # each look has MPI look at all that is under way
_ASK, _HERE = b"?", b"!"  # any other word is a list of ranks


class MpiHeartbeat:
    """This process's part; its methods are for the thread that made it.

    Args:
        communicator: of MPI; only the heartbeat uses it for messages with `_WORD_TAG`.
        answer_seconds: how long to wait for answers to a roll call.

    Attributes:
        lost: the ranks of the processes found lost, by this one or another.
    """

    def __init__(self, communicator: MPI.Comm, answer_seconds: float) -> None:
        from mpi4py import MPI

        self._answer_seconds = answer_seconds
        self.lost: list[int] = []
        self._mpi, self._communicator = MPI, communicator
        self._others = set(range(communicator.size)) - {communicator.rank}
        self._here: set[int] = set()
        self._sent: list[tuple[MPI.Request, bytes]] = []  # kept, since MPI reads their memory
        self._over = threading.Event()
        self._thread = started(self._answer, "dlio-heartbeat")

    def find_lost(self) -> list[int]:
        """Returns the ranks of the processes that do not answer a roll call, and informs the others."""
        self._here = set()
        self._sent = [(request, word) for request, word in tuple(self._sent) if not request.Test()]
        for rank in self._others:
            self._say(_ASK, rank)
        started = time.monotonic()
        while self._here < self._others and not self.lost and time.monotonic() - started < self._answer_seconds:
            time.sleep(_LOOK_SECONDS)
        self.lost = self.lost or sorted(self._others - self._here)
        for rank in self._here if self.lost else ():
            self._say(json.dumps(self.lost).encode(), rank)
        return self.lost

    def stop(self) -> None:
        """Ends the thread."""
        self._over.set()
        self._thread.join()

    def _say(self, word: bytes, rank: int) -> None:
        with suppress(self._mpi.Exception):  # a dead process does not answer, and so is found
            self._sent.append((self._communicator.Isend(word, rank, _WORD_TAG), word))

    def _answer(self) -> None:
        status = self._mpi.Status()
        with suppress(self._mpi.Exception):  # MPI is failing, as every other call will say
            while not self._over.wait(_LOOK_SECONDS):
                while self._communicator.Iprobe(self._mpi.ANY_SOURCE, _WORD_TAG, status):
                    word = bytearray(status.Get_count(self._mpi.BYTE))
                    self._communicator.Recv(word, status.Get_source(), _WORD_TAG)
                    self._take(bytes(word), status.Get_source())

    def _take(self, word: bytes, rank: int) -> None:
        if word == _ASK:
            self._say(_HERE, rank)
        elif word == _HERE:
            self._here.add(rank)
        else:
            self.lost = json.loads(word)
