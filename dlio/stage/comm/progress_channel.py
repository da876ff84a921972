"""How far all nodes have come while each copies for itself: words that every process leaves for rank 0.

Words go one way, over the MPI that mpiexec started or in the store that torchrun's agent serves, so no node waits for
another. Only rank 0 waits at its end, until the others have ended or fallen silent. Where there is neither, or a copy
is done at once, rank 0 tells of its own node alone: nothing is started, and nobody listens, for the sake of progress.
"""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from dlio.stage.comm import base
from dlio.stage.comm.mpi_progress import MpiBoard, the_board
from dlio.stage.job import Job, NodeProgress

FIRST_SECONDS = 3.0  # a copy that is done by then needs no word, nor torch, which takes a second of a core to import
BEAT_SECONDS = 1.0
_LAST_SECONDS = 0.1  # between two looks at what others still do
_FAREWELL_SECONDS = 1.0  # for the last word, where the store does not answer

_log = logging.getLogger(__name__)


class Board(Protocol):
    """Where words are left; used by one thread. All methods raise whatever the transport does."""

    def tell(self, word: str) -> None:
        """Leaves this process's word in place of its last one; waits for nobody."""

    def told(self) -> dict[int, str]:
        """Returns, on rank 0, the last word of each process that has left one."""


class StoreBoard:
    """Words as keys of torch's store; `Board` says what its methods do."""

    def __init__(self, job: Job) -> None:
        from dlio.stage.comm.gloo import job_store

        self._rank, self._size = str(job.topology.rank), job.topology.world_size
        self._store: Any = job_store(job.topology, f"progress/{job.manifest.content_id}")

    def tell(self, word: str) -> None:
        """Leaves a word; as `Board` says."""
        self._call("set", self._rank, word)

    def told(self) -> dict[int, str]:
        """Returns the words; as `Board` says."""
        ranks = [rank for rank in range(self._size) if self._call("check", [str(rank)])]
        words = self._call("multi_get", [str(rank) for rank in ranks]) if ranks else []
        return {rank: word.decode() for rank, word in zip(ranks, words, strict=True)}

    def _call(self, method: str, argument: Any, *more: Any) -> Any:
        from dlio.stage.comm.torch_store import answer_of

        return answer_of(partial(getattr(self._store, method), argument, *more), base.LOST_SECONDS)


@contextmanager
def seen_by_rank_0(job: Job) -> Iterator[Job]:
    """Yields the job with its progress told to rank 0, whose `watch` is called with that of all nodes.

    A job that nobody watches stays as it is.
    """
    if job.watch is None or job.topology.world_size == 1:
        yield job
        return
    teller = _Teller(job)
    try:
        yield replace(job, report=teller.report, expect=teller.expect)
        teller.end(patient=job.topology.rank == 0)
    finally:
        teller.end(patient=False)


class _Teller:
    """Tells how far this process has come, in a thread of its own."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._total = self._done = 0
        self._over, self._ended = threading.Event(), threading.Event()  # a join that a signal ends cannot be repeated
        self._patient = False
        self._heard: dict[int, tuple[str, float]] = {}
        self._lock = threading.Lock()
        self._board: Board | None = the_board()
        self._is_up = False
        threading.Thread(target=self._run, name="dlio-board", daemon=True).start()

    def expect(self, num_bytes: int) -> None:
        """Takes bytes that this node lacks."""
        with self._lock:
            self._total += num_bytes
            if self._job.expect and not self._is_up:
                self._job.expect(num_bytes)

    def report(self, num_bytes: int) -> None:
        """Takes bytes written here."""
        with self._lock:
            self._done += num_bytes
            if self._job.report and not self._is_up:
                self._job.report(num_bytes)

    def end(self, *, patient: bool) -> None:
        """Ends the telling; where it is patient, once the others have ended, too."""
        self._patient = patient
        self._over.set()
        if self._board:
            self._ended.wait(None if patient or isinstance(self._board, MpiBoard) else _FAREWELL_SECONDS)

    def _run(self) -> None:
        try:
            if self._over.wait(FIRST_SECONDS) or not (board := self._found()):
                return
            with self._lock:
                self._is_up = True
            while True:
                over = self._over.wait(BEAT_SECONDS)
                board.tell(json.dumps([socket.gethostname(), self._total, self._done, over]))
                others = self._watch(board) if self._job.topology.rank == 0 else False
                if over and not (others and self._patient):
                    return
                time.sleep(_LAST_SECONDS if over else 0)
        except Exception as error:  # whatever it is, the data come without it
            _log.info("the progress of all nodes is told no more: %s", error)
        finally:
            self._ended.set()

    def _found(self) -> Board | None:
        if self._board is None and base.has_agent_store(self._job.topology):
            self._board = StoreBoard(self._job)
        return self._board

    def _watch(self, board: Board) -> bool:
        """Shows how far all have come; returns whether others are still at it, as far as they are heard."""
        now = time.monotonic()
        for rank, word in board.told().items():
            if self._heard.get(rank, ("", now))[0] != word:
                self._heard[rank] = (word, now)
        words = [(json.loads(word), since) for word, since in self._heard.values()]
        nodes = [NodeProgress(host, total, max(0, total - done)) for (host, total, done, _), _ in words if total]
        if nodes and self._job.watch:
            self._job.watch(nodes)
        return any(not over and now - since < base.LOST_SECONDS for (*_, over), since in words)
