"""Work done by threads ahead of need, within a bound, and nothing left behind."""

from __future__ import annotations

import logging
import math
import os
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from dlio.errors import TimedOutError, UsageError
from dlio.io.threads import INTERRUPT_SECONDS, Threads
from dlio.loaders._prefetch.reads import ReadAhead, Reads

T = TypeVar("T")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Work(Generic[T]):
    """One item to make.

    Attributes:
        item: what is handed out when all parts are done; the parts fill it.
        parts: independent pieces of the work, called once each, by any thread.
        about: says what the part of a number is about, for errors.
        announce: lets the system fetch what the parts will read, called once by a thread of its own, before them or
            meanwhile; what goes wrong there goes wrong in a part too, and is raised there.
        reads: what the parts read, in their order, which may be read ahead of them.
    """

    item: T
    parts: tuple[Callable[[], None], ...]
    about: Callable[[int], str] = "part {}".format
    announce: Callable[[], None] | None = None
    reads: tuple[Reads[Any, Any], ...] = ()

    def finish(self) -> T:
        """Returns the item, made in this thread; raises whatever a part raises."""
        with ReadAhead() as readers:
            readers.add(self.reads)
            for part in self.parts:
                part()
        return self.item


def ahead(
    works: Iterable[Work[T]], num_threads: int, prefetch: int, timeout: float | None = None
) -> Generator[T, None, None]:
    """Yields the item of each work, in order, made by threads while the consumer is busy with others.

    Besides the item in use, up to `prefetch` items are under way or waiting; `works` is drawn from no faster. When the
    generator is closed, or a part fails, parts that run are waited for, the rest is dropped, and no thread is left.
    Where there is a timeout, nothing is waited for longer: threads that hang are left to themselves, and keep neither
    the consumer nor the interpreter from going on.

    Args:
        works: what to make; drawn from by the consumer's thread.
        num_threads: how many threads; 0 makes each item when it is asked for.
        prefetch: how many items ahead, at least 1.
        timeout: seconds to wait for an item at most, and at the end for what still runs; None waits without end, and
            without threads it plays no part.

    Raises:
        Exception: whatever a part raised, when its item is asked for.
        TimedOutError: an item was waited for longer than `timeout`.
        UsageError: there are threads, and this process was forked since: they are in the parent.
    """
    if num_threads == 0:
        yield from (work.finish() for work in works)
        return
    process = os.getpid()
    threads, announcer, patience = Threads(num_threads, "dlio-loader"), Threads(1, "dlio-announcer"), timeout
    readers = ReadAhead()
    waiting: deque[_Begun[T]] = deque()
    try:
        for work in works:
            readers.add(work.reads)
            announced = announcer.submit(work.announce) if work.announce is not None else None
            waiting.append(_Begun(work, [threads.submit(part) for part in work.parts], announced, process))
            if len(waiting) > prefetch:
                yield waiting.popleft().wait(timeout)
        while waiting:
            yield waiting.popleft().wait(timeout)
    except TimedOutError:
        patience = 0
        raise
    except KeyboardInterrupt:
        patience = min(INTERRUPT_SECONDS, math.inf if timeout is None else timeout)
        raise
    finally:
        announcer.stop()
        readers.stop()  # which goes on with what running parts wait for
        ended = [threads.end(patience), announcer.end(patience), readers.end(patience)]
        if not all(ended):
            _log.warning("threads that read or decode samples hang, and are left to themselves")


@dataclass(frozen=True, slots=True)
class _Begun(Generic[T]):
    """Work that was given to the threads of a process, and what becomes of its parts and its announcement."""

    work: Work[T]
    parts: list[Future[None]]
    announced: Future[None] | None
    process: int

    def wait(self, timeout: float | None) -> T:
        """Returns the item once all parts are done; raises as `ahead`."""
        if os.getpid() != self.process:
            raise UsageError(
                f"this iteration began in process {self.process}, whose threads did not come along into its fork "
                f"{os.getpid()}: iterate over the loader anew here"
            )
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        for part in self.parts:  # an interrupt of futures' `wait` may leave them locked, and their threads hanging
            try:
                part.exception(None if timeout is None else max(0.0, deadline - time.monotonic()))
            except TimeoutError:
                if time.monotonic() < deadline:  # a signal handler's own
                    raise
                break
        late = {part for part in self.parts if not part.done()}
        for part in self.parts:
            if part not in late:
                part.result()
        if late:
            first = min(number for number, part in enumerate(self.parts) if part in late)
            raise TimedOutError(
                f"a batch took longer than {timeout:g} s, and {len(late)} of its {len(self.parts)} parts are still "
                f"under way, the first is {self.work.about(first)}: check the storage and the transform, or give more "
                "time"
            )
        if self.announced is not None:
            self.announced.cancel()  # which comes too late now: announcing must not fall behind for good
        return self.work.item
