"""The clocks of a node: virtual time as it sees it, too fast or too slow, and set again by a time service."""

from __future__ import annotations

from tools.simulate.scheduler import Scheduler

#: ns since 1970 at the begin of a schedule: in the past, so that a file with the real time is never old
EPOCH = 1_000_000_000_000_000_000
_MILLION = 1_000_000
_LEAST = 1_000  # ns that each wait takes at least, or a loop of waits of no length would stop the time
_LONGEST = 10**18  # ns; more is forever


class Clock:
    """The clocks of one node.

    Args:
        scheduler: has the true time.
        ppm: by how many millionths they are too fast; negative ones are too slow.
        began: ns that the monotonic clock shows when the schedule begins.
        offset: ns by which the time of day is wrong.
    """

    def __init__(self, scheduler: Scheduler, ppm: int = 0, began: int = 1_000_000_000_000, offset: int = 0) -> None:
        self._scheduler, self.ppm, self._began, self.offset = scheduler, ppm, began, offset

    def elapsed(self) -> int:
        """Returns ns since the schedule began, as this node counts them."""
        now = self._scheduler.now
        return now + now * self.ppm // _MILLION

    def monotonic(self) -> float:
        """Returns the monotonic clock, in seconds."""
        now = self._scheduler.now
        return (self._began + now + now * self.ppm // _MILLION) / 1e9

    def wall_ns(self) -> int:
        """Returns the time of day in ns since 1970."""
        return EPOCH + self.elapsed() + self.offset

    def ns(self, seconds: float | None) -> int | None:
        """Returns how much virtual time passes while this node counts some seconds; None is forever."""
        if seconds is None or seconds * 1e9 > _LONGEST:
            return None
        found = -(-round(seconds * 1e9) * _MILLION // (_MILLION + self.ppm)) if self.ppm else round(seconds * 1e9)
        return found if found > _LEAST else _LEAST
