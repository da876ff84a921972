"""Work that threads do ahead of use, within a bound."""

from __future__ import annotations

import logging
import math
import os
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from dlio.errors import TimedOutError, UsageError
from dlio.io.threads import INTERRUPT_SECONDS, Threads, stay_at_exit
from dlio.loaders.prefetch.reads import ReadAhead, Reads
from dlio.locking.fork_lock import ForkLock

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
_log = logging.getLogger(__name__)
_LOOK_SECONDS = 0.5  # an interrupt that comes just before a wait begins is handled after it


@dataclass(frozen=True, slots=True)
class Work(Generic[T_co]):
    """One item to make.

    Attributes:
        item: the result, which the parts fill.
        parts: independent pieces of the work, called once each, by any thread.
        about: describes a part by its number, for errors.
        hint: lets the system prefetch what the parts will read. Called once, by its own thread, before or during
            the parts. Its errors are dropped, since the parts meet them too.
        reads: the reads of the parts, in their order. They may be made ahead of the parts.
    """

    item: T_co
    parts: tuple[Callable[[], None], ...]
    about: Callable[[int], str] = "part {}".format
    hint: Callable[[], None] | None = None
    reads: tuple[Reads[object], ...] = ()

    def finish(self) -> T_co:
        """Returns the item, made by this thread; raises what a part raises."""
        with ReadAhead() as readers:
            readers.add(self.reads)
            for part in self.parts:
                part()
        return self.item


def followed(parts: tuple[Callable[[], None], ...], last: Callable[[], None]) -> tuple[Callable[[], None], ...]:
    """Returns the parts of some work; the thread that ends the last one of them calls `last`, if none has failed."""
    left, lock = [len(parts)], ForkLock()

    def counted(part: Callable[[], None]) -> None:
        part()
        with lock:
            left[0] -= 1
            is_last = not left[0]
        if is_last:
            last()

    return tuple(partial(counted, part) for part in parts)


def prefetched(
    works: Iterable[Work[T]], num_threads: int, prefetch: int, timeout: float | None = None
) -> Generator[T, None, None]:
    """Yields the item of each work, in order; threads make items while the consumer uses earlier ones.

    Besides the item in use, up to `prefetch` items are in progress or ready. When the generator is closed, or a part
    fails, running parts are waited for, the rest is dropped, and all threads end. With a timeout nothing is waited for
    longer: threads that hang are abandoned, and block neither the consumer nor the interpreter's exit.

    Args:
        works: what to make; iterated by the consumer's thread.
        num_threads: how many threads; 0 makes each item when it is asked for.
        prefetch: how many items ahead, at least 1.
        timeout: seconds to wait for an item, and at the end for running parts; None waits forever. Unused without
            threads.

    When the interpreter ends, a daemon that waits for an item ends with it.

    Raises:
        Exception: what a part raised, when its item is asked for.
        TimedOutError: an item took longer than `timeout`.
        MissingError: the system allows no thread.
        UsageError: the process was forked since the threads started.
    """
    return _by_threads(works, num_threads, prefetch, timeout) if num_threads else _in_turn(works)


def _in_turn(works: Iterable[Work[T]]) -> Generator[T, None, None]:
    try:
        yield from map(Work.finish, works)  # which keeps no item that was handed out
    except Exception:
        stay_at_exit()
        raise


def _by_threads(
    works: Iterable[Work[T]], num_threads: int, prefetch: int, timeout: float | None
) -> Generator[T, None, None]:
    process = os.getpid()
    threads, hints, readers = Threads(0, "dlio-loader"), Threads(0, "dlio-hint"), ReadAhead()
    patience = timeout
    waiting: deque[_Begun[T]] = deque()
    try:
        threads.grow(num_threads)
        hints.grow(1)
        for work in works:
            readers.add(work.reads)
            hint = hints.submit(work.hint) if work.hint is not None else None
            waiting.append(_Begun(work, [threads.submit(part) for part in work.parts], hint, process))
            if len(waiting) == 1 and any(reads.pace.is_slow for reads in work.reads):
                waiting[0].wait(timeout)  # what comes later would take a share of the storage's rate
            if len(waiting) > prefetch:
                yield waiting.popleft().wait(timeout)
        while waiting:
            yield waiting.popleft().wait(timeout)
    except Exception as error:
        stay_at_exit()
        if isinstance(error, TimedOutError):
            patience = 0
        raise
    except KeyboardInterrupt:
        patience = min(INTERRUPT_SECONDS, math.inf if timeout is None else timeout)
        raise
    finally:
        hints.stop()
        readers.stop()  # but finishes the pieces that running parts wait for
        if not all([threads.end(patience), hints.end(patience), readers.end(patience)]):
            _log.warning("threads that read or decode samples hang, and are abandoned")


@dataclass(frozen=True, slots=True)
class _Begun(Generic[T]):
    """Work in progress: the futures of its parts and of its hint, and the process whose threads do it."""

    work: Work[T]
    parts: list[Future[None]]
    hint: Future[None] | None
    process: int

    def wait(self, timeout: float | None) -> T:
        """Returns the item once all parts are done; raises as `prefetched`."""
        if os.getpid() != self.process:
            raise UsageError(
                f"this iteration began in process {self.process}, and its threads do not exist in the fork "
                f"{os.getpid()}: start a new iteration over the loader in this process"
            )
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        for part in self.parts:  # an interrupt of `wait` or `done` may leave them locked, and threads hanging
            while (now := time.monotonic()) < deadline:
                until = min(now + _LOOK_SECONDS, deadline)
                try:
                    part.exception(until - now)
                    break
                except TimeoutError:
                    if time.monotonic() < until:  # a signal handler's own
                        raise
        late = [number for number, part in enumerate(self.parts) if not part.done()]
        for number, part in enumerate(self.parts):
            if number not in late:
                part.result()
        if late:
            raise TimedOutError(
                f"a batch took longer than {timeout:g} s, and {len(late)} of its {len(self.parts)} parts are still "
                f"running, the first is {self.work.about(late[0])}: check the storage and the transform, or give more "
                "time"
            )
        if self.hint is not None:
            self.hint.cancel()  # too late to help, and hints must not stay late
        return self.work.item


def look_ahead(made: Generator[T, None, None], count: int) -> Generator[T, None, None]:
    """Yields the items of `made`, up to `count` items later: copies that it starts run while earlier ones are in use.

    The first item waits for no other; each time one more is made ahead.
    """
    waiting = deque[T]()
    wanted = 0
    with closing(made):
        for item in made:
            waiting.append(item)
            del item  # its user may drop it
            if len(waiting) > wanted:
                yield waiting.popleft()
                wanted = min(wanted + 1, count)
        while waiting:
            yield waiting.popleft()
