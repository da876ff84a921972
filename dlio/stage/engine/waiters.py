"""Wakes readers when their file makes progress, and threads when there is work.

Limits background fetching while any reader waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dlio.io import world
from dlio.stage.copies.blocks import BLOCK_BYTES
from dlio.stage.engine.writing import MOST_BYTES
from dlio.stage.protocol.wire import BEAT_SECONDS

_MOMENT_SECONDS = 0.1
_QUIET_SECONDS = 0.5  # since something was urgent
_BURST_SECONDS = 3.0  # in which a loader that begins gets nearly all
# pieces at a time, and their bytes; the first of an agent that has just started, for a loader that comes next
_OPENING, _QUIET, _BUSY, _BURST = (2, 512 << 10), (4, MOST_BYTES), (4, 512 << 10), (1, 128 << 10)
_OPENING_SECONDS = 0.02  # for which such a loader may have to wait for one of them


class News:
    """What one waits for of a file, in one thread; it is set whenever something was fetched, or failed.

    Args:
        beat: called every two seconds of waiting; None for nothing.
    """

    def __init__(self, beat: Callable[[], None] | None) -> None:
        self._beat, self._beaten, self.event = beat, world.monotonic(), world.event()

    def wait(self) -> None:
        """Waits for news, or a moment: what is waited for may change without them."""
        self.event.wait(_MOMENT_SECONDS)
        self.event.clear()
        if self._beat and world.monotonic() - self._beaten > BEAT_SECONDS:
            self._beaten = world.monotonic()
            self._beat()


class Waiters:
    """Wakes those who wait for a file; one condition for all would wake everybody for each piece. For any thread."""

    def __init__(self) -> None:
        self._lock = world.lock()
        self._events: dict[int, list[world.Event]] = {}

    @contextmanager
    def news(self, number: int, beat: Callable[[], None] | None = None) -> Iterator[News]:
        """Yields the news of a file."""
        found = News(beat)
        with self._lock:
            self._events.setdefault(number, []).append(found.event)
        try:
            yield found
        finally:
            with self._lock:
                self._events[number].remove(found.event)
                if not self._events[number]:
                    del self._events[number]

    def wake(self, number: int) -> None:
        """Wakes those who wait for a file."""
        with self._lock:
            for event in self._events.get(number, ()):
                event.set()

    def wake_all(self) -> None:
        """Wakes all who wait."""
        with self._lock:
            for number in self._events:
                for event in self._events[number]:
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

    def hand_over(self) -> None:
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


class FetchBudget:
    """Limits what is fetched while no reader waits for it: less while readers wait, whose pieces come after it.

    Args:
        hurried: pieces at a time while nothing is urgent, if somebody waits for all files; else 0.
    """

    def __init__(self, hurried: int = 0) -> None:
        self._hurried = hurried
        self._urgent_at = self._burst_began = 0.0
        self._began = world.monotonic()

    def note_urgent(self) -> None:
        """Counts a reader that waits."""
        now = world.monotonic()
        if now - self._urgent_at > _QUIET_SECONDS:
            self._burst_began = now
        self._urgent_at = now

    def now(self, rate: float) -> tuple[int, int]:
        """Returns the pieces at a time, and the bytes of each.

        Args:
            rate: bytes a second of the latest piece.
        """
        now = world.monotonic()
        if now - self._urgent_at <= _QUIET_SECONDS:
            return _BURST if now - self._burst_began < _BURST_SECONDS else _BUSY
        if self._hurried:
            return self._hurried, MOST_BYTES
        soon = int(rate * _OPENING_SECONDS)
        if soon >= MOST_BYTES or now - self._began > _BURST_SECONDS:
            return _QUIET
        return _OPENING[0], max(_OPENING[1], soon - soon % BLOCK_BYTES)
