"""Memory of batches, reused when the consumer has released them.

A batch of 256 images takes 38 MB. Fresh memory of that size costs some 6 ms in page faults and zeros each time.
"""

from __future__ import annotations

import weakref
from math import prod
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt

from dlio.dataset.bulk.ranges import ALIGNMENT, aligned
from dlio.dataset.schema import Array
from dlio.locking.fork_lock import ForkLock

STRIP_BYTES = 4 << 20  # to read records into; a record that is kept holds a whole piece
_LEAST_BYTES = 1 << 20  # smaller arrays come from the allocator's own reserve


class _Piece:
    """Memory, and whether it is in use; for any number of threads, with or without Python's global lock."""

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        self._aligned = aligned(np.empty(num_bytes + ALIGNMENT, np.uint8)).data
        self._lent: weakref.ref[npt.NDArray[np.uint8]] | None = None

    @property
    def is_free(self) -> bool:
        """Whether no array over the memory lives."""
        return self._lent is None or self._lent() is None

    def lend(self) -> npt.NDArray[np.uint8]:
        """Returns an array that begins at a multiple of `ALIGNMENT`."""
        lent = np.frombuffer(self._aligned, np.uint8)  # each view of it, and of those, has this one as its base
        self._lent = weakref.ref(lent)
        return lent


class BatchMemory:
    """A pool of arrays for batches; safe for several threads.

    An array from the pool is a view of memory that the pool keeps. So is every view, tensor or buffer made of it. While
    one of them lives, the memory is not reused.

    Pickles without its memory; safe across fork.

    Attributes:
        limit: how many pieces of memory are kept, at least one.
    """

    def __init__(self, limit: int = 4) -> None:
        """Keeps up to `limit` pieces of memory; more are freed when they are released."""
        self.limit = limit
        self._lock = ForkLock()
        self._kept: list[_Piece] = []

    def __reduce__(self) -> tuple[type[BatchMemory], tuple[int]]:
        return BatchMemory, (self.limit,)

    def empty(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
        """Returns an array with arbitrary content."""
        num_bytes = prod(shape) * np.dtype(dtype).itemsize
        if num_bytes < _LEAST_BYTES:
            return np.empty(shape, dtype)
        with self._lock:
            return self._piece(num_bytes).view(dtype).reshape(shape)

    def _piece(self, num_bytes: int) -> npt.NDArray[np.uint8]:
        """Returns memory that begins at a multiple of `ALIGNMENT`."""
        for piece in self._kept:
            if piece.num_bytes == num_bytes and piece.is_free:
                return piece.lend()
        surplus = max(0, len(self._kept) + 1 - self.limit)
        self._kept = [*self._kept[surplus:], _Piece(num_bytes)]
        return self._kept[-1].lend()

    def at_least(self, num_bytes: int) -> npt.NDArray[np.uint8]:
        """Returns a view of a piece that is up to half as large again, with arbitrary content.

        Few of many sizes are equal. A new piece takes the place of a free one that does not fit, and is not kept if all
        together would be larger than 1.5 times `limit` times `STRIP_BYTES`.
        """
        with self._lock:
            free = [piece for piece in self._kept if piece.num_bytes > STRIP_BYTES and piece.is_free]
            fitting = [piece for piece in free if num_bytes <= piece.num_bytes <= num_bytes * 3 // 2]
            if fitting:
                return min(fitting, key=lambda piece: piece.num_bytes).lend()[:num_bytes]
            self._kept = [piece for piece in self._kept if piece not in free[:1]]
            if sum(piece.num_bytes for piece in self._kept) + num_bytes > self.limit * STRIP_BYTES * 3 // 2:
                return _Piece(num_bytes).lend()
            return self._piece(num_bytes)

    def clear(self) -> None:
        """Drops all memory that is kept."""
        with self._lock:
            self._kept = []


class _Hashable(np.ndarray[Any, np.dtype[np.uint8]]):
    """An array whose views that cannot be written to are hashed by their bytes, as `bytes` are."""

    __hash__ = object.__hash__  # type: ignore[assignment]  # a view hashes only if its base does


class Strip:
    """Consecutive memory for records that are read together, from a BatchMemory; safe for several threads."""

    def __init__(self, memory: BatchMemory) -> None:
        """Takes pieces of `memory` on demand."""
        self._memory = memory
        self._lock = Lock()
        self._rest = memoryview(bytearray())

    def take(self, num_bytes: int) -> memoryview:
        """Returns the next `num_bytes`, with arbitrary content. More than a piece gets its own memory."""
        if num_bytes > STRIP_BYTES:
            return self._memory.at_least(num_bytes).view(_Hashable).data
        with self._lock:
            if num_bytes > len(self._rest):
                self._rest = self._memory.empty((STRIP_BYTES,), np.uint8).view(_Hashable).data
            taken, self._rest = self._rest[:num_bytes], self._rest[num_bytes:]
        return taken
