"""Two fills with threads of their own: of the files that this node reads from the source, and of all others.

If one pool did both, all threads of two nodes could wait for each other: each for what the other reads from the source
as soon as a thread is free.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dlio.stage.live.agent.fill import Fill
from dlio.stage.live.wire import Origin, Span

_THREADS = 12  # of each


class NearAndFar:
    """Does what a `Fill` does, by one of two.

    Args:
        make: returns a new fill.
        is_far: whether another node reads a file from the source, unless that node is lost.
        is_alone: whether there are no other nodes.
    """

    def __init__(self, make: Callable[[], Fill], is_far: Callable[[int], bool], *, is_alone: bool) -> None:
        self._is_far, self._is_alone = is_far, is_alone
        self._near, self._far = make(), make()

    def _of(self, number: int) -> Fill:
        return self._far if self._is_far(number) else self._near

    def start(self) -> None:
        """Starts the threads."""
        self._near.start(_THREADS, is_read_soon=not self._is_alone)
        if not self._is_alone:
            self._far.start(_THREADS)

    def stop(self) -> bool:
        """Has the threads end, and returns whether they do within a moment."""
        return all([self._near.stop(), self._far.stop()])

    def follow(self, order: Sequence[int]) -> None:
        """Sets the order of the background."""
        self._near.follow([number for number in order if not self._is_far(number)])
        self._far.follow([number for number in order if self._is_far(number)])

    @property
    def problem(self) -> str:
        """What failed last and was not mended since; "" if nothing."""
        return self._near.problem or self._far.problem

    def need(
        self, number: int, spans: Sequence[Span], beat: Callable[[], None] | None = None, *, is_urgent: bool = True
    ) -> Origin:
        """Waits until spans of a file are here; see `Fill.need`."""
        return self._of(number).need(number, spans, beat, is_urgent=is_urgent)

    def again(self, number: int, spans: Sequence[Span], beat: Callable[[], None] | None = None) -> Origin:
        """Fetches spans again; see `Fill.again`."""
        return self._of(number).again(number, spans, beat)
