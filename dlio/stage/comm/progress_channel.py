"""Progress of all nodes while each copies for itself: every process sends messages to rank 0.

Messages go one way, over MPI that mpiexec started or in the store that torchrun's agent serves, so no node waits for
another. Only rank 0 waits at its end, until the others have ended or fallen silent. Without MPI and store, or for a
copy that ends at once, rank 0 reports its own node only: nothing is started for the sake of progress.
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

from dlio.cluster import liveness
from dlio.io.threads import started
from dlio.stage.comm.connect import has_agent_store
from dlio.stage.comm.gloo import job_store
from dlio.stage.comm.mpi_progress import MpiChannel, made_channel
from dlio.stage.comm.torch_store import answer_of
from dlio.stage.job import Job, NodeProgress

FIRST_SECONDS = 3.0  # a shorter copy needs no message, nor torch, whose import takes a second
SEND_SECONDS = 1.0
_LAST_SECONDS = 0.1  # between two looks at what others still do
_FAREWELL_SECONDS = 1.0  # for the last message, if the store does not answer

_log = logging.getLogger(__name__)


class Channel(Protocol):
    """The way of messages to rank 0; used by one thread. Methods raise whatever the transport raises."""

    def send(self, message: str) -> None:
        """Replaces this process's last message; waits for nobody."""

    def latest(self) -> dict[int, str]:
        """Returns, on rank 0, the last message of each process that has sent one, by rank."""


class StoreChannel:
    """Messages as keys of torch's store; the methods are those of `Channel`."""

    def __init__(self, job: Job) -> None:
        self._rank, self._size = str(job.topology.rank), job.topology.world_size
        self._store = job_store(job.topology, f"progress/{job.manifest.content_id}")

    def send(self, message: str) -> None:
        """Sends a message; see `Channel`."""
        self._call("set", self._rank, message)

    def latest(self) -> dict[int, str]:
        """Returns the messages; see `Channel`."""
        ranks = [rank for rank in range(self._size) if self._call("check", [str(rank)])]
        messages = self._call("multi_get", [str(rank) for rank in ranks]) if ranks else []
        return {rank: message.decode() for rank, message in zip(ranks, messages, strict=True)}

    def _call(self, method: str, *arguments: object) -> Any:
        return answer_of(partial(getattr(self._store, method), *arguments), liveness.LOST_SECONDS)


@contextmanager
def seen_by_rank_0(job: Job) -> Iterator[Job]:
    """Yields the job with its progress sent to rank 0, whose `watch` is called with the progress of all nodes.

    Without `watch`, or in a job of one process, the job stays as it is.
    """
    if job.listeners.watch is None or job.topology.world_size == 1:
        yield job
        return
    reporter = _Reporter(job)
    try:
        yield replace(job, listeners=replace(job.listeners, report=reporter.report, expect=reporter.expect))
        reporter.end(patient=job.topology.rank == 0)
    finally:
        reporter.end(patient=False)


class _Reporter:
    """Sends this process's progress in a thread of its own."""

    def __init__(self, job: Job) -> None:
        self._job, self._listeners = job, job.listeners
        self._total = self._done = 0
        self._over, self._ended = threading.Event(), threading.Event()  # a join that a signal ends cannot be repeated
        self._patient = False
        self._signs = liveness.Signs()
        self._lock = threading.Lock()
        self._channel: Channel | None = made_channel()
        self._is_open = False
        started(self._run, "dlio-progress")

    def expect(self, num_bytes: int) -> None:
        """Counts bytes that this node lacks."""
        with self._lock:
            self._total += num_bytes
            if self._listeners.expect and not self._is_open:
                self._listeners.expect(num_bytes)

    def report(self, num_bytes: int) -> None:
        """Counts bytes written here."""
        with self._lock:
            self._done += num_bytes
            if self._listeners.report and not self._is_open:
                self._listeners.report(num_bytes)

    def end(self, *, patient: bool) -> None:
        """Ends the thread; if `patient`, once the others have ended too."""
        self._patient = patient
        self._over.set()
        if self._channel:
            self._ended.wait(None if patient or isinstance(self._channel, MpiChannel) else _FAREWELL_SECONDS)

    def _run(self) -> None:
        try:
            if self._over.wait(FIRST_SECONDS) or not (channel := self._opened()):
                return
            with self._lock:
                self._is_open = True
            while True:
                over = self._over.wait(SEND_SECONDS)
                channel.send(json.dumps([socket.gethostname(), self._total, self._done, over]))
                others = self._watch(channel) if self._job.topology.rank == 0 else False
                if over and not (others and self._patient):
                    return
                time.sleep(_LAST_SECONDS if over else 0)
        except Exception as error:  # whatever it is, staging does not need it
            _log.info("the progress of all nodes is no longer reported: %s", error)
        finally:
            self._ended.set()

    def _opened(self) -> Channel | None:
        if self._channel is None and has_agent_store(self._job.topology):
            self._channel = StoreChannel(self._job)
        return self._channel

    def _watch(self, channel: Channel) -> bool:
        """Reports the progress of all nodes; returns whether others that are not silent still work."""
        messages = channel.latest()
        silence = {rank: self._signs.note(rank, message) for rank, message in messages.items()}
        found = {rank: json.loads(message) for rank, message in messages.items()}
        nodes = [NodeProgress(host, total, max(0, total - done)) for host, total, done, _ in found.values() if total]
        if nodes and self._listeners.watch:
            self._listeners.watch(nodes)
        return any(not over and silence[rank] < liveness.LOST_SECONDS for rank, (*_, over) in found.items())
