"""What those who wait for a file learn: that it makes progress, or that it fails, and when that is tried again."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from dlio.errors import DigestError, StorageError
from dlio.io import world
from dlio.io.files import FULL, Span
from dlio.stage.protocol.wire import BEAT_SECONDS

ADVICE = "see whether the source and this node's storage answer, then stage again"
GIVE_UP_SECONDS = 15.0  # without a block: then a waiting reader gets an error
_MOMENT_SECONDS = 0.1
_FAILING_SECONDS = 8.0  # of failures that may pass
_PAUSES = (0.25, 5.0)  # before it is tried again: the first, twice as long each time, the longest
_DAMAGED_PAUSE = 60.0  # all of a damaged file would be read again
_FINAL = (errno.ENOENT, errno.EACCES, errno.EPERM, errno.EROFS, errno.EISDIR, *FULL)


class FullError(StorageError):
    """This node's storage is full: the file must be read from elsewhere."""


class LaterError(StorageError):
    """The node that is to send a span is expected to come any moment."""


@dataclass(frozen=True, slots=True)
class Failure:
    """What has failed of one file since its last success.

    Attributes:
        errno: the system's number of the last error; 0 if it has none.
        problem: the last error, as text.
        is_final: waiting does not help.
        pause: seconds until it is tried again.
        since: when the first try failed.
        last: when the last one did.
        tries: how many failed.
    """

    errno: int
    problem: str
    is_final: bool
    pause: float
    since: float
    last: float
    tries: int

    @property
    def is_due(self) -> bool:
        """Whether to try it again."""
        return world.monotonic() >= self.last + self.pause

    def explains(self, asked: float) -> bool:
        """Returns whether a reader that waits since `asked` is to get the error."""
        if self.is_final:
            return self.last >= asked or not self.is_due
        return self.last >= asked and self.last - max(asked, self.since) >= _FAILING_SECONDS


class Failures:
    """The failures of all files; for any number of threads."""

    def __init__(self) -> None:
        self._lock, self._damaged = world.lock(), set[int]()
        self._of: dict[int, Failure] = {}

    def get(self, number: int) -> Failure | None:
        """Returns what fails of a file."""
        return self._of.get(number)

    def checked(self, number: int, asked: float) -> Failure | None:
        """Returns what fails of a file; raises it, as `Fill.need`, if a reader that waits since `asked` gets it."""
        failure = self.get(number)
        if failure and failure.errno in FULL:
            raise FullError(failure.problem)
        if failure and failure.explains(asked):
            raise StorageError(f"{failure.problem}: {ADVICE}" if failure.errno else failure.problem)
        return failure

    def note(self, number: int, error: Exception) -> None:
        """Notes an error."""
        is_final = isinstance(error, DigestError) or (isinstance(error, OSError) and error.errno in _FINAL)
        problem = str(getattr(error, "strerror", None) or error) or type(error).__name__
        with self._lock:
            now, before = world.monotonic(), self._of.get(number)
            since, tries = (before.since, before.tries) if before else (now, 0)
            pause = min(_PAUSES[0] * float(2 ** min(tries, 8)), _PAUSES[1])
            pause = _DAMAGED_PAUSE if isinstance(error, DigestError) else pause
            self._of[number] = Failure(
                getattr(error, "errno", None) or 0, problem, is_final, pause, since, now, tries + 1
            )

    def is_first_damage(self, number: int) -> bool:
        """Notes that a file is damaged, and returns whether it is for the first time."""
        with self._lock:
            is_first = number not in self._damaged
            self._damaged.add(number)
            return is_first

    def forget_damage(self, number: int) -> None:
        """Makes the next damage of a file count as its first: nothing of it could be fetched again."""
        with self._lock:
            self._damaged.discard(number)

    def mend(self, number: int) -> None:
        """Notes a success."""
        with self._lock:
            self._of.pop(number, None)

    @property
    def latest(self) -> str:
        """The last error that still holds; "" if none."""
        with self._lock:
            return max(self._of.values(), key=lambda failure: failure.last).problem if self._of else ""


class News:
    """What one waits for of a file, in one thread, with a beat every two seconds; set by what came, or failed."""

    def __init__(self, beat: Callable[[], None] | None) -> None:
        self._beat, self._beaten, self.event = beat, world.monotonic(), world.event()

    def wait(self) -> None:
        """Waits for news, or a moment: the state may change without news."""
        self.event.wait(_MOMENT_SECONDS)
        self.event.clear()
        if self._beat and world.monotonic() - self._beaten > BEAT_SECONDS:
            self._beaten = world.monotonic()
            self._beat()


class Waiters:
    """Wakes those who wait for a piece; one condition for all would wake everybody for each. For any thread."""

    def __init__(self) -> None:
        self._lock = world.lock()
        self._events: dict[int, list[tuple[int, int, world.Event]]] = {}

    @contextmanager
    def news(self, number: int, spans: Sequence[Span] = (), beat: Callable[[], None] | None = None) -> Iterator[News]:
        """Yields the news of a file: of some spans, if any are given, and of all that concerns the whole."""
        found = News(beat)
        ends = [each for span in spans for each in span] or [0, 1 << 63]
        waiter = min(ends), max(ends), found.event
        with self._lock:
            self._events.setdefault(number, []).append(waiter)
        try:
            yield found
        finally:
            with self._lock:
                self._events[number].remove(waiter)
                if not self._events[number]:
                    del self._events[number]

    def wait_for(self, number: int, begin: int, end: int) -> bool:
        """Returns whether any of them waits for something of a file between two bytes."""
        with self._lock:
            return any(first <= end and begin <= last for first, last, _ in self._events.get(number, ()))

    def wake(self, number: int, begin: int = 0, end: int = 1 << 63) -> None:
        """Wakes those who wait for something of a file between two bytes."""
        with self._lock:
            for first, last, event in self._events.get(number, ()):
                if first <= end and begin <= last:  # who waits for no byte waits for the file to be begun
                    event.set()

    def wake_all(self) -> None:
        """Wakes all who wait."""
        with self._lock:
            for number in self._events:
                for *_, event in self._events[number]:
                    event.set()


class Work:
    """A condition that is notified of work. Of all threads that wait, one looks for what comes without a notice."""

    def __init__(self) -> None:
        self._changed, self._is_looked_for = world.condition(), False

    def __enter__(self) -> None:
        self._changed.__enter__()

    def __exit__(self, *error: object) -> None:
        self._changed.__exit__(None, None, None)

    def notify(self, count: int = 1) -> None:
        """Wakes as many threads."""
        self._changed.notify(count)

    def notify_all(self) -> None:
        """Wakes all threads."""
        self._changed.notify_all()

    def wake_another(self) -> None:
        """Has another thread look, if none does, since this one has found work."""
        if not self._is_looked_for:
            self._changed.notify()

    def wait(self, seconds: float) -> None:
        """Waits for a notice: the thread that looks for some seconds at most."""
        if self._is_looked_for:
            self._changed.wait()
            return
        self._is_looked_for = True
        try:
            self._changed.wait(seconds)
        finally:
            self._is_looked_for = False
