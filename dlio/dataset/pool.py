"""A pool of shards: opens them when they are needed, and keeps a bounded number of them open.

Columns of samples of several open shards are read together, and joined.
"""

from __future__ import annotations

import os
import resource
import threading
import weakref
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np

from dlio.dataset.bulk.ranges import read_values
from dlio.dataset.manifest import Manifest
from dlio.dataset.reader import ShardReader
from dlio.dataset.schema import Array, Fields, Sample, Schema
from dlio.io.arrivals import Filling, NoRoomError
from dlio.io.random_access import Numbers, OutRows, Take
from dlio.io.threads import close_at_exit

_MANY_THREADS = 64  # that may borrow shards at the same time
MAX_OPEN_SHARDS = 4096  # bounds the memory for indexes; a window shuffle needs far fewer


class Folder(NamedTuple):
    """A data set, and who fills its folder; None if it is complete where it is read."""

    manifest: Manifest
    filling: Filling | None = None


class ShardRead(NamedTuple):
    """Some samples of a batch that are in one shard.

    Attributes:
        shard: the open shard.
        rows: their places in the batch; int64 of shape (n,).
        records: their numbers in the shard, ascending; int64 of shape (n,).
    """

    shard: ShardReader
    rows: Numbers
    records: Numbers


class _Slot:
    """The slot of one shard in a pool; its first user opens the shard, without the pool's lock."""

    def __init__(self) -> None:
        self.opening = threading.Lock()
        self.reader: ShardReader | None = None
        self.num_users = 0
        self.is_dropped = False

    def close_if_unused(self) -> None:
        """Closes the shard if no thread uses it."""
        if self.num_users == 0 and self.reader is not None:
            self.reader.close()


