"""The pieces that one thread fetches at once, and how large they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dlio.stage.live.wire import Span
from dlio.stage.live.writing import MOST_BYTES

_LEAST_BYTES = 256 << 10  # whole blocks, as every size between
_SHORT_SECONDS, _LONG_SECONDS = 0.25, 1.0


@dataclass(frozen=True, slots=True)
class Piece:
    """A span of a file, by its number."""

    number: int
    begin: int
    end: int


class PieceSize:
    """The size of a piece: as much as comes in about half a second, so that a slow source shows progress.

    Args:
        first: the size of the first pieces.

    Attributes:
        rate: bytes a second of the latest piece that was not tiny; 0 before the first.
    """

    def __init__(self, first: int = 1 << 20) -> None:
        self._num_bytes = first
        self.rate = 0.0

    @property
    def num_bytes(self) -> int:
        """The bytes of a piece."""
        return self._num_bytes

    def pieces(self, number: int, spans: Sequence[Span]) -> Iterator[Piece]:
        """Yields the pieces of spans of a file."""
        for begin, end in spans:
            for start in range(begin, end, self._num_bytes):
                yield Piece(number, start, min(start + self._num_bytes, end))

    def note(self, num_bytes: int, seconds: float) -> None:
        """Learns how long a piece took."""
        if num_bytes >= _LEAST_BYTES:
            self.rate = num_bytes / max(seconds, 1e-6)
        if num_bytes == self._num_bytes:
            if seconds > _LONG_SECONDS:
                self._num_bytes = max(num_bytes // 2, _LEAST_BYTES)
            elif seconds < _SHORT_SECONDS:
                self._num_bytes = min(num_bytes * 2, MOST_BYTES)


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
