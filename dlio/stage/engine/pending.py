"""Which piece of which file is fetched next: a piece that a reader waits for, then the rest in the background.

Each block is fetched once: a span that another thread fetches is left to it.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

from dlio.errors import StorageError
from dlio.io import world
from dlio.io.files import Span
from dlio.stage.engine.failures import Failures
from dlio.stage.engine.fetch import Fetching
from dlio.stage.engine.pieces import FetchBudget, Piece, PieceSize, without
from dlio.stage.engine.store import Store
from dlio.stage.engine.writing import MOST_BYTES

LOOK_SECONDS = 0.25  # between two rounds through the files that are left
_IDLE_SECONDS = 5.0  # between two checks for unannounced work, once all is present
_MOST_BEGUN = 2  # files, or pieces of divided ones, for each thread, while it looks for a node that is asked less
_MOST_DUE = 1000  # files that were left, and are tried again in a round, which takes some 10 ms


class Pending:
    """The pieces that are wanted, and those that are under way; its callers hold a lock.

    Args:
        store: the files.
        failures: what failed of them, and is to rest for a while.
        fetching: which of the pieces this node owns, and which it leaves to others.
        under_way: the pieces of each file that are, of all kinds: another plan may give them to another one.
        threads: pieces of these that are under way at a time.
        is_far: whether these are what others read from the source, or what this node does.
        is_hurried: somebody waits for all files, so the background uses all threads while no reader waits.

    Attributes:
        pace: the size of a piece.
    """

    def __init__(
        self,
        store: Store,
        failures: Failures,
        fetching: Fetching,
        under_way: defaultdict[int, list[Piece]],
        threads: int,
        *,
        is_far: bool = False,
        is_hurried: bool,
    ) -> None:
        self._store, self._failures, self._fetching, self._is_far = store, failures, fetching, is_far
        self.pace = PieceSize(MOST_BYTES) if is_hurried else PieceSize()
        self._budget = FetchBudget(threads if is_hurried else 0)
        self._threads, self._taken, self._under_way = threads, 0, under_way
        self._is_apart = is_far and is_hurried  # threads take files of different nodes, else all wait for one of them
        self._asked, self._asked_ahead = deque[Piece](), deque[Piece]()
        self._ahead = deque[deque[Piece]]()  # each of a file; none is empty
        self._rest = self._again = iter(tuple[deque[Piece]]())
        self._left, self._due, self._again_at = OrderedDict[int, None](), deque[int](), 0.0
        self._order: Sequence[int] = ()
        self._in_background, self._next_round_at, self._has_more = 0, 0.0, True

    def follow(self, order: Sequence[int]) -> None:
        """Sets the order in which the background fetches files; replaces the one before."""
        ends = ((number, max(1, self._store.listed[number].num_bytes)) for number in order)
        self._order = [number for number, end in ends if any(self._share(number, [(0, end)]))]
        self._rest = self._walk(self._order)
        self._ahead.clear()

    @property
    def has_more(self) -> bool:
        """Whether the background had another piece when it was last asked for one, and pieces come."""
        return self._has_more and not self.pace.is_hung

    def ask(self, number: int, missing: Sequence[Span], *, is_urgent: bool, comes_first: bool) -> int:
        """Requests these spans of a file next, except those that are requested already; returns their pieces.

        Args:
            number, missing: the file and the spans.
            is_urgent: a loader waits for them.
            comes_first: they come before the background.
        """
        if is_urgent:
            self._budget.note_urgent()
        queue = self._asked if comes_first else self._asked_ahead
        asked = {(piece.number, piece.begin) for piece in queue}
        free = self.pace.pieces(number, list(self._free(number, self._share(number, missing))))
        pieces = [piece for piece in free if (number, piece.begin) not in asked]
        queue.extend(pieces)
        return len(pieces)

    def take(self, *, may_wait: bool = False) -> tuple[Piece, bool] | None:
        """Returns the next piece, which is under way until it is released, and whether a reader waits for it.

        While readers wait, none that nobody waits for if these `may_wait`.
        """
        if self._taken == self._threads:
            return None
        if (piece := self._next_of(self._asked)) is not None:
            self._taken += 1
            return piece, True
        at_a_time, most = self._budget.now(self.pace.rate, may_wait=may_wait)
        if self._in_background < at_a_time:
            piece = self._next_ahead(most)
            self._has_more = piece is not None
            self._taken += self._has_more
            self._in_background += self._has_more
        return (piece, False) if piece else None

    def release(self, piece: Piece, *, is_urgent: bool) -> None:
        """Notes that a piece is not under way any more."""
        self._taken -= 1
        self._in_background -= not is_urgent
        with suppress(ValueError):  # it lacked its name only
            self._under_way[piece.number].remove(piece)
        if not self._under_way[piece.number]:
            del self._under_way[piece.number]

    def look_seconds(self) -> float:
        """Returns after how many seconds to look for what comes without a notice, at most."""
        if self._store.is_complete:
            return _IDLE_SECONDS
        left = self._next_round_at - world.monotonic()
        return left if left > 0 else LOOK_SECONDS

    def leave_for_later(self, number: int, begin: int) -> None:
        """Continues with other files, or with what others own of a divided one.

        This one is tried again soon if it is divided, or its node has not started yet. Else that node is busy, and the
        files of other nodes come first.
        """
        home = self._fetching.home
        self._ahead = deque(
            pieces
            for pieces in self._ahead
            if pieces[0].number != number or home(number, pieces[0].begin) != home(number, begin)
        )
        if self._fetching.is_divided(number) or self._fetching.is_expected(number, begin, looks=False):
            self._left[number] = None

    def _share(self, number: int, spans: Sequence[Span]) -> Iterable[Span]:
        """Returns what of the spans of a file these are the pieces of, in the order of the background."""
        return self._fetching.share(number, spans, is_far=self._is_far)

    def _free(self, number: int, spans: Iterable[Span]) -> Iterator[Span]:
        under_way = self._under_way.get(number, ())
        return (part for span in spans for part in without(span, under_way))

    def _next_of(self, queue: deque[Piece]) -> Piece | None:
        for _ in range(len(queue)):
            piece = queue.popleft()
            if (failure := self._failures.get(piece.number)) and not failure.is_due:
                if not failure.is_final:
                    queue.append(piece)
                continue
            if (lacking := self._lacking(piece, queue, MOST_BYTES)) is not None:
                return self._widened(lacking) if queue is self._asked else lacking
        return None

    def _widened(self, piece: Piece) -> Piece:
        """Returns a piece that is under way, now with what is missing around it."""
        number, (begin, end) = piece.number, self.pace.around(piece)
        if (begin, end) == (piece.begin, piece.end):
            return piece
        self._under_way[number].remove(piece)
        with suppress(StorageError):  # else without
            span = begin, min(end, self._store.listed[number].num_bytes)
            missing = self._store.missing(number, [span], begins=False)
            for first, last in self._free(number, self._share(number, missing)):
                if first <= piece.begin and piece.end <= last <= first + MOST_BYTES:
                    piece = Piece(number, first, last)
        self._under_way[number].append(piece)
        return piece

    def _next_ahead(self, most: int) -> Piece | None:
        if (piece := self._next_of(self._asked_ahead)) is not None:
            return piece
        now = world.monotonic()  # once: a round may take as long as the time between two, and the caller holds a lock
        asking = self._asking()
        while True:
            if self._left and now >= self._again_at:
                self._again_at = now + LOOK_SECONDS
                self._again = self._walk_again()
            pieces, needs_another, threads = self._least_asked(asking)
            another = None
            if (needs_another or threads) and len(self._ahead) < _MOST_BEGUN * self._threads:
                another = next(self._again, None) or (next(self._rest, None) if needs_another else None)
            if another:
                self._ahead.append(another)  # cut when its turn comes
            elif pieces:
                piece = pieces.popleft()
                lacking = self._lacking(piece, pieces, most) if piece.begin < piece.end else piece
                if not pieces:
                    self._ahead.remove(pieces)
                if lacking is not None:
                    return lacking
            elif not self._begins_anew(now):
                return None

    def _asking(self) -> Counter[int]:
        """Returns how many threads ask each node, if they are to ask all alike."""
        under_way = self._under_way.values() if self._is_apart else ()
        return Counter(self._fetching.home(piece.number, piece.begin) for pieces in under_way for piece in pieces)

    def _least_asked(self, asking: Counter[int]) -> tuple[deque[Piece] | None, bool, int]:
        """Returns the begun file to continue, whether another one is needed, and how many threads ask its node.

        Another one is needed if none is begun, or threads fetch all of them. A piece of a divided file counts as
        fetched if any thread asks its node. Of the others, one of the node comes first that fewest threads ask. Else
        threads would stay with what they have begun, and wait for the links of some nodes, while those of others idle.
        """
        if not self._is_apart or not self._ahead:
            return next(iter(self._ahead), None), not self._ahead, 0

        def asked(pieces: deque[Piece]) -> tuple[bool, int]:
            piece, is_divided = pieces[0], self._fetching.is_divided
            threads = asking[self._fetching.home(piece.number, piece.begin)]
            return (threads > 0 if is_divided(piece.number) else piece.number in self._under_way), threads

        least = min(self._ahead, key=asked)
        return least, *asked(least)

    def _walk(self, order: Sequence[int]) -> Iterator[deque[Piece]]:
        """Yields all that is missing of each file, in order, by nodes; an empty piece if it lacks its name only."""
        for number in order:
            if self._store.is_finished(number) or ((failure := self._failures.get(number)) and not failure.is_due):
                continue
            try:
                missing = self._store.missing(number, [(0, self._store.listed[number].num_bytes)], begins=False)
            except StorageError as error:  # it cannot be made now: a later round tries again
                self._failures.note(number, error)
                continue
            if not missing and number not in self._under_way:
                yield deque([Piece(number, 0, 0)])
            pieces = (Piece(number, begin, end) for begin, end in self._share(number, missing))
            each = ([piece] for piece in pieces) if self._fetching.is_divided(number) else filter(None, [[*pieces]])
            for of_one_node in each:
                if self._fetching.is_expected(number, of_one_node[0].begin, looks=False):
                    self._left[number] = None
                else:
                    yield deque(of_one_node)

    def _walk_again(self) -> Iterator[deque[Piece]]:
        """Yields, as `_walk`, what is missing of files that were left, first of those that an earlier call took."""
        due = [self._left.popitem(last=False)[0] for _ in range(min(len(self._left), _MOST_DUE - len(self._due)))]
        self._due = deque(dict.fromkeys([*self._due, *due]))
        while self._due:
            number = self._due[0]
            is_divided = self._fetching.is_divided(number)  # if this is left in the middle of it, it begins again
            if not is_divided:
                self._due.popleft()
            yield from self._walk([number])
            if is_divided:
                self._due.popleft()

    def _begins_anew(self, now: float) -> bool:
        """Returns whether it goes through the files that are left once more: now and then, as some may have failed."""
        if is_due := now >= self._next_round_at and not self._store.is_complete:
            self._next_round_at = now + LOOK_SECONDS
            self._order = [number for number in self._order if not self._store.is_finished(number)]
            self._rest = self._walk(self._order)
        return is_due

    def _lacking(self, piece: Piece, queue: deque[Piece], most: int) -> Piece | None:
        """Returns a part of a piece's beginning that nobody fetches, and puts the rest back; None if there is none."""
        number, stop = piece.number, min(piece.begin + min(self.pace.num_bytes, most), piece.end)
        if stop < piece.end:
            queue.appendleft(Piece(number, stop, piece.end))
        try:
            lacking = self._store.missing(number, [(piece.begin, stop)], begins=False)
        except StorageError as error:
            self._failures.note(number, error)
            return None
        parts = [Piece(number, *span) for span in self._free(number, lacking)]
        if not parts:
            return None
        queue.extendleft(reversed(parts[1:]))
        self._under_way[number].append(parts[0])
        return parts[0]
