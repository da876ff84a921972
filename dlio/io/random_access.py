"""Reading a file at given offsets, by any number of threads."""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dlio import native
from dlio.errors import CorruptRecordError, StorageError
from dlio.io import arrivals, files, limits, waits
from dlio.io.arrivals import Numbers as Numbers
from dlio.io.arrivals import Take as Take
from dlio.io.files import Span

_GAP_BYTES = 32 << 10  # disks and file servers read this much more in the time of one more request


@dataclass(frozen=True, slots=True)
class OutRows:
    """Rows of an array to read n values of one shape into.

    Attributes:
        array: C-contiguous, of shape (m, *shape).
        rows: which of them; int64 of shape (n,).
    """

    array: npt.NDArray[Any]
    rows: Numbers

    @property
    def memory(self) -> npt.NDArray[np.uint8]:
        """The bytes of the array, of shape (m, size)."""
        return self.array.reshape(len(self.array), prod(self.array.shape[1:])).view(np.uint8)

    def __setitem__(self, which: int | slice, values: object) -> None:
        """Writes one value, or several, to their rows."""
        self.array[self.rows[which]] = values


def take_fresh(num_bytes: int) -> memoryview:
    """Returns new memory: a `Take`."""
    return memoryview(bytearray(num_bytes))


class RandomAccessFile:
    """A file open for reading at any offset; thread-safe, since it has no file position.

    Reads copy rather than map: a file that shrinks, or a disk that fails, then gives an error instead of a signal.

    A file that is still arriving is read by its `Arrival`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None
        self._arrival: arrivals.Arrival | None = None
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe would wait
            status = os.fstat(self._descriptor)
            self.num_bytes = status.st_size
        except OSError as error:
            self._arrival = arrivals.find(path) if isinstance(error, FileNotFoundError) else None
            if self._arrival is None:
                with files.storage_errors("open", path):
                    raise
            self.num_bytes = self._arrival.num_bytes
        else:
            if not stat.S_ISREG(status.st_mode):
                raise StorageError(errno.EINVAL, f"cannot open {path}: it is not a regular file: give another")

    @property
    def is_arriving(self) -> bool:
        """Whether the file had no name yet when it was opened: others cannot open it by its path."""
        return self._arrival is not None

    def read(self, offset: int, num_bytes: int, record: int | None = None) -> bytes:
        """Returns exactly `num_bytes` from `offset`.

        Raises:
            CorruptRecordError: the file ends before that; names `record`.
            StorageError: the file cannot be read.
        """
        if offset < 0 or num_bytes < 0 or offset + num_bytes > self.num_bytes:
            problem = f"expected {num_bytes} bytes here, the file ends at {self.num_bytes}: it is cut off, restore it"
            raise CorruptRecordError(self.path, problem, record=record, offset=offset)
        try:
            if self._descriptor is None:
                memory = np.empty(num_bytes, np.uint8)  # takes nothing until bytes come: a manifest may name any size
                self._open_arrival().fill(np.array([offset]), np.array([num_bytes]), memory.data, np.array([0]))
                return memory.tobytes()
            data = os.pread(self._descriptor, num_bytes, offset)
            while len(data) < num_bytes:  # a read is interrupted at 2 GiB, or the file was cut since it was opened
                more = os.pread(self._descriptor, num_bytes - len(data), offset + len(data))
                if not more:
                    problem = f"expected {num_bytes} bytes here, found {len(data)}: the file has shrunk, restore it"
                    raise CorruptRecordError(self.path, problem, record=record, offset=offset)
                data += more
        except StorageError:
            raise
        except OSError as error:
            raise self._unreadable(error.errno or errno.EIO, offset) from error
        except MemoryError as error:
            problem = f"cannot read {num_bytes:,} bytes of {self.path} at {offset}: {limits.reached(error)}"
            raise StorageError(errno.ENOMEM, problem) from error
        return data

    def read_many(self, offsets: Numbers, sizes: Numbers) -> list[memoryview]:
        """Returns ranges, in order, as read-only views of one piece of memory.

        Args:
            offsets: where each begins, at least 0; int64 of shape (n,).
            sizes: bytes of each, at least 0; int64 of shape (n,). Bytes beyond the end of the file are left out.

        Raises:
            StorageError: the file cannot be read.
        """
        begins = np.minimum(offsets, self.num_bytes)
        counts = np.clip(offsets + sizes, begins, self.num_bytes) - begins
        memory, places = take_fresh(int(counts.sum())), counts.cumsum() - counts
        counts = read_ranges([self], counts * 0, begins, counts, memory, places)
        read = memory.toreadonly()
        return [read[begin:end] for begin, end in zip(places.tolist(), (places + counts).tolist(), strict=True)]

    def fill(self, offsets: Numbers, sizes: Numbers, memory: memoryview, places: Numbers) -> None:
        """Reads ranges, which lie within the file, to places in memory; raises as `read`."""
        if len(sizes) > 1 and (read_ranges([self], offsets * 0, offsets, sizes, memory, places) == sizes).all():
            return
        for offset, size, place in zip(offsets.tolist(), sizes.tolist(), places.tolist(), strict=True):
            memory[place : place + size] = self.read(offset, size)  # quicker for one range; raises if it is short

    def _open(self) -> int:
        """Returns the descriptor; raises StorageError if the file was closed."""
        if self._descriptor is None:
            raise StorageError(f"{self.path} is closed: open the shard again")
        return self._descriptor

    def _open_arrival(self) -> arrivals.Arrival:
        """Returns the arrival of a file without descriptor; raises StorageError if it was closed."""
        if self._arrival is None:
            raise StorageError(f"{self.path} is closed: open the shard again")
        return self._arrival

    def _unreadable(self, error: int, offset: int) -> StorageError:
        return StorageError(error, f"cannot read {self.path} at {offset}: {os.strerror(error)}")

    def will_need(self, starts: Numbers, stops: Numbers) -> bool:
        """Lets the system fetch the ranges from `starts` to `stops` while the caller does other things.

        Ranges close to each other are requested together. If the first and the last byte are in memory, the others most
        likely are too, and nothing is requested.

        Returns:
            Whether they are in memory.
        """
        if not len(starts):
            return True
        if self._descriptor is None:
            if self._arrival is not None:
                self._arrival.will_need(starts, stops)
            return False
        if _holds(self._descriptor, int(starts[0]), int(stops[-1]) - 1):
            return True
        gaps = starts[1:] - stops[:-1]
        apart = np.flatnonzero((gaps < 0) | (gaps > _GAP_BYTES)) + 1
        firsts, lasts = [0, *apart.tolist()], [*(apart - 1).tolist(), -1]
        for begin, end in zip(starts[firsts].tolist(), stops[lasts].tolist(), strict=True):
            os.posix_fadvise(self._descriptor, begin, end - begin, os.POSIX_FADV_WILLNEED)
        return False

    def close(self) -> None:
        """Closes the file; may be called twice."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        if self._arrival is not None:
            self._arrival.close()
            self._arrival = None

    def __del__(self, is_ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_ending():  # then `os` may have lost its names, and the system closes the file
            self.close()


def read_ranges(
    files: Sequence[RandomAccessFile],
    which: Numbers,
    offsets: Numbers,
    sizes: Numbers,
    memory: memoryview,
    places: Numbers,
    crcs: npt.NDArray[np.uint32] | None = None,
) -> Numbers:
    """Reads n ranges to places in memory; by the core without Python's lock, in a fifth of the time, if none arrives.

    Args:
        files: the files.
        which: the number of each range's file; int64 of shape (n,).
        offsets: where each begins, at least 0; int64 of shape (n,).
        sizes: bytes of each, at least 0; int64 of shape (n,).
        memory: bytes that may be written.
        places: where each goes in the memory, in bytes; int64 of shape (n,).
        crcs: CRC-32Cs that are extended by the ranges; uint32 of shape (n,).

    Returns:
        The bytes read of each, fewer than its size where the file ends; int64 of shape (n,).

    Raises:
        StorageError: a file cannot be read.
    """
    counts, done = np.zeros_like(sizes), 0
    if not native.available or any(file.is_arriving for file in files):
        for number, file in enumerate(files):
            rows = (which == number).nonzero()[0]
            counts[rows] = _read_one(file, offsets[rows], sizes[rows], memory, places[rows])
        if crcs is not None:
            read = (
                memory[place : place + count] for place, count in zip(places.tolist(), counts.tolist(), strict=True)
            )
            crcs[:] = list(map(native.crc32c, read, crcs.tolist()))
        return counts
    descriptors = np.array([file._open() for file in files], np.int64)[which]
    while done < len(sizes):
        rest = slice(done, None)
        counts[rest], num_read, error, waited = native.read_ranges(
            descriptors[rest], offsets[rest], sizes[rest], memory, places[rest], None if crcs is None else crcs[rest]
        )
        waits.note(waited)
        done += num_read
        if error not in (0, errno.EINTR):
            raise files[which[done]]._unreadable(error, int(offsets[done]))
    return counts


def _read_one(file: RandomAccessFile, offsets: Numbers, sizes: Numbers, memory: memoryview, places: Numbers) -> Numbers:
    """Does what `read_ranges` does, for a file that is arriving, or without the core."""
    begins = np.minimum(offsets, file.num_bytes)
    counts = np.clip(sizes, 0, file.num_bytes - begins)
    if file.is_arriving:
        file._open_arrival().fill(begins, counts, memory, places)
        return counts
    descriptor = file._open()
    for row, (begin, size, place) in enumerate(zip(begins.tolist(), counts.tolist(), places.tolist(), strict=True)):
        try:
            counts[row] -= len(files.fill(descriptor, begin, memory[place : place + size]))
        except OSError as error:
            raise file._unreadable(error.errno or errno.EIO, begin) from error
    return counts


def within(starts: Numbers, stops: Numbers, num_bytes: int) -> list[Span]:
    """Returns ranges, as far as they lie within a file of `num_bytes`."""
    begins = [min(start, num_bytes) for start in starts.tolist()]
    return [(begin, min(max(stop, begin), num_bytes)) for begin, stop in zip(begins, stops.tolist(), strict=True)]


def read_whole(path: Path, most: int | None = None) -> bytes:
    """Returns the content of a file, which may be arriving.

    Raises:
        CorruptRecordError: it has more than `most` bytes.
        StorageError: it cannot be read.
    """
    with closing(RandomAccessFile(path)) as file:
        if most is not None and file.num_bytes > most:
            raise CorruptRecordError(path, f"it has {file.num_bytes:,} bytes, expected at most {most:,}: delete it")
        return file.read(0, file.num_bytes)


def _holds(descriptor: int, *offsets: int) -> bool:
    """Returns whether the bytes at `offsets` are in memory; False if the system does not know."""
    try:
        return all(os.preadv(descriptor, [bytearray(1)], offset, os.RWF_NOWAIT) for offset in offsets)
    except OSError:
        return False
