"""The rounds of a broadcast on one node: threads that read ahead, the ring, and threads that write.

A node that fails reports it in its next block, so all nodes learn of it in the same round and stop together.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial

from dlio.dataset.manifest import File
from dlio.errors import DlioError, StorageError
from dlio.io import limits
from dlio.io.threads import Threads
from dlio.stage.comm.base import Ring
from dlio.stage.planning.placement import BLOCK_BYTES
from dlio.stage.transfer.copy import Tally
from dlio.stage.transfer.new_file import page_buffer
from dlio.stage.transfer.source import StagingSource
from dlio.stage.transfer.stream import Block, Lacking, OwnStream, Sink

READERS = 4  # several requests at once hide the latency of a slow source
_READ_AHEAD = 4
_WRITERS = 2
_POOL = 24  # blocks: being read, read ahead, under way, and waiting to be written; 96 MiB


class BroadcastPipeline:
    """One node's part in a broadcast.

    Args:
        source: where the data set is read.
        ring: the nodes.
        streams: the files that each node reads, in order.
        lacking: what this node lacks.
        tally: counts the bytes read and written here.
        watch: called in every round with the bytes that each node still has to write, by rank in the ring.

    Attributes:
        problem: why this node failed; None if it did not.
    """

    def __init__(
        self,
        source: StagingSource,
        ring: Ring,
        streams: Sequence[Sequence[File]],
        lacking: Lacking,
        tally: Tally,
        watch: Callable[[list[int]], None] | None = None,
    ) -> None:
        self._watch, self._lacked = watch, sum(file.num_bytes for file in lacking.missing)
        self._source, self._ring, self._streams, self._tally = source, ring, streams, tally
        self._pool: queue.Queue[Block] = queue.Queue()
        for _ in range(_POOL):
            self._pool.put(Block(self._pool))
        self._prefetched: queue.Queue[Block] = queue.Queue(_READ_AHEAD)
        buffers = [page_buffer() for _ in range(_WRITERS)]
        self._sinks = [Sink(stream, lacking, tally, buffers[node % _WRITERS]) for node, stream in enumerate(streams)]
        self._to_write: list[queue.Queue[tuple[int, Block] | None]] = [queue.Queue() for _ in range(_WRITERS)]
        self._writers: list[threading.Thread] = []
        self._over = threading.Event()
        self.problem: Exception | None = None

    def run(self) -> None:
        """Carries out all rounds; a failure on this node after the last round is left in `problem`.

        Raises:
            StorageError: a node failed during the rounds, or is lost.
        """
        rounds = max(-(-sum(file.num_bytes for file in stream) // BLOCK_BYTES) for stream in self._streams)
        reader = _thread(self._read, rounds)
        self._writers = [_thread(self._write, jobs) for jobs in self._to_write]
        try:
            for thread in (reader, *self._writers):
                with limits.starting("a thread"):
                    thread.start()
            for _ in range(rounds):
                self._round()
        finally:
            self._over.set()
            while reader.is_alive():
                with suppress(queue.Empty):
                    self._pool.put(self._prefetched.get(timeout=0.02))
            for jobs, writer in zip(self._to_write, self._writers, strict=True):
                jobs.put(None)
                if writer.ident:
                    writer.join()
        self._finish_sinks()

    def close(self) -> None:
        """Closes unfinished files; called after `run`."""
        if any(writer.is_alive() for writer in self._writers):
            return  # a second interrupt came before they ended, and this process is to end
        for sink in self._sinks:
            sink.abandon()

    def _round(self) -> None:
        """Takes the next block of this node's own stream, and passes N blocks around the ring."""
        ring, failures = self._ring, []
        block = self._prefetched.get()
        if self.problem and not block.failed:
            block.fail(str(self.problem))
        block.left, lefts = self._lacked - self._tally.written, [0] * ring.size
        for step in range(ring.size):
            origin = (ring.rank - step) % ring.size
            if block.failed:
                failures.append((origin, bytes(block.payload).decode(errors="replace")))
            lefts[origin] = block.left
            block.users = 2
            last = step == ring.size - 1
            coming = None if last else self._pool.get()
            self._to_write[origin % _WRITERS].put((origin, block))
            if coming is not None:
                ring.shift(block.data, coming.data)
            block.release()
            block = coming or block
        if self._watch:
            self._watch(lefts)
        if failures and self.problem:
            raise self.problem
        if failures:
            raise StorageError(f"staging failed on node {failures[0][0]} of {ring.size}: {failures[0][1]}")

    def _read(self, rounds: int) -> None:
        """Puts this node's own stream into the queue in blocks, then empty blocks until the last round."""
        stream = OwnStream(self._source, self._streams[self._ring.rank])
        under_way: deque[tuple[Block, Future[int]]] = deque()
        passed = 0
        try:
            with Threads(READERS, "dlio-read") as readers:
                for number in range(stream.num_blocks + READERS):
                    if self._over.is_set():
                        return
                    if number >= READERS and under_way:
                        block, reading = under_way.popleft()
                        self._tally.count(read=reading.result(), written=0)
                        self._prefetched.put(block)
                        passed += 1
                    if number < stream.num_blocks:
                        block = self._pool.get()
                        under_way.append((block, readers.submit(partial(stream.fill, block, number))))
        except Exception as error:  # whatever it is, the other nodes must learn of it
            self.problem = self.problem or error
        for _ in range(rounds - passed if not self._over.is_set() else 0):
            block = self._pool.get()
            block.seal(0)
            self._prefetched.put(block)

    def _write(self, jobs: queue.Queue[tuple[int, Block] | None]) -> None:
        while (job := jobs.get()) is not None:
            origin, block = job
            try:
                if not self.problem and not block.failed:
                    self._sinks[origin].write(block.payload)
            except Exception as error:  # whatever it is, the other nodes must learn of it
                self.problem = self.problem or error
            finally:
                block.release()

    def _finish_sinks(self) -> None:
        if self.problem:
            return  # the sink that failed may not be written again
        try:
            for sink in self._sinks:
                sink.write(memoryview(b""))
        except DlioError as error:
            self.problem = error


def _thread(work: Callable[..., None], argument: object) -> threading.Thread:
    """Returns a daemon thread: after a second interrupt the process ends without waiting for it."""
    return threading.Thread(target=work, args=(argument,), name=f"dlio-{work.__name__.strip('_')}", daemon=True)
