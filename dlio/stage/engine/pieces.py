"""Pieces of files: their sizes, and how many of them come while readers wait for others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dlio.io import world
from dlio.io.files import Span
from dlio.stage.copies.blocks import BLOCK_BYTES
from dlio.stage.engine.writing import MOST_BYTES

_LEAST_BYTES = 256 << 10  # whole blocks, as every size between
_FAR_SECONDS = 0.005  # that each request of a far source takes at least
_SLOW_START = 128  # a part of what was brought: 128 records come alone, then 250 requests bring seven times as much
_SHORT_SECONDS, _LONG_SECONDS = 0.25, 1.0
_QUIET_SECONDS = 0.5  # since something was urgent
_HUNG_SECONDS = 2.0  # without a piece, while a source is read
_BURST_SECONDS = 3.0  # in which a loader that begins gets nearly all
# pieces at a time, and their bytes; the first of an agent that has just started, for a loader that comes next
_OPENING, _QUIET, _BUSY, _BURST, _NONE = (2, 512 << 10), (4, MOST_BYTES), (4, 512 << 10), (1, 128 << 10), (0, 0)
_OPENING_SECONDS = 0.02  # for which such a loader may have to wait for one of them


@dataclass(frozen=True, slots=True)
class Piece:
    """A span of a file, by its number."""

    number: int
    begin: int
    end: int


class PieceSize:
    """The size of a piece: as much as comes in about half a second, so that a slow source shows progress.

    Attributes:
        num_bytes: the bytes of a piece.
        rate: bytes a second of the latest piece that was not tiny; 0 before the first.
    """

    def __init__(self, first: int = 1 << 20) -> None:
        self.num_bytes, self.rate, self._latest = first, 0.0, world.monotonic()
        self._brought, self._most_around = 0, MOST_BYTES
        self._least = self._usual = 0.0  # seconds of a small piece

    def pieces(self, number: int, spans: Sequence[Span]) -> Iterator[Piece]:
        """Yields the pieces of spans of a file."""
        for begin, end in spans:
            for start in range(begin, end, self.num_bytes):
                yield Piece(number, start, min(start + self.num_bytes, end))

    def around(self, piece: Piece) -> Span:
        """Returns what to fetch with a piece that a reader waits for: of a far source, what comes in about the latency.

        Readers that draw samples at random soon need its neighbours; the first batch should not wait for many of them.
        The span begins and ends at multiples of its size, so no fragments are left.
        """
        size = min(self._brought // _SLOW_START, self._most_around)
        size = 1 << size.bit_length() - 1 if size and self._least >= _FAR_SECONDS else 0
        if size <= piece.end - piece.begin:
            return piece.begin, piece.end
        begin = piece.begin - piece.begin % size
        return begin, max(begin + size, piece.end)

    @property
    def is_hung(self) -> bool:
        """Whether no piece has come for a while."""
        return world.monotonic() - self._latest > _HUNG_SECONDS

    def note(self, num_bytes: int, seconds: float) -> None:
        """Learns how long a piece took."""
        self._latest = world.monotonic()
        self._brought += num_bytes
        if num_bytes < _LEAST_BYTES:
            self._least = min(self._least or seconds, seconds)
            self._usual += (seconds - self._usual) / (8 if self._usual else 1)
        else:
            self.rate = num_bytes / max(seconds, 1e-6)
            if seconds > 4 * self._usual and num_bytes <= self._most_around:
                self._most_around = max(num_bytes // 2, _LEAST_BYTES)
            elif seconds < 2 * self._usual and num_bytes >= self._most_around:
                self._most_around = min(2 * self._most_around, MOST_BYTES)
        if num_bytes == self.num_bytes:
            if seconds > _LONG_SECONDS:
                self.num_bytes = max(num_bytes // 2, _LEAST_BYTES)
            elif seconds < _SHORT_SECONDS:
                self.num_bytes = min(num_bytes * 2, MOST_BYTES)


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

    def now(self, rate: float, *, may_wait: bool = False) -> tuple[int, int]:
        """Returns the pieces at a time, and the bytes of each, if the latest piece came at this rate.

        None while readers wait if they `may_wait`: other nodes have them, and the source has more.
        """
        now = world.monotonic()
        if now - self._urgent_at <= _QUIET_SECONDS:
            if may_wait:
                return _NONE
            return _BURST if now - self._burst_began < _BURST_SECONDS else _BUSY
        if self._hurried:
            return self._hurried, MOST_BYTES
        soon = int(rate * _OPENING_SECONDS)
        if soon >= MOST_BYTES or now - self._began > _BURST_SECONDS:
            return _QUIET
        return _OPENING[0], max(_OPENING[1], soon - soon % BLOCK_BYTES)


def without(span: Span, taken: Sequence[Piece]) -> Iterator[Span]:
    """Yields the parts of a span that are in none of the pieces."""
    begin, end = span
    for piece in sorted(taken, key=lambda piece: piece.begin):
        if piece.begin < end and begin < piece.end:
            if begin < piece.begin:
                yield begin, piece.begin
            begin = max(begin, piece.end)
    if begin < end:
        yield begin, end
