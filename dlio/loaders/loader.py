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
from typing import Generic, TypeVar

from dlio.errors import UsageError
from dlio.io.arrivals import arrived
from dlio.io.threads import close_at_exit
from dlio.loaders.batch_sources import ArrayBatches, BatchSource, check_source, prefetched_batches
from dlio.loaders.batches import transform_key
from dlio.loaders.sampling.mixed_order import MixedOrder
from dlio.loaders.sampling.order import EpochOrder, Shuffle, check_shuffle, num_lanes
from dlio.loaders.sampling.rank import num_cores_of_rank, rank_from_env
from dlio.loaders.sampling.rank_share import End, RankSteps, Share, Step, rank_steps
from dlio.loaders.sampling.state import Position, Progress, Run, State, position_after
from dlio.loaders.staging_line import shown
from dlio.loaders.stats import figures, verdict

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
        check_source(source)
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
        self._progress = Progress()
        self._arrived_before: Mapping[str, float] = {}  # the latest iteration
        self._running: weakref.WeakKeyDictionary[Iteration, int] = weakref.WeakKeyDictionary()  # their epochs

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in vars(self).items() if name != "_running"}

    def __setstate__(self, state: Mapping[str, object]) -> None:
        vars(self).update(state, _running=weakref.WeakKeyDictionary())

    @property
    def next_epoch(self) -> int:
        """The epoch that the next iteration runs."""
        return self._progress.next.epoch

    @property
    def epoch(self) -> int:
        """The epoch of the running iteration (of the latest, if several run), else the next."""
        running = [epoch for batches, epoch in self._running.items() if getgeneratorstate(batches) != GEN_CLOSED]
        return running[-1] if running else self.next_epoch

    @property
    def reached(self) -> Position:
        """How far the run is; after an epoch's last batch, the start of the next epoch."""
        return self._progress.reached

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
        return len(self.steps(self.next_epoch))

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
        start = self._progress.next
        steps = self._steps_from(start)
        self._progress.begin()
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
                self._progress.hand_out(position_after(steps, number))
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
        samples = self.source.samples
        found = figures(samples.clock.sums(), self._arrived_before, arrived(samples.opened.fillings))
        return found | {"skipped": len(samples.skips), "num_threads": self.num_threads}

    def verdict(self) -> str:
        """Returns one line on the latest iteration: how long the trainer waited, why, and what to change."""
        manifest = self.source.samples.manifest
        faster = "" if manifest.decode_ready.records else "--decode-ready"
        if faster and not any(shard.crop_ready for shard in manifest.shards):
            faster = "--crop-ready or --decode-ready"
        return verdict(self.stats(), num_cores_of_rank(), faster=faster)

    def _watched(self, batches: Generator[C, None, None], epoch: int) -> Generator[C, None, None]:
        self._running[batches] = epoch
        close_at_exit(batches)
        return batches

    def set_epoch(self, epoch: int) -> None:
        """Makes `epoch` the next one; keeps a loaded position in the same epoch."""
        self._progress.set_epoch(epoch)

    def _run(self) -> Run:
        return Run(self.source.samples.manifest, self.shuffle, self.seed, self.lanes, self._order)

    def state_dict(self) -> State:
        """Returns the state of the run: five scalars, the same on every rank.

        It counts the batches that were handed out. A run may resume with any number of ranks, threads, and batch size.
        """
        return self._run().state(self.reached)

    def state_before(self) -> State:
        """Returns the state before the batch that was handed out last, which is then the next one again."""
        return self._run().state(self._progress.before)

    def state_after(self, epoch: int, num_batches: int) -> State:
        """Returns the state after a number of batches of an epoch, for a consumer that takes batches ahead of use.

        Args:
            epoch: the epoch. Where `load_state_dict` has loaded a position in it, its batches count from there.
            num_batches: how many of its batches were used.

        Raises:
            UsageError: the epoch has fewer batches.
        """
        loaded = self._progress.loaded
        steps = self._steps_from(loaded if epoch == loaded.epoch else Position(epoch))
        if not 0 <= num_batches <= len(steps):
            raise UsageError(f"{num_batches} batches of epoch {epoch}: expected 0 to {len(steps)}")
        return self._run().state(position_after(steps, num_batches))

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Makes the next iteration resume where `state_dict` was taken; an empty state changes nothing.

        Raises:
            UsageError: the state is malformed, or of another data set, order or seed.
        """
        if state:
            self._progress.load(self._run().position(state))

    def close(self) -> None:
        """Ends running iterations and closes all files; the loader can be used again."""
        for batches in list(self._running):
            batches.close()
        self.source.samples.close()
