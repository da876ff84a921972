"""Small files of slow storage, read side by side: each takes several round trips, and an engine has few threads.

Once a small file has taken long, the other small files of its shard are read by many threads at once, and wait in
memory for those who ask for them next.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

from dlio.dataset.manifest import File, Manifest, Shard
from dlio.io.threads import Threads

_SMALL_BYTES = 64 << 10
_THREADS = 64
_SLOW_SECONDS = 0.0005  # for one file: from memory it takes 50 us, from a server 300 and more
_MOST_SHARDS = 4  # whose files wait in memory; a shard has 16 MiB of small files at most

_Waiting = dict[str, Future[bytes]]


class ReadAhead:
    """For any number of threads.

    Args:
        manifest: the files.
        read: fills memory with the bytes of a file from an offset on.
    """

    def __init__(self, manifest: Manifest, read: Callable[[File, int, memoryview], None]) -> None:
        self._read, self._lock = read, threading.Lock()
        self._shards = {file.name: shard for shard in manifest.shards for file in shard.files if _is_small(file)}
        self._begun: dict[str, set[str]] = {}
        self._waiting: dict[str, _Waiting] = {}
        self._threads: Threads | None = None

    def fill(self, file: File, offset: int, target: memoryview) -> None:
        """Fills `target` with a file's bytes from `offset` on; raises what `read` raises."""
        shard = self._shards.get(file.name)
        if shard is None or len(target) < file.num_bytes:
            self._read(file, offset, target)
        elif (waiting := self._taken(shard, file)) is not None:
            target[:] = waiting.result()
        else:
            began = time.perf_counter()
            self._read(file, offset, target)
            if time.perf_counter() - began > _SLOW_SECONDS:
                self._read_others(shard)

    def _taken(self, shard: Shard, file: File) -> Future[bytes] | None:
        """Returns the content of a file that was read ahead; None if its reader is to read it."""
        with self._lock:
            self._begun.setdefault(shard.name, set()).add(file.name)
            return self._waiting.get(shard.name, {}).pop(file.name, None)

    def _read_others(self, shard: Shard) -> None:
        """Has all small files of a shard read that nobody has asked for yet."""
        with self._lock:
            if shard.name in self._waiting:
                return
            self._threads = self._threads or Threads(_THREADS, "dlio-ahead")
            if len(self._waiting) == _MOST_SHARDS:
                del self._waiting[next(iter(self._waiting))]
            begun = self._begun[shard.name]
            wanted = [file for file in shard.files if file.name in self._shards and file.name not in begun]
            threads = self._threads
            self._waiting[shard.name] = {file.name: threads.submit(partial(self._whole, file)) for file in wanted}

    def _whole(self, file: File) -> bytes:
        data = bytearray(file.num_bytes)
        self._read(file, 0, memoryview(data))
        return bytes(data)

    def close(self) -> None:
        """Ends the threads, and forgets what waits in memory; can be used again."""
        with self._lock:
            threads, self._threads = self._threads, None
            self._waiting.clear()
            self._begun.clear()
        if threads is not None:
            threads.end(None)


def _is_small(file: File) -> bool:
    return 0 < file.num_bytes <= _SMALL_BYTES
