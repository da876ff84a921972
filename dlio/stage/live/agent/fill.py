"""Which span of which file is fetched next: what somebody waits for, then the rest in the background.

Each block is fetched once: a span that another thread fetches is left to it. What fails is tried again after growing
pauses; whoever waits for it gets the error in words.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from dlio.errors import DigestError, StorageError
from dlio.stage.live.agent.failures import FULL, GIVE_UP_SECONDS, Failures, FullError, LaterError
from dlio.stage.live.agent.pieces import Pace, Piece, without
from dlio.stage.live.agent.store import Store
from dlio.stage.live.agent.waiters import Room, Waiters
from dlio.stage.live.wire import BEAT_SECONDS, Origin, Span

LATER_SECONDS = 0.1
_OVERDUE_SECONDS = 1.0
_LOOK_SECONDS, _IDLE_SECONDS = 0.25, 5.0  # between two looks for work of which nobody told


class Fill:
    """Fetches the files of a store, in threads that run from `start` to `stop`.

    Args:
        store: the files.
        fetch: fills memory with a span of a file, and returns whence: (number, begin, target, only from the source,
            whether somebody waits).
        source_name: returns the name of a file at the source.
        judge: told of each file, once it is whole, whether its digest is right.
    """

    def __init__(
        self,
        store: Store,
        fetch: Callable[[int, int, memoryview, bool, bool], Origin],
        source_name: Callable[[int], str],
        judge: Callable[[int, bool], None] = lambda number, is_right: None,
    ) -> None:
        self._store, self._fetch, self._source_name, self._judge = store, fetch, source_name, judge
        self._changed = threading.Condition()  # notified of work
        self._waiters, self._room = Waiters(), Room()
        self._asked: deque[Piece] = deque()
        self._asked_ahead: deque[Piece] = deque()
        self._ahead: deque[Piece] = deque()
        self._rest: Iterator[int] = iter(())
        self._order: Sequence[int] = ()
        self._under_way: dict[int, list[Piece]] = {}
        self._finishing, self._from_source, self._damaged = set[int](), set[int](), set[int]()
        self._failures = Failures()
        self._progress: dict[int, float] = {}
        self._origins: dict[int, Origin] = {}
        self._pace = Pace()
        self._latest_progress = self._anew_at = 0.0
        self._in_background = 0
        self._stopped = False
        self._threads: list[threading.Thread] = []

    def start(self, threads: int) -> None:
        """Starts so many threads."""
        for _ in range(threads):
            thread = threading.Thread(target=self._work, name="dlio-fill", daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> bool:
        """Has the threads end, and returns whether they do within a moment: one may hang in a read of the source."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        self._waiters.wake_all()
        deadline = time.monotonic() + 1.0
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def follow(self, order: Sequence[int]) -> None:
        """Sets the order in which the background fetches files; replaces the one before."""
        with self._changed:
            self._order, self._rest = order, iter(order)
            self._ahead.clear()
            self._changed.notify_all()

    @property
    def problem(self) -> str:
        """What failed last and was not mended since; "" if nothing."""
        return self._failures.latest

    def need(
        self, number: int, spans: Sequence[Span], beat: Callable[[], None] | None = None, *, is_urgent: bool = True
    ) -> Origin:
        """Waits until the spans of a kept file are here; without spans, until it has its final name.

        Returns where the file's last span came from.

        Args:
            number, spans: the file and its ranges.
            beat: called every two seconds while this takes longer.
            is_urgent: a loader waits; else another node asks ahead of need, and all that is urgent comes first.

        Raises:
            StorageError: it cannot be had, or nothing of it has come for a while; says why, and what to do.
            FullError: there is no room for it here.
        """
        whole = not spans
        spans = spans or [(0, self._store.listed[number].num_bytes)]
        if self._has(number, spans, whole):
            return Origin.DISK
        asked = beaten = time.monotonic()
        with self._waiters.news(number) as news:
            while not self._has(number, spans, whole):
                is_overdue = time.monotonic() - asked > _OVERDUE_SECONDS  # else urgent work could hold it up for ever
                self._ask(number, spans, is_urgent=is_urgent, comes_first=is_urgent or is_overdue)
                with self._changed:
                    self._check(number, asked)
                news.wait(0.1)
                news.clear()
                if beat and time.monotonic() - beaten > BEAT_SECONDS:
                    beaten = time.monotonic()
                    beat()
                if whole and self._store.is_whole(number):
                    self._finish(number)
        return self._origins.get(number, Origin.DISK)

    def again(self, number: int, spans: Sequence[Span], beat: Callable[[], None] | None = None) -> Origin:
        """Fetches spans again that failed their checksums, from the source; raises as `need`."""
        with self._changed:
            self._from_source.add(number)
        self._store.clear(number, spans)
        return self.need(number, spans, beat)

    def _has(self, number: int, spans: Sequence[Span], whole: bool) -> bool:
        return self._store.is_finished(number) or (not whole and not self._store.missing(number, spans))

    def _ask(self, number: int, spans: Sequence[Span], *, is_urgent: bool, comes_first: bool) -> None:
        """Has what is missing of the spans fetched next, and what failed since it was asked for fetched again."""
        queue = self._asked if comes_first else self._asked_ahead
        missing = self._store.missing(number, spans)
        with self._changed:
            if is_urgent:
                self._room.note_urgent()
            under_way = self._under_way.get(number, ())
            free = [part for span in missing for part in without(span, under_way)]
            asked = {(piece.number, piece.begin) for piece in queue}
            pieces = [piece for piece in self._pace.pieces(number, free) if (number, piece.begin) not in asked]
            if pieces:
                queue.extend(pieces)
                self._changed.notify(len(pieces))

    def _check(self, number: int, asked: float) -> None:
        """Raises StorageError if it makes no sense to wait any longer."""
        failure = self._failures.get(number)
        if failure and failure.errno in FULL:
            raise FullError(failure.problem)
        if failure and failure.explains(asked):
            raise StorageError(failure.problem)
        latest = self._progress.get(number, 0.0) if self._under_way.get(number) else self._latest_progress
        idle = time.monotonic() - max(asked, latest)
        if idle > GIVE_UP_SECONDS or self._stopped:
            why = failure.problem if failure else f"{self._source_name(number)} has not been read for {idle:.0f} s"
            raise StorageError(f"{why}: see whether the source answers, then stage again")

    def _work(self) -> None:
        buffer = memoryview(b"")
        while (taken := self._take()) is not None:
            piece, is_urgent = taken
            if len(buffer) < piece.end - piece.begin:
                buffer = memoryview(bytearray(piece.end - piece.begin))
            if piece.begin < piece.end:
                self._bring(piece, buffer[: piece.end - piece.begin], is_urgent)
            with self._changed:
                self._in_background -= not is_urgent
                is_last = not self._under_way.get(piece.number)
            if is_last and self._store.is_whole(piece.number):
                self._finish(piece.number)

    def _bring(self, piece: Piece, target: memoryview, is_urgent: bool) -> None:
        """Fetches and writes a piece that this thread has taken."""
        with self._changed:
            only_source = piece.number in self._from_source
        began = time.monotonic()
        try:
            origin = self._fetch(piece.number, piece.begin, target, only_source, is_urgent)
            self._store.write(piece.number, piece.begin, target)
        except LaterError:
            if is_urgent:
                time.sleep(LATER_SECONDS)
            else:
                self._leave_for_later(piece.number)
        except Exception as error:  # packages that read from URLs have exceptions of their own
            self._failures.note(piece.number, error)
        else:
            with self._changed:
                self._failures.mend(piece.number)
                self._progress[piece.number] = self._latest_progress = time.monotonic()
                self._origins[piece.number] = origin
                self._pace.note(len(target), time.monotonic() - began)
        finally:
            with self._changed:
                self._under_way[piece.number].remove(piece)
                self._waiters.wake(piece.number)

    def _leave_for_later(self, number: int) -> None:
        """Goes on with other files: a later round takes up this one."""
        with self._changed:
            self._ahead = deque(piece for piece in self._ahead if piece.number != number)

    def _finish(self, number: int) -> None:
        """Gives a whole file its name, unless another thread does; what is damaged is fetched again from the source."""
        with self._changed:
            if number in self._finishing or self._store.is_finished(number):
                return
            self._finishing.add(number)
        try:
            self._store.finish(number, self._source_name(number))
            self._judge(number, True)
        except Exception as error:
            self._judge(number, not isinstance(error, DigestError))
            if not (isinstance(error, DigestError) and self._is_first_damage(number)):
                self._failures.note(number, error)
            if isinstance(error, DigestError):  # last: what is missing may be fetched at once
                self._store.clear(number, [(0, self._store.listed[number].num_bytes)])
        finally:
            with self._changed:
                self._finishing.discard(number)
                if not self._under_way.get(number):
                    self._under_way.pop(number, None)
                if self._store.is_finished(number):
                    self._failures.mend(number)
                    self._progress.pop(number, None)
                self._waiters.wake(number)

    def _is_first_damage(self, number: int) -> bool:
        """Returns whether a file is found damaged for the first time; from now on it comes from the source only."""
        with self._changed:
            self._from_source.add(number)
            is_first = number not in self._damaged
            self._damaged.add(number)
            return is_first

    def _take(self) -> tuple[Piece, bool] | None:
        """Waits for the next piece, and notes that it is under way; None once stopped. Tells whether it is urgent."""
        while True:
            with self._changed:
                if self._stopped:
                    return None
                if (piece := self._next_asked(self._asked)) is not None:
                    return piece, True
                if self._in_background < self._room.now[0] and (piece := self._next_ahead()) is not None:
                    self._in_background += 1
                    return piece, False
                self._changed.wait(_LOOK_SECONDS if not self._store.is_complete else _IDLE_SECONDS)

    def _next_asked(self, queue: deque[Piece]) -> Piece | None:
        for _ in range(len(queue)):
            piece = queue.popleft()
            failure = self._failures.get(piece.number)
            if failure and not failure.is_due:
                if not failure.is_final:
                    queue.append(piece)
                continue
            if (lacking := self._lacking(piece, queue)) is not None:
                return lacking
        return None

    def _next_ahead(self) -> Piece | None:
        if (piece := self._next_asked(self._asked_ahead)) is not None:
            return piece
        while True:
            while self._ahead:
                if (lacking := self._lacking(self._ahead.popleft(), self._ahead)) is not None:
                    return lacking
            number = next(self._rest, None)
            if number is None:
                self._begin_anew()
                return None
            failure = self._failures.get(number)
            if self._store.is_finished(number) or (failure and not failure.is_due):
                continue
            with suppress(StorageError):  # it cannot be made now: a later round notes why
                whole = (0, self._store.listed[number].num_bytes)
                missing = self._store.missing(number, [whole])
                self._ahead.extend(self._pace.pieces(number, missing, self._room.now[1]))
                if not self._ahead and not self._under_way.get(number):
                    return self._taken(Piece(number, 0, 0))  # it lacks its name only
        return None

    def _begin_anew(self) -> None:
        """Goes through the files that are left once more, now and then, since some may have failed."""
        now = time.monotonic()
        if now >= self._anew_at and not self._store.is_complete:
            self._anew_at = now + _LOOK_SECONDS
            self._order = [number for number in self._order if not self._store.is_finished(number)]
            self._rest = iter(self._order)

    def _lacking(self, piece: Piece, queue: deque[Piece]) -> Piece | None:
        """Returns the first part of a piece that nobody fetches, and puts the others back; None if there is none."""
        try:
            lacking = self._store.missing(piece.number, [(piece.begin, piece.end)])
        except StorageError as error:
            self._failures.note(piece.number, error)
            return None
        free = [part for span in lacking for part in without(span, self._under_way.get(piece.number, ()))]
        parts = self._pace.pieces(piece.number, free)
        first = next(parts, None)
        queue.extendleft(reversed(list(parts)))
        return self._taken(first) if first else None

    def _taken(self, piece: Piece) -> Piece:
        if piece.begin < piece.end:
            self._under_way.setdefault(piece.number, []).append(piece)
            self._progress[piece.number] = time.monotonic()
        return piece
