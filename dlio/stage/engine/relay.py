"""Ranges of files that this node does not keep: read elsewhere and passed through, a few requests at a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait

from dlio.errors import StorageError
from dlio.io import limits
from dlio.stage.engine.failures import GIVE_UP_SECONDS, LaterError
from dlio.stage.engine.fill import LATER_SECONDS
from dlio.stage.protocol import wire
from dlio.stage.protocol.wire import Origin, Request

_AT_A_TIME = 8  # requests, of up to `wire.MAX_READ` each


class Relay:
    """Reads the ranges; for any number of threads.

    Args:
        fetch: fills memory with a span of a file, and returns its origin: as `Fetching.fetch`.
        asked: returns who is asked for a file now.
    """

    def __init__(self, fetch: Callable[[int, int, memoryview, bool], Origin], asked: Callable[[int], str]) -> None:
        self._fetch, self._asked = fetch, asked
        self._from_source: set[int] = set()
        self._latest = 0.0  # a span came, of any request
        self._threads = ThreadPoolExecutor(_AT_A_TIME, thread_name_prefix="dlio-pass")

    def distrust(self, number: int) -> None:
        """Has a file of which wrong bytes came read from the source only from now on."""
        self._from_source.add(number)

    def read(self, request: Request, beat: Callable[[], None]) -> tuple[bytearray, Origin]:
        """Returns the ranges, and where they came from; calls `beat` while this takes longer.

        Raises:
            MissingError: no thread can be started.
            StorageError: they cannot be read, or nothing has come for a while; names the node that was asked.
        """
        data, asked = bytearray(request.num_bytes), time.monotonic()
        spans: list[float] = []
        try:
            with limits.starting("a thread"):
                reading = self._threads.submit(self._read, request, memoryview(data), spans)
        except RuntimeError as error:  # closed
            raise StorageError("the agent is ending: stage again") from error
        patience = GIVE_UP_SECONDS + max((end - begin for begin, end in request.spans), default=0) / wire.LEAST_RATE
        while not wait([reading], wire.BEAT_SECONDS).done:
            idle = time.monotonic() - (spans[-1] if spans else max(asked, self._latest))  # of others, until its turn
            if idle > patience:
                reading.cancel()  # else it is left behind: it may hang in a read of the source
                raise StorageError(
                    f"{self._asked(request.file)} has sent nothing for {idle:.0f} s: see "
                    "whether it answers, then stage again"
                )
            beat()
        return data, reading.result()

    def _read(self, request: Request, target: memoryview, spans: list[float]) -> Origin:
        """Fills `target`; adds to `spans` when it began, and when each of them came."""
        origin = Origin.DISK
        spans.append(time.monotonic())
        for begin, end in request.spans:
            origin = max(origin, self._fetched(request.file, begin, target[: end - begin]))
            target = target[end - begin :]
            self._latest = time.monotonic()
            spans.append(self._latest)
        return origin

    def _fetched(self, number: int, begin: int, target: memoryview) -> Origin:
        while True:
            try:
                return self._fetch(number, begin, target, number in self._from_source)
            except LaterError:  # for some seconds at the agent's start
                time.sleep(LATER_SECONDS)

    def close(self) -> None:
        """Has the threads end when they can."""
        self._threads.shutdown(wait=False, cancel_futures=True)