class ShardPool:
    """Opens the shards of one data set, or of several, when they are needed, a bounded number at a time.

    The default number is a quarter of the files that the process may open (`ulimit -n`): a global shuffle reads most
    shards with every batch, and opening one costs about as much as reading ten of its samples.

    Safe for several threads. Picklable, and safe across fork: every process opens its own files.

    Attributes:
        folders: the data sets, whose shards are numbered through.
        firsts: the number of the first shard of each, then the number of all shards.
    """

    def __init__(
        self,
        manifest: Manifest,
        max_open: int | None = None,
        filling: Filling | None = None,
        more: Sequence[Folder] = (),
    ) -> None:
        self.folders = (Folder(manifest, filling), *more)
        self.firsts = list(accumulate((len(folder.manifest.shards) for folder in self.folders), initial=0))
        self._max_open = max_open
        self._start()
        _pools.add(self)
        close_at_exit(self)

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._slots: OrderedDict[int, _Slot] = OrderedDict()

    def __reduce__(self) -> tuple[Callable[..., ShardPool], tuple[object, ...]]:
        (manifest, filling), *more = self.folders
        return ShardPool, (manifest, self._max_open, filling, more)

    @property
    def manifest(self) -> Manifest:
        """The manifest of the first data set."""
        return self.folders[0].manifest

    @property
    def most_lent(self) -> int:
        """How many shards a thread may borrow at a time, at least one: all, if all may be open."""
        count, most = self.firsts[-1], self._max_open or _num_open_shards()
        return max(1, count if count <= most else most // _MANY_THREADS)

    @contextmanager
    def shard(self, number: int) -> Iterator[ShardReader]:
        """Lends the open shard `number`; as `shards`."""
        with self.shards([number]) as [shard]:
            yield shard

    @contextmanager
    def shards(self, numbers: Sequence[int]) -> Iterator[list[ShardReader]]:
        """Lends several open shards; they stay open at least until they are given back.

        Raises:
            StorageError, CorruptRecordError: as ShardReader.
        """
        with self._lock:
            slots = [self._slots.setdefault(number, _Slot()) for number in numbers]
            for number, slot in zip(numbers, slots, strict=True):
                self._slots.move_to_end(number)
                slot.num_users += 1
            any_new = any(slot.reader is None for slot in slots)
            if any_new:
                self._evict()
        try:
            yield [self._opened(slot, number) for number, slot in zip(numbers, slots, strict=True)]
        finally:
            with self._lock:
                for slot in slots:
                    slot.num_users -= 1
                    if slot.is_dropped:
                        slot.close_if_unused()
                if any_new:
                    self._evict()

    def _opened(self, slot: _Slot, number: int) -> ShardReader:
        if slot.reader is not None:
            return slot.reader
        with slot.opening:
            if slot.reader is None:
                of = bisect_right(self.firsts, number) - 1
                manifest, filling = self.folders[of]
                shard = manifest.shards[number - self.firsts[of]]
                try:
                    slot.reader = ShardReader(manifest, shard, filling)
                except NoRoomError:
                    if filling is None:
                        raise
                    slot.reader = ShardReader(filling.source(), shard)
            return slot.reader

    def _evict(self) -> None:
        surplus = len(self._slots) - (self._max_open or _num_open_shards())
        if surplus <= 0:
            return
        idle = [number for number, slot in self._slots.items() if slot.num_users == 0]
        for number in idle[:surplus]:
            self._slots.pop(number).close_if_unused()

    def reads(self, offsets: Numbers, numbers: Numbers, rows: Numbers) -> Iterator[list[ShardRead]]:
        """Yields the reads of the shards that hold some samples, in the order of the shards, several at a time.

        The shards are lent while the consumer has them.

        Args:
            offsets: the number of each shard's first sample, and of all samples; int64 of shape (m + 1,).
            numbers: the samples; int64 of shape (n,).
            rows: their places in the batch; int64 of shape (n,).
        """
        order = numbers.argsort(kind="stable")
        numbers, rows = numbers[order], rows[order]
        shards = offsets.searchsorted(numbers, side="right") - 1
        records = numbers - offsets[shards]
        bounds = [0, *((shards[1:] != shards[:-1]).nonzero()[0] + 1).tolist(), len(numbers)]
        spans = list(pairwise(bounds if len(numbers) else ()))
        at_a_time = self.most_lent
        for first in range(0, len(spans), at_a_time):
            some = spans[first : first + at_a_time]
            with self.shards(shards[[begin for begin, _ in some]].tolist()) as lent:
                yield [
                    ShardRead(shard, rows[begin:end], records[begin:end])
                    for shard, (begin, end) in zip(lent, some, strict=True)
                ]

    def read(self, index: int) -> Sample:
        """Returns sample `index` of the first data set.

        Raises:
            IndexError: the index is out of range.
            CorruptRecordError, StorageError: as ShardReader.read.
        """
        number, record = self.manifest.locate(index)
        with self.shard(number) as shard:
            return shard.read(record)

    def close(self) -> None:
        """Closes every shard, one that a thread uses as soon as it is given back; the pool can be used again."""
        with self._lock:
            for slot in self._slots.values():
                slot.is_dropped = True
                slot.close_if_unused()
            self._slots.clear()


def read_columns(reads: list[ShardRead], take: Take, out: Fields) -> list[Fields]:
    """Returns the columns of each read; arguments and errors as `ShardReader.read_columns`, `out` has whole batches.

    Values at known places are read from all shards together.
    """
    ranges = [read.shard.ranges(read.records) for read in reads]
    large = read_values([each for each in ranges if each is not None], take)
    columns = []
    for read, found in zip(reads, ranges, strict=True):
        rows = {name: OutRows(array, read.rows) for name, array in out.items()}
        columns.append(read.shard.read_columns(read.records, take, rows, None if found is None else next(large)))
    return columns


def joined_columns(schema: Schema, size: int, placed: Fields, read: list[tuple[Numbers, Fields]]) -> Fields:
    """Returns a column of `size` values for each field: those that are `placed` already, and what was read by rows."""
    if len(placed) == len(schema):
        return placed
    if len(read) == 1 and len(rows := read[0][0]) == size and (rows[1:] > rows[:-1]).all():
        return {**read[0][1], **placed}
    columns: Fields = {
        name: np.empty((size, *kind.fixed_shape), kind.dtype) if kind.is_fixed else [None] * size
        for name, kind in schema.fields
        if name not in placed
    }
    for rows, values in read:
        for name, column in columns.items():
            _put(column, rows, values[name])
    return {**columns, **placed}


def _put(column: list[object] | Array, rows: Numbers, values: Sequence[object] | Array) -> None:
    """Writes values into the rows of a column."""
    if isinstance(column, np.ndarray):
        column[rows] = values
        return
    for row, value in zip(rows.tolist(), values, strict=True):
        column[row] = value


def _num_open_shards() -> int:
    """Returns how many shards this process may keep open: two or three files each, of those that it may open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_OPEN_SHARDS if soft == resource.RLIM_INFINITY else min(max(8, soft // 4), MAX_OPEN_SHARDS)


_pools: weakref.WeakSet[ShardPool] = weakref.WeakSet()


def _start_pools() -> None:
    """Forgets, in a forked child, the parent's open shards and locks, which processes must not share."""
    for pool in list(_pools):
        pool._start()


os.register_at_fork(after_in_child=_start_pools)
