"""Ranges of files that this node does not keep: read elsewhere and passed through, a few requests at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from dlio.errors import StorageError
from dlio.io import world
from dlio.io.threads import started_up_to
from dlio.stage.engine.failures import GIVE_UP_SECONDS, LaterError
from dlio.stage.engine.fill import LATER_SECONDS
from dlio.stage.protocol import wire
from dlio.stage.protocol.wire import Origin, Request

_AT_A_TIME = 8  # requests, of up to `wire.MAX_READ` each


@dataclass(eq=False, slots=True)
class _Reading:
    """A request that is read, or waits for its turn.

    Attributes:
        request, target: what is read, and into which memory.
        over: an event that is set once it was read, or could not be.
        latest: when it began, or its latest span came; 0 until its turn.
        origin: the farthest place that a span came from.
        error: why it could not be read.
    """

    request: Request
    target: memoryview
    over: world.Event
    latest: float = 0.0
    origin: Origin = Origin.DISK
    error: BaseException | None = None


class Relay:
    """Reads the ranges, by `fetch` and `asked` of `Fetching`; for any number of threads."""

    def __init__(self, fetch: Callable[[int, int, memoryview, bool], Origin], asked: Callable[[int], str]) -> None:
        self._fetch, self._asked = fetch, asked
        self._from_source: set[int] = set()
        self._latest = 0.0  # a span came, of any request
        self._changed = world.condition()  # notified of a request, and of the end
        self._queue: deque[_Reading] = deque()
        self._threads: list[world.Thread] = []
        self._is_closed = False

    def distrust(self, number: int) -> None:
        """Reads a file that came with wrong bytes from the source only, from now on."""
        self._from_source.add(number)

    def read(self, request: Request, beat: Callable[[], None]) -> tuple[bytearray, Origin]:
        """Returns the ranges, and where they came from; calls `beat` while this takes longer.

        Raises:
            MissingError: no thread can be started.
            StorageError: they cannot be read, or nothing has come for a while; names the node that was asked.
        """
        data, asked = bytearray(request.num_bytes), world.monotonic()
        reading = _Reading(request, memoryview(data), world.event())
        self._submit(reading)
        patience = GIVE_UP_SECONDS + max((end - begin for begin, end in request.spans), default=0) / wire.LEAST_RATE
        while not reading.over.wait(wire.BEAT_SECONDS):
            idle = world.monotonic() - (reading.latest or max(asked, self._latest))  # that of others, until its turn
            if idle > patience:
                with self._changed, suppress(ValueError):  # else it is left behind: it may hang in a read of the source
                    self._queue.remove(reading)
                raise StorageError(
                    f"{self._asked(request.file)} has sent nothing for {idle:.0f} s: see "
                    "whether it answers, then stage again"
                )
            beat()
        if reading.error:
            raise reading.error
        return data, reading.origin

    def _submit(self, reading: _Reading) -> None:
        """Lets a thread read; raises MissingError if none can be started, and StorageError once it is closed."""
        with self._changed:
            if self._is_closed:
                raise StorageError("the agent is ending: stage again")
            self._threads = self._threads or started_up_to(_AT_A_TIME, self._work, "dlio-pass")
            self._queue.append(reading)
            self._changed.notify()

    def _work(self) -> None:
        while (reading := self._next()) is not None:
            try:
                self._read(reading)
            except BaseException as error:
                reading.error = error
            reading.over.set()
            del reading  # nothing of it is kept alive while this thread waits for the next one

    def _next(self) -> _Reading | None:
        """Waits for the next request; None once this is closed."""
        with self._changed:
            while not (self._queue or self._is_closed):
                self._changed.wait()
            return None if self._is_closed else self._queue.popleft()

    def _read(self, reading: _Reading) -> None:
        """Fills the memory of a request."""
        target, number = reading.target, reading.request.file
        reading.latest = world.monotonic()
        for begin, end in reading.request.spans:
            reading.origin = max(reading.origin, self._fetched(number, begin, target[: end - begin]))
            target = target[end - begin :]
            self._latest = reading.latest = world.monotonic()

    def _fetched(self, number: int, begin: int, target: memoryview) -> Origin:
        while True:
            try:
                return self._fetch(number, begin, target, number in self._from_source)
            except LaterError:  # for some seconds at the agent's start
                world.sleep(LATER_SECONDS)

    def close(self) -> None:
        """Drops the requests that wait, and has the threads end when they can."""
        with self._changed:
            self._is_closed = True
            dropped = list(self._queue)
            self._queue.clear()
            self._changed.notify_all()
        for reading in dropped:
            reading.error = StorageError("the agent is ending: stage again")
            reading.over.set()
