"""Memory of batches, used again when the consumer has let go of them.

A batch of 256 images takes 38 MB; fresh memory of that size costs some 6 ms in page faults and zeros each time.
"""

from __future__ import annotations

import sys
from math import prod
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt

from dlio.locking.fork_lock import ForkLock

_LEAST_BYTES = 1 << 20  # smaller arrays come out of the allocator's own reserve
PIECE_BYTES = 4 << 20  # of memory to read into; a record that is kept keeps as much


def _references(pieces: list[npt.NDArray[np.uint8]]) -> list[int]:
    """Returns how many references each piece has, those of the list and of the counting itself included."""
    return [sys.getrefcount(piece) for piece in pieces]


_OWN_REFERENCES = _references([np.empty(0, np.uint8)])[0]  # which differs between versions of Python


class BatchMemory:
    """Gives out arrays, over memory that nothing refers to any more where there is some; safe for several threads.

    An array given out is a view of memory that is kept here, and so is every view, tensor or buffer made of it: as long
    as one of them lives, the memory counts one reference more than its own, and is not given out again.

    Pickles without its memory; safe across fork.

    Attributes:
        limit: how many pieces of memory are kept, at least one.
    """

    def __init__(self, limit: int = 4) -> None:
        """Keeps up to `limit` pieces of memory; what is given out beyond that is freed when it is let go of."""
        self.limit = limit
        self._lock = ForkLock()
        self._kept: list[npt.NDArray[np.uint8]] = []

    def __reduce__(self) -> tuple[type[BatchMemory], tuple[int]]:
        return BatchMemory, (self.limit,)

    def empty(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Returns an array with arbitrary content."""
        num_bytes = prod(shape) * np.dtype(dtype).itemsize
        if num_bytes < _LEAST_BYTES:
            return np.empty(shape, dtype)
        with self._lock:
            return self._piece(num_bytes).view(dtype).reshape(shape)

    def _piece(self, num_bytes: int) -> npt.NDArray[np.uint8]:
        for number, count in enumerate(_references(self._kept)):
            if count == _OWN_REFERENCES and len(self._kept[number]) == num_bytes:
                return self._kept[number]
        surplus = max(0, len(self._kept) + 1 - self.limit)
        self._kept = [*self._kept[surplus:], np.empty(num_bytes, np.uint8)]
        return self._kept[-1]

    def clear(self) -> None:
        """Keeps no memory any longer."""
        with self._lock:
            self._kept = []


class _Hashable(np.ndarray[Any, np.dtype[np.uint8]]):
    """An array whose views that cannot be written to are hashed by their bytes, as `bytes` are."""

    __hash__ = object.__hash__  # type: ignore[assignment]  # a view asks, before it hashes, whether this does


class Strip:
    """Memory for what is read together, one behind the other in pieces of a BatchMemory; safe for several threads."""

    def __init__(self, memory: BatchMemory) -> None:
        """Takes pieces of `memory` as they are needed."""
        self._memory = memory
        self._lock = Lock()
        self._rest = memoryview(bytearray())

    def take(self, num_bytes: int) -> memoryview:
        """Returns the next `num_bytes`, with arbitrary content; what is larger than a piece, memory of its own."""
        if num_bytes > PIECE_BYTES:
            return np.empty(num_bytes, np.uint8).view(_Hashable).data
        with self._lock:
            if num_bytes > len(self._rest):
                self._rest = self._memory.empty((PIECE_BYTES,), np.uint8).view(_Hashable).data
            taken, self._rest = self._rest[:num_bytes], self._rest[num_bytes:]
        return taken
