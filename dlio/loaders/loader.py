"""Loader: batches of numpy arrays, which threads decode ahead of use, in one order for any number of ranks.

It needs no framework, and the adapters of the frameworks are built on it:

    from dlio.images import RandomResizedCrop
    from dlio.loaders.dataset import PackedSamples
    from dlio.loaders.loader import ArrayBatches, Loader

    source = ArrayBatches(PackedSamples("packed", RandomResizedCrop(224, flip=True)), channels_last=True)
    for batch in Loader(source, 256, shuffle=True):  # {"image": uint8 (256, 224, 224, 3), "label": int64 (256,)}
        ...
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing
from inspect import GEN_CLOSED, getgeneratorstate
from pathlib import Path
from typing import Generic, TypeVar

from dlio.dataset.manifest import Manifest
from dlio.errors import UsageError
from dlio.io.arrivals import arrived
from dlio.io.threads import close_at_exit
from dlio.loaders.batch_sources import ArrayBatches, BatchSource, prefetched_batches
from dlio.loaders.batches import transform_key
from dlio.loaders.sampling.mixed_order import MixedOrder
from dlio.loaders.sampling.order import EpochOrder, Shuffle, check_shuffle, num_lanes
from dlio.loaders.sampling.rank import num_cores_of_rank, rank_from_env
from dlio.loaders.sampling.rank_share import End, RankSteps, Share, Step, rank_steps
from dlio.loaders.sampling.state import Position, Run, State
from dlio.loaders.staging_line import shown
from dlio.loaders.stats import verdict

__all__ = ["ArrayBatches", "Loader"]

log = logging.getLogger(__name__)

B = TypeVar("B")  # a batch
C = TypeVar("C")  # what is made of it
Iteration = Generator[object, None, None]


class Loader(Generic[B]):
    """Iterates over the batches of one rank (see `dlio.loaders.batches`); each iteration is the next epoch.

    For one thread. Can be pickled and forked between iterations.
    """

    def __init__(
        self,
        source: BatchSource[B],
        batch_size: int,
        *,
        shuffle: Shuffle = False,
        seed: int = 0,
        lanes: int | None = None,
        end: End = End.DROP,
        rank_and_size: Callable[[], tuple[int, int]] = rank_from_env,
        num_threads: int | None = None,
        prefetch: int = 2,
        timeout: float | None = None,
    ) -> None:
        """Prepares a loader; plans and reads nothing yet.

        Args:
            source: makes the batches, usually `ArrayBatches(PackedSamples(folder, transform))`.
            batch_size: samples of one rank's batch.
            shuffle: False, True or `Window(w)`.
            seed: of order and transform, the same on every rank.
            lanes: see `dlio.loaders.sampling.order`; by default 1, or one for each part that is staged.
            end: see `dlio.loaders.sampling.rank_share`.
            rank_and_size: returns both; called at the start of each epoch.
            num_threads: threads that read and decode; 0 for none. By default one for each core of this rank (see
                `num_cores_of_rank`). If storage is slow, up to 64 more threads read ahead.
            prefetch: batches made ahead of the one in use.
            timeout: seconds to wait for a batch; needs threads.

        Raises:
            UsageError: an argument is out of range or of a wrong type.
        """
        if isinstance(source, str | Path | Manifest):
            advice = (
                "give ArrayBatches(PackedSamples(folder)), or take a framework's loader, as dlio.loaders.torch has it"
            )
            raise UsageError(f"{source!r} makes no batches: {advice}")
        check_shuffle(shuffle)
        if prefetch < 1 or (num_threads is not None and num_threads < 0):
            raise UsageError(f"prefetch={prefetch}, num_threads={num_threads}: expected at least 1 and at least 0")
        self.source = source
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.seed = seed
        self.lanes = num_lanes(source.samples.manifest) if lanes is None else lanes
        self.end = end
        self.num_threads = num_cores_of_rank() if num_threads is None else num_threads
        if timeout is not None and not (self.num_threads and timeout > 0):
            raise UsageError(f"timeout={timeout}, num_threads={self.num_threads}: expected both above 0, or no timeout")
        self.prefetch = prefetch
        source.samples.keep_memory(prefetch + 2, batch_size)  # one in use, and one more while the next is asked for
        self.timeout = timeout
        self._rank_and_size = rank_and_size
        self._next = Position()  # where the next iteration starts
        self._reached = Position()  # how far the run is
        self._before = Position()  # where the batch that was handed out last begins
        self._loaded = Position()  # where it started
        self._arrived_before: Mapping[str, float] = {}  # the latest iteration
        self._running: weakref.WeakKeyDictionary[Iteration, int] = weakref.WeakKeyDictionary()  # their epochs

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in vars(self).items() if name != "_running"}

    def __setstate__(self, state: Mapping[str, object]) -> None:
        vars(self).update(state, _running=weakref.WeakKeyDictionary())

    @property
    def next_epoch(self) -> int:
        """The epoch that the next iteration runs."""
        return self._next.epoch

    @property
    def epoch(self) -> int:
        """The epoch of the running iteration (of the latest, if several run), else the next."""
        running = [epoch for batches, epoch in self._running.items() if getgeneratorstate(batches) != GEN_CLOSED]
        return running[-1] if running else self.next_epoch

    @property
    def reached(self) -> Position:
        """How far the run is; after an epoch's last batch, the start of the next epoch."""
        return self._reached

    def share(self) -> Share:
        """Returns this rank's share of every global batch.

        Raises:
            UsageError: batch size, lanes and world size do not divide evenly.
            LauncherError: the launcher's variables contradict each other.
        """
        return Share(*self._rank_and_size(), self.batch_size, self.lanes)

    def steps(self, epoch: int) -> RankSteps:
        """Returns this rank's steps of a whole epoch.

        Raises:
            UsageError: there is no whole batch, or the numbers do not divide evenly.
            LauncherError: the launcher's variables contradict each other.
        """
        return rank_steps(self._order(epoch), self.share(), self.end)

    def _order(self, epoch: int) -> EpochOrder | MixedOrder:
        return self.source.samples.numbering.order(seed=self.seed, epoch=epoch, shuffle=self.shuffle, lanes=self.lanes)

    def __len__(self) -> int:
        """Returns the number of batches of a whole epoch, the same on every rank.

        It stays the same if the next iteration resumes within an epoch, as in torchdata's StatefulDataLoader.
        """
        return len(self.steps(self._next.epoch))

    def __iter__(self) -> Iterator[B]:
        """Starts the next epoch, or resumes at the position that `load_state_dict` has set.

        Raises:
            UsageError, LauncherError: as `steps`.
            CorruptRecordError, StorageError: raised at the batch with the record.
        """
        return self.through(lambda batch: batch)

    def through(
        self,
        convert: Callable[[B], C],
        then: Callable[[Generator[C, None, None]], Generator[C, None, None]] = lambda batches: batches,
    ) -> Iterator[C]:
        """Starts an epoch as `__iter__`, and yields what is made of its batches; the state counts these.

        Args:
            convert: makes it of one batch, in the consumer's thread.
            then: may take converted batches ahead of use.
        """
        start = self._next
        steps = self._steps_from(start)
        self._next, self._reached, self._before = Position(start.epoch + 1), start, start
        return self._watched(self._counted(steps, then(self.run(steps, start.epoch, convert))), start.epoch)

    def _steps_from(self, start: Position) -> RankSteps:
        """Returns this rank's steps of an epoch from `start` on; raises as `steps`."""
        whole = self.steps(start.epoch)
        return RankSteps(whole.order, whole.share, self.end, start.consumed)

    def _counted(self, steps: RankSteps, batches: Generator[C, None, None]) -> Generator[C, None, None]:
        """Yields batches, one for each of `steps`, and counts them."""
        number = 0
        with closing(batches):
            for batch in batches:
                number += 1  # `enumerate` would keep the batch
                self._before, self._reached = self._reached, _position_after(steps, number)
                yield batch
                del batch  # its memory may be the next one's, unless the consumer keeps it
        if log.isEnabledFor(logging.INFO):
            log.info("epoch %d: %s", steps.order.epoch, self.verdict())

    def run(self, steps: Iterable[Step], epoch: int, convert: Callable[[B], C]) -> Generator[C, None, None]:
        """Yields what `convert` makes of the batches of any steps, without a change of the state.

        Raises:
            CorruptRecordError, StorageError: raised at the batch with the record.
        """
        key = transform_key(self.seed, epoch)
        if isinstance(steps, RankSteps):
            self.source.samples.opened.expect(steps)
        ahead = {"num_threads": self.num_threads, "prefetch": self.prefetch, "timeout": self.timeout}
        made = prefetched_batches(self.source, steps, key, **ahead)  # type: ignore[arg-type]
        return self._watched(self._timed(made, convert), epoch)

    def _timed(self, made: Generator[B, None, None], convert: Callable[[B], C]) -> Generator[C, None, None]:
        """Yields the converted batches, and measures how long the consumer waits for them."""
        clock, fillings = self.source.samples.clock, self.source.samples.opened.fillings
        clock.clear()
        self._arrived_before = arrived(fillings)
        with closing(made), clock.stage("epoch"), shown(fillings, self._rank_and_size, self.stats):
            while True:
                try:
                    with clock.stage("wait"):
                        batch = next(made)
                except StopIteration:
                    return
                clock.add("batches", 1)
                converted = convert(batch)
                del batch
                yield converted
                del converted  # as in `_counted`

    def stats(self) -> dict[str, float | int]:
        """Returns the times and counts of the latest iteration.

        `epoch_seconds` is its duration, known when it has ended. `wait_seconds` is the consumer's wait for batches.
        `read_seconds` and `decode_seconds` are sums over all decoding threads; of reads ahead of use only the wait
        counts. `collate_seconds` is spent in the consumer's thread. `skipped` counts all damaged samples so far.

        `disk_bytes`, `peer_bytes` and `source_bytes` were read from the node's storage, and waited for from other nodes
        and from the data set's source, while it is being staged (the first roughly, by the mean size of a sample).
        `peer_seconds` and `source_seconds` are these waits, summed over all threads, those that read ahead included.
        """
        counted = self.source.samples.clock.sums()
        names = ("epoch_seconds", "wait_seconds", "read_seconds", "decode_seconds", "collate_seconds")
        seconds = {name: counted.get(name, 0.0) for name in names}
        counts = {"batches": int(counted.get("batches", 0)), "skipped": len(self.source.samples.skips)}
        return seconds | counts | {"num_threads": self.num_threads} | self._origins(counted.get("read_bytes", 0))

    def _origins(self, read_bytes: float) -> dict[str, float | int]:
        """Returns where the bytes of the latest iteration came from, and how long threads waited for them."""
        now = arrived(self.source.samples.opened.fillings)
        since = {name: n - self._arrived_before.get(name, 0) for name, n in now.items()}
        waited = {name: since.get(name, 0.0) for name in ("peer_seconds", "source_seconds")}
        away = {name: int(since.get(name, 0)) for name in ("peer_bytes", "source_bytes")}
        return {"disk_bytes": max(0, int(read_bytes) - sum(away.values()))} | away | waited

    def verdict(self) -> str:
        """Returns one line on the latest iteration: how long the trainer waited, why, and what to change."""
        ready = any(shard.crop_ready for shard in self.source.samples.manifest.shards)
        return verdict(self.stats(), num_cores_of_rank(), crop_ready=ready)

    def _watched(self, batches: Generator[C, None, None], epoch: int) -> Generator[C, None, None]:
        self._running[batches] = epoch
        close_at_exit(batches)
        return batches

    def set_epoch(self, epoch: int) -> None:
        """Makes `epoch` the next one; keeps a loaded position in the same epoch."""
        if epoch != self._next.epoch:
            self._next = self._loaded = Position(epoch)

    def _run(self) -> Run:
        return Run(self.source.samples.manifest, self.shuffle, self.seed, self.lanes, self._order)

    def state_dict(self) -> State:
        """Returns the state of the run: five scalars, the same on every rank.

        It counts the batches that were handed out. A run may resume with any number of ranks, threads, and batch size.
        """
        return self._run().state(self._reached)

    def state_before(self) -> State:
        """Returns the state before the batch that was handed out last, which is then the next one again."""
        return self._run().state(self._before)

    def state_after(self, epoch: int, num_batches: int) -> State:
        """Returns the state after a number of batches of an epoch, for a consumer that takes batches ahead of use.

        Args:
            epoch: the epoch. Where `load_state_dict` has loaded a position in it, its batches count from there.
            num_batches: how many of its batches were used.

        Raises:
            UsageError: the epoch has fewer batches.
        """
        steps = self._steps_from(self._loaded if epoch == self._loaded.epoch else Position(epoch))
        if not 0 <= num_batches <= len(steps):
            raise UsageError(f"{num_batches} batches of epoch {epoch}: expected 0 to {len(steps)}")
        return self._run().state(_position_after(steps, num_batches))

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Makes the next iteration resume where `state_dict` was taken; an empty state changes nothing.

        Raises:
            UsageError: the state is malformed, or of another data set, order or seed.
        """
        if state:
            self._next = self._reached = self._before = self._loaded = self._run().position(state)

    def close(self) -> None:
        """Ends running iterations and closes all files; the loader can be used again."""
        for batches in list(self._running):
            batches.close()
        self.source.samples.close()


def _position_after(steps: RankSteps, number: int) -> Position:
    """Returns the position after a number of `steps`."""
    epoch = steps.order.epoch
    return Position(epoch + 1) if number == len(steps) else Position(epoch, steps.consumed(number))
