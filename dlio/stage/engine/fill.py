"""Fetches the files of a store by threads, and lets others wait for what they need of them.

What fails is tried again after growing pauses; a waiting reader gets the error's text.
The files that this node reads from the source, and all others, have threads of their own: else all threads of two nodes
could wait for each other, each for what the other reads from the source as soon as a thread is free.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial

from dlio.errors import DigestError, StorageError
from dlio.io import world
from dlio.io.files import Span
from dlio.io.threads import started_up_to
from dlio.stage.engine.failures import ADVICE, GIVE_UP_SECONDS, Failures, LaterError, Waiters, Work
from dlio.stage.engine.fetch import Fetching
from dlio.stage.engine.pending import Pending
from dlio.stage.engine.pieces import Piece
from dlio.stage.engine.store import Store
from dlio.stage.engine.writing import Buffers
from dlio.stage.meeting.peer import STUCK_SECONDS
from dlio.stage.planning import flows
from dlio.stage.protocol.wire import Origin

LATER_SECONDS, _OVERDUE_SECONDS = 0.1, 1.0
_FINISHERS = 4  # threads that verify and sync whole files, while others bring what readers wait for


class Fill:
    """Fetches the files of a store, in threads that run from `start` to `stop`.

    Attributes:
        settled: an event that is set when the store is complete, and if `is_hurried` also when a file has failed.
        failure: the first error of a file.
        latest: when the latest piece came, or was read again to verify its file; at first, when this was made.

    Args:
        store: the files.
        fetching: where they come from.
        is_hurried: somebody waits until all files are here, or one has failed.
    """

    def __init__(self, store: Store, fetching: Fetching, *, is_hurried: bool = False) -> None:
        self._store, self._fetching, self._is_hurried = store, fetching, is_hurried
        self._changed, self._waiters, self._failures = Work(), Waiters(), Failures()
        kinds = 2 if fetching.exchanges else 1
        self._most = flows.EXCHANGE_THREADS if is_hurried and kinds > 1 else flows.THREADS  # of each kind
        self._under_way: defaultdict[int, list[Piece]] = defaultdict(list)
        self._pending = [
            Pending(store, self._failures, fetching, self._under_way, self._most, is_far=is_far, is_hurried=is_hurried)
            for is_far in (False, True)[:kinds]
        ]
        self._is_read_soon = kinds > 1 and not is_hurried  # by others, from the page cache; a broadcast does with less
        self.failure: BaseException | None = None
        self.settled = world.event()
        self._whole, self._finishing, self._origins = dict[int, None](), set[int](), dict[int, Origin]()
        self._finishers = self._most * kinds if is_hurried else _FINISHERS
        self._progress, self.latest = dict[int, float](), world.monotonic()
        self._buffers, self._threads = Buffers(), list[world.Thread]()
        #: the pieces that are fetched, or else written, in order, and since when
        self._moving = dict[tuple[int, int], tuple[bool, float]]()
        self._stopped, self._ends_at = False, float("inf")

    def start(self, threads: int = 0) -> None:
        """Starts threads for all kinds, or as many as given, or allowed; raises MissingError if that is none."""
        most = self._most * len(self._pending) + (0 if self._is_hurried else _FINISHERS)
        self._threads = started_up_to(threads or most, self._work, "dlio-fill")

    def stop(self) -> bool:
        """Ends the threads, and returns whether they do within a moment: one may hang in a read of the source."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        self._waiters.wake_all()
        self._ends_at = min(self._ends_at, world.monotonic() + 1.0)
        for thread in self._threads:
            thread.join(max(0.0, self._ends_at - world.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def follow(self, order: Sequence[int]) -> None:
        """Sets the order in which the background fetches files; replaces the one before."""
        with self._changed:
            for pending in self._pending:
                pending.follow(order)
            self._changed.notify_all()
        if self._store.is_complete:
            self.settled.set()

    @property
    def hanging(self) -> str:
        """Who was asked first of all that do not answer, and for how long nothing has come; "" if it is a moment."""
        (number, _), (is_fetched, since) = next(iter(list(self._moving.items())), ((0, 0), (False, 0.0)))
        idle = world.monotonic() - max(self.latest, since)
        if idle <= GIVE_UP_SECONDS or not (since or self._finishing):
            return ""
        who = f"{self._fetching.asked(number)} has sent" if is_fetched else f"{self._store} has taken"
        return f"{who} nothing for {idle:.0f} s"

    @property
    def problem(self) -> str:
        """The last failure that still holds; "" if none."""
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
            StorageError: it cannot be read, or nothing of it has come for a while; says why, and what to do.
            FullError: there is no room for it here.
        """
        whole, spans = not spans, spans or [(0, self._store.listed[number].num_bytes)]
        if self._left(number, spans, whole) is None:
            return Origin.DISK
        asked = world.monotonic()
        with self._waiters.news(number, () if whole else spans, beat) as news:
            while (missing := self._left(number, spans, whole)) is not None:
                is_overdue = world.monotonic() - asked > _OVERDUE_SECONDS  # else urgent work could hold it up forever
                self._ask(number, missing, is_urgent=is_urgent, comes_first=is_urgent or is_overdue)
                with self._changed:
                    if not missing and number not in self._finishing:  # by the thread that asks, nobody would beat
                        self._whole[number] = None
                        self._changed.notify()
                    self._check(number, asked)
                news.wait()
        return self._origins.get(number, Origin.DISK)

    def again(self, number: int, spans: Sequence[Span], beat: Callable[[], None] | None = None) -> Origin:
        """Fetches spans again that failed their checksums, from the source; raises as `need`."""
        asked = world.monotonic()
        with self._waiters.news(number, (), beat) as news:
            while not self._cleared(number, spans):
                with self._changed:
                    self._check(number, asked)
                news.wait()
        return self.need(number, spans, beat)

    def _cleared(self, number: int, spans: Sequence[Span]) -> bool:
        """Requests spans again; returns False while the file is verified: what comes then would get its name."""
        self._fetching.distrust(number)
        with self._changed:
            if is_free := number not in self._finishing:
                self._store.clear(number, spans)
                self._whole.pop(number, None)
            return is_free

    def _left(self, number: int, spans: Sequence[Span], whole: bool) -> list[Span] | None:
        """Returns what is missing of the spans, nothing if a `whole` file lacks its name only; None if all is here."""
        if self._store.is_finished(number):
            return None
        missing = self._store.missing(number, spans)
        return missing if missing or whole else None

    def _ask(self, number: int, missing: Sequence[Span], *, is_urgent: bool, comes_first: bool) -> None:
        """Requests the missing parts of a file next, and again the parts that failed since they were requested."""
        with self._changed:
            for pending in self._pending:
                self._changed.notify(pending.ask(number, missing, is_urgent=is_urgent, comes_first=comes_first))

    def _check(self, number: int, asked: float) -> None:
        """Raises StorageError if it makes no sense to wait any longer."""
        failure = self._failures.checked(number, asked)
        is_here = number in self._finishing or number in self._whole
        latest = self._progress.get(number, 0.0) if is_here or number in self._under_way else self.latest
        idle = world.monotonic() - max(asked, latest)
        if idle > (STUCK_SECONDS if is_here else GIVE_UP_SECONDS) or self._stopped:
            what = "is whole, and has been verified" if is_here else "has not been read"
            why = failure.problem if failure else f"{self._store.source_name(number)} {what} for {idle:.0f} s"
            raise StorageError(f"{why}: {ADVICE}")

    def _work(self) -> None:
        try:
            self._fetch_pieces()
        except BaseException as error:  # an interrupt: no other thread would continue for this one
            self.failure = self.failure or error
            self.settled.set()
            with self._changed:
                self._changed.notify_all()  # one of them looks for work in its place

    def _fetch_pieces(self) -> None:
        while (taken := self._take()) is not None:
            if isinstance(taken, int):
                self._finish(taken)
                continue
            pending, piece, is_urgent = taken
            if piece.begin < piece.end:
                self._bring(pending, piece, is_urgent)
            with self._changed:
                pending.release(piece, is_urgent=is_urgent)
                is_last = piece.number not in self._under_way
            self._waiters.wake(piece.number, piece.begin, piece.end)
            if is_last:
                self._finish(piece.number)

    def _bring(self, pending: Pending, piece: Piece, is_urgent: bool) -> None:
        """Fetches and writes a piece that this thread has taken."""
        began = world.monotonic()
        try:
            origin = self._fetched(piece, is_urgent)
        except LaterError:
            if is_urgent:
                world.sleep(LATER_SECONDS)
            else:
                with self._changed:
                    pending.leave_for_later(piece.number, piece.begin)
        except Exception as error:  # packages that read from URLs have exceptions of their own
            self._failed(piece.number, error)
        else:
            with self._changed:
                self._failures.mend(piece.number)
                self._advance(piece.number)
                self._origins[piece.number] = origin
                pending.pace.note(piece.end - piece.begin, world.monotonic() - began)
            if self._store.is_finished(piece.number):
                self._named(piece.number)

    def _advance(self, number: int) -> None:
        """Notes that something of a file has come, or was verified."""
        self._progress[number] = self.latest = world.monotonic()

    def _fetched(self, piece: Piece, is_urgent: bool) -> Origin:
        """Fetches and writes a piece, and returns its origin; raises what either raises."""
        number, begin = piece.number, piece.begin
        is_asked = is_urgent or self._waiters.wait_for(number, begin, piece.end)
        if not is_asked and self._fetching.is_expected(number, begin):
            raise LaterError(f"the node that reads {self._store.source_name(number)} has not started yet")
        buffer = self._buffers.take()
        target, release = buffer[: piece.end - piece.begin], partial(self._buffers.give_back, buffer)
        try:
            self._moving[number, begin] = True, world.monotonic()
            origin = self._fetching.fetch(number, begin, target, is_urgent)
            self._moving[number, begin] = False, world.monotonic()
            is_cached = is_urgent or (self._is_read_soon and origin == Origin.SOURCE)
            if world.monotonic() > self._ends_at:  # it hung, and was left behind: a successor may write these files
                raise StorageError(f"{self._store.source_name(number)} answered too late: {ADVICE}")
            self._store.write(number, begin, target, release, is_cached=is_cached)
        except BaseException:
            release()
            raise
        finally:
            self._moving.pop((number, begin), None)
        return origin

    def _finish(self, number: int) -> None:
        """Gives a file its name if it is whole, unless another thread does; what is damaged is fetched again."""
        is_ours = False
        try:
            if is_ours := self._begins_to_finish(number):
                self._store.finish(number, partial(self._advance, number))
                self._named(number)
        except Exception as error:
            self._failed(number, error)
        finally:
            if is_ours:
                with self._changed:
                    self._finishing.discard(number)
                self._waiters.wake(number)

    def _begins_to_finish(self, number: int) -> bool:
        """Returns whether a file is whole and nobody verifies it: from now on this thread does, and nobody writes.

        If enough threads finish files, it is left to them.
        """
        with self._changed:
            if number in self._finishing or self._store.is_finished(number) or not self._store.is_whole(number):
                return False
            if len(self._finishing) >= self._finishers:
                self._whole[number] = None
                return False
            self._finishing.add(number)
            self._changed.notify()  # another thread fetches in the meantime
            return True

    def _named(self, number: int) -> None:
        """Notes that a file has its name."""
        self._fetching.judge(number, is_right=True)
        with self._changed:
            self._failures.mend(number)
            self._progress.pop(number, None)
            self._waiters.wake(number)
        if self._store.is_complete:
            self.settled.set()

    def _failed(self, number: int, error: Exception) -> None:
        """Notes an error; the first time that a file is damaged, it is fetched again instead. Raises nothing."""
        if not isinstance(error, DigestError):
            self._note(number, error)
            return
        self._fetching.judge(number, is_right=False)
        if not self._failures.is_first_damage(number):
            self._note(number, error)
        try:
            self._store.clear(number, whole := [(0, self._store.listed[number].num_bytes)])  # last: it may be fetched
            missing = self._store.missing(number, whole)
            self._ask(number, missing, is_urgent=False, comes_first=False)  # next: it shows who sends wrong bytes
        except StorageError as another:
            self._failures.forget_damage(number)  # which is found once more
            self._note(number, another)

    def _note(self, number: int, error: Exception) -> None:
        self._failures.note(number, error)
        self.failure = self.failure or error
        if self._is_hurried:
            self.settled.set()

    def _take(self) -> tuple[Pending, Piece, bool] | int | None:
        """Waits for the next piece, and marks it as under way; None once stopped. Returns whether it is urgent, too.

        Files that lack their names only come first, by their numbers, as far as so many may be verified.
        """
        with self._changed:
            while not self._stopped:
                if self._whole and len(self._finishing) < self._finishers:
                    self._changed.wake_another()
                    return self._whole.popitem()[0]
                for pending in self._pending:
                    may_wait = pending is not self._pending[0] and self._pending[0].has_more
                    if taken := pending.take(may_wait=may_wait):
                        self._progress[taken[0].number] = world.monotonic()
                        self._changed.wake_another()
                        return pending, *taken
                self._changed.wait(min(pending.look_seconds() for pending in self._pending))
        return None
