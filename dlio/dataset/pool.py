"""A pool of open shards: it keeps a bounded number of them open, and opens them when they are needed."""

from __future__ import annotations

import os
import resource
import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

from dlio.dataset.manifest import Manifest
from dlio.dataset.reader import ShardReader
from dlio.dataset.schema import Sample

MAX_OPEN_SHARDS = 4096  # bounds the memory for indexes; a window shuffle needs far fewer


class _Place:
    """The place of one shard in a pool; whoever uses it first opens the shard, and the pool goes on meanwhile."""

    def __init__(self) -> None:
        self.opening = threading.Lock()
        self.reader: ShardReader | None = None
        self.num_users = 0
        self.is_dropped = False

    def close_if_unused(self) -> None:
        """Closes the shard, unless somebody reads it."""
        if self.num_users == 0 and self.reader is not None:
            self.reader.close()


class ShardPool:
    """Opens the shards of a data set when they are needed, a bounded number at a time.

    By default as many as a quarter of the files that the process may open (`ulimit -n`): a global shuffle visits most
    shards with every batch, and opening one costs about as much as reading ten of its samples.

    Safe for several threads. Picklable, and safe across fork: every process opens its own files.
    """

    def __init__(self, manifest: Manifest, max_open: int | None = None) -> None:
        self.manifest = manifest
        self._max_open = max_open
        self._start()
        _pools.add(self)

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._places: OrderedDict[int, _Place] = OrderedDict()

    def __getstate__(self) -> tuple[Manifest, int | None]:
        return self.manifest, self._max_open

    def __setstate__(self, state: tuple[Manifest, int | None]) -> None:
        self.__init__(*state)  # type: ignore[misc]

    @contextmanager
    def shard(self, number: int) -> Iterator[ShardReader]:
        """Lends the open shard `number`; it stays open at least until it is given back.

        Raises:
            StorageError, CorruptRecordError: as ShardReader.
        """
        with self._lock:
            place = self._places.setdefault(number, _Place())
            self._places.move_to_end(number)
            place.num_users += 1
        is_new = place.reader is None
        try:
            with place.opening:
                if place.reader is None:
                    place.reader = ShardReader(self.manifest, self.manifest.shards[number])
            yield place.reader
        finally:
            with self._lock:
                place.num_users -= 1
                if place.is_dropped:
                    place.close_if_unused()
                if is_new:
                    self._evict()

    def _evict(self) -> None:
        surplus = len(self._places) - (self._max_open or _num_open_shards())
        if surplus <= 0:
            return
        idle = [number for number, place in self._places.items() if place.num_users == 0]
        for number in idle[:surplus]:
            self._places.pop(number).close_if_unused()

    def read(self, index: int) -> Sample:
        """Returns sample `index` of the data set.

        Raises:
            IndexError: there is no such sample.
            CorruptRecordError, StorageError: as ShardReader.read.
        """
        number, record = self.manifest.locate(index)
        with self.shard(number) as shard:
            return shard.read(record)

    def close(self) -> None:
        """Closes every shard, one that a thread still reads as soon as it is given back; the pool can be used again."""
        with self._lock:
            for place in self._places.values():
                place.is_dropped = True
                place.close_if_unused()
            self._places.clear()


def _num_open_shards() -> int:
    """Returns how many shards this process may keep open: with two files each, half of its descriptors."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_OPEN_SHARDS if soft == resource.RLIM_INFINITY else min(max(8, soft // 4), MAX_OPEN_SHARDS)


_pools: weakref.WeakSet[ShardPool] = weakref.WeakSet()


def _start_pools() -> None:
    """Forgets, in a forked child, the parent's open shards and locks: neither may be shared between processes."""
    for pool in list(_pools):
        pool._start()


os.register_at_fork(after_in_child=_start_pools)
