"""Values of bytes at known places in one or several files, read together and compared with their checksums."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from dlio.dataset.checksum import Crcs, Rows
from dlio.io.random_access import Numbers, RandomAccessFile, Take, read_ranges

#: Of arrays in bytes: for instructions that work on several numbers, and else TensorFlow copies, 8.5 ms for 38 MB.
ALIGNMENT = 64
_RUN_BYTES = 4 << 20  # by one call of the core, into one piece of memory, which loaders keep in this size


@dataclass(frozen=True, slots=True)
class ValueRanges:
    """n values of one file.

    Attributes:
        file: the file.
        offsets: where each begins, in bytes; int64 of shape (n,).
        sizes: bytes of each; int64 of shape (n,).
        before: a running CRC-32C before each; uint32 of shape (n,), which reading extends.
        after: what it must be after the value; uint32 of shape (n,).
        are_arrays: whether they are numbers, which the caller may change.
    """

    file: RandomAccessFile
    offsets: Numbers
    sizes: Numbers
    before: Crcs
    after: Crcs
    are_arrays: bool = False


#: Values as views, which are read-only unless they are arrays, and the rows of those that are wrong.
Values = tuple[list[memoryview], list[int]]


def read_values(ranges: Sequence[ValueRanges], take: Take) -> Iterator[Values]:
    """Yields the values of each of `ranges`.

    Args:
        ranges: of one file or of several, of one field. A call of the core for all takes a part of the time of one for
            each.
        take: allocates the memory to read into.

    Raises:
        StorageError: a file cannot be read.
    """
    if not ranges:
        return
    files, lengths = [each.file for each in ranges], [len(each.sizes) for each in ranges]
    which = np.repeat(np.arange(len(files)), lengths)
    offsets, sizes = (np.concatenate([getattr(each, name) for each in ranges]) for name in ("offsets", "sizes"))
    crcs, after = (np.concatenate([getattr(each, name) for each in ranges]) for name in ("before", "after"))
    values: list[memoryview] = []
    wrong = np.zeros(len(sizes), np.bool_)
    are_arrays = ranges[0].are_arrays
    room = -(-sizes // ALIGNMENT) * ALIGNMENT if are_arrays else sizes
    ends = room.cumsum()
    begins = ends - room
    for some in _runs(ends):
        places = begins[some] - begins[some.start]
        memory = take(int(ends[some.stop - 1] - begins[some.start]))
        counts = read_ranges(files, which[some], offsets[some], sizes[some], memory, places, crcs[some])
        wrong[some] = counts != sizes[some]
        data = memory if are_arrays else memory.toreadonly()
        values += [data[begin:end] for begin, end in zip(places.tolist(), (places + sizes[some]).tolist(), strict=True)]
    wrong |= crcs != after
    bounds = [0, *np.cumsum(lengths).tolist()]
    any_wrong = wrong.any()
    for first, last in pairwise(bounds):
        yield values[first:last], wrong[first:last].nonzero()[0].tolist() if any_wrong else []


def aligned(memory: Rows) -> Rows:
    """Returns a view of memory, `ALIGNMENT` bytes shorter, that begins at a multiple of `ALIGNMENT`."""
    skipped = -memory.ctypes.data % ALIGNMENT
    return memory[skipped : skipped + len(memory) - ALIGNMENT]


def _runs(ends: Numbers) -> list[slice]:
    """Returns runs of consecutive values that end there, as many as fit into `_RUN_BYTES`, at least one."""
    runs: list[slice] = []
    begin, last = 0, 0
    while last < len(ends):
        first, last = last, max(last + 1, int(ends.searchsorted(begin + _RUN_BYTES, side="right")))
        runs.append(slice(first, last))
        begin = int(ends[last - 1])
    return runs
