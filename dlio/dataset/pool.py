"""A pool of shards: opens them when they are needed, and keeps a bounded number of them open."""

from __future__ import annotations

import os
import resource
import threading
import weakref
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import accumulate, groupby, pairwise

from dlio.dataset.manifest import Manifest
from dlio.dataset.part_reader import PartReader, open_shard
from dlio.dataset.reader import ShardReader
from dlio.dataset.schema import Sample
from dlio.io.arrivals import Filling
from dlio.io.threads import close_at_exit

_MANY_THREADS = 64  # that may borrow shards at the same time
MAX_OPEN_SHARDS = 4096  # bounds the memory for indexes; a window shuffle needs far fewer


class _Slot:
    """The slot of one shard in a pool; its first user opens the shard, without the pool's lock."""

    def __init__(self) -> None:
        self.opening = threading.Lock()
        self.reader: ShardReader | PartReader | None = None
        self.num_users = 0
        self.is_dropped = False

    def close_if_unused(self) -> None:
        """Closes the shard if no thread uses it."""
        if self.num_users == 0 and self.reader is not None:
            self.reader.close()


class ShardPool:
    """Opens the shards of a data set when they are needed, a bounded number at a time.

    The default number is a quarter of the files that the process may open (`ulimit -n`): a global shuffle reads most
    shards with every batch, and opening one costs about as much as reading ten of its samples.

    Safe for several threads. Picklable, and safe across fork: every process opens its own files.
    """

    def __init__(self, manifest: Manifest, max_open: int | None = None, filling: Filling | None = None) -> None:
        self.manifest = manifest
        self._max_open = max_open
        self._filling = filling
        self._start()
        _pools.add(self)
        close_at_exit(self)

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._slots: OrderedDict[int, _Slot] = OrderedDict()

    def __getstate__(self) -> tuple[Manifest, int | None, Filling | None]:
        return self.manifest, self._max_open, self._filling

    def __setstate__(self, state: tuple[Manifest, int | None, Filling | None]) -> None:
        self.__init__(*state)  # type: ignore[misc]

    @property
    def most_lent(self) -> int:
        """How many shards a thread may borrow at a time, at least one: all, if all may be open."""
        count, most = len(self.manifest.shards), self._max_open or _num_open_shards()
        return max(1, count if count <= most else most // _MANY_THREADS)

    @contextmanager
    def shard(self, number: int) -> Iterator[ShardReader | PartReader]:
        """Lends the open shard `number`; as `shards`."""
        with self.shards([number]) as [shard]:
            yield shard

    @contextmanager
    def shards(self, numbers: Sequence[int]) -> Iterator[list[ShardReader | PartReader]]:
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

    def _opened(self, slot: _Slot, number: int) -> ShardReader | PartReader:
        if slot.reader is not None:
            return slot.reader
        with slot.opening:
            if slot.reader is None:
                slot.reader = open_shard(self.manifest, self.manifest.shards[number], self._filling)
            return slot.reader

    def _evict(self) -> None:
        surplus = len(self._slots) - (self._max_open or _num_open_shards())
        if surplus <= 0:
            return
        idle = [number for number, slot in self._slots.items() if slot.num_users == 0]
        for number in idle[:surplus]:
            self._slots.pop(number).close_if_unused()

    def read(self, index: int) -> Sample:
        """Returns sample `index` of the data set.

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


class JoinedPool:
    """The pools of several data sets as one, whose shards are numbered through; shares them."""

    def __init__(self, pools: Sequence[tuple[ShardPool | JoinedPool, int]]) -> None:
        """Joins pools, each given with its number of shards."""
        self._pools = tuple(pool for pool, _ in pools)
        self._starts = list(accumulate((count for _, count in pools), initial=0))

    @property
    def most_lent(self) -> int:
        """How many shards a thread may borrow at a time."""
        most = [pool.most_lent for pool in self._pools]
        bounds = [each for each, (first, end) in zip(most, pairwise(self._starts), strict=True) if each < end - first]
        return min(bounds, default=self._starts[-1] or 1)

    @contextmanager
    def shard(self, number: int) -> Iterator[ShardReader | PartReader]:
        """Lends an open shard; see `ShardPool`."""
        with self.shards([number]) as [shard]:
            yield shard

    @contextmanager
    def shards(self, numbers: Sequence[int]) -> Iterator[list[ShardReader | PartReader]]:
        """Lends several open shards, with ascending numbers; see `ShardPool`."""
        with ExitStack() as lent:
            found: list[ShardReader | PartReader] = []
            for part, some in groupby(numbers, lambda number: bisect_right(self._starts, number) - 1):
                shards = self._pools[part].shards([number - self._starts[part] for number in some])
                found += lent.enter_context(shards)
            yield found

    def close(self) -> None:
        """Closes every shard."""
        for pool in self._pools:
            pool.close()


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
