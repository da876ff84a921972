"""Loader: batches of numpy arrays, which threads decode ahead of use, in one order for any number of ranks.

It needs no framework, and the adapters of the frameworks are built on it:

    from dlio.images import RandomResizedCrop
    from dlio.loaders.loader import Loader

    for batch in Loader("packed", 256, transform=RandomResizedCrop(224, flip=True), shuffle=True):
        ...  # {"image": uint8 (256, 224, 224, 3), "label": int64 (256,)}
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial
from inspect import GEN_CLOSED, getgeneratorstate
from typing import Any, Generic, TypeVar, Unpack, overload

from dlio.errors import UsageError
from dlio.io.arrivals import arrived
from dlio.io.threads import close_at_exit
from dlio.loaders.batch_sources import ArrayBatches, BatchSource, ProcessSource, source_of
from dlio.loaders.dataset import Batch
from dlio.loaders.mixture import Data
from dlio.loaders.options import Keywords, check_number, options_of, takes_options
from dlio.loaders.prefetch.work import prefetched
from dlio.loaders.sampling.mixed_order import MixedOrder
from dlio.loaders.sampling.order import EpochOrder, num_lanes
from dlio.loaders.sampling.rank import num_cores_of_rank, place_of
from dlio.loaders.sampling.rank_share import End, RankSteps, Share, Step, rank_steps
from dlio.loaders.sampling.state import Position, Progress, Run, State, position_after
from dlio.loaders.stats import figures, staging_shown, verdict
from dlio.random_keys import derive

__all__ = ["ArrayBatches", "Loader"]

log = logging.getLogger(__name__)
_TRANSFORM = 1  # separates keys of transforms from those of other random choices, such as the order

B = TypeVar("B")  # a batch
C = TypeVar("C")  # what is made of it
Iteration = Generator[object, None, None]
Place = Callable[[], tuple[int, int]] | None


class Loader(Generic[B]):
    """Iterates over the batches of one rank (see `dlio.loaders.batches`); each iteration is the next epoch.

    For one thread. Can be pickled and forked between iterations.
    """

    @overload
    def __init__(
        self: Loader[Batch],
        data: Data,
        batch_size: int,
        *,
        channels_last: bool = True,
        rank_and_size: Place = None,
        **keywords: Unpack[Keywords],
    ) -> None: ...

    @overload
    def __init__(
        self, data: BatchSource[B], batch_size: int, *, rank_and_size: Place = None, **keywords: Unpack[Keywords]
    ) -> None: ...

    @takes_options()
    def __init__(
        self,
        data: Data | BatchSource[Any],
        batch_size: int,
        *,
        channels_last: bool = True,
        rank_and_size: Place = None,
        **keywords: Unpack[Keywords],
    ) -> None:
        """Opens a data set; shards are opened on demand.

        Args:
            data: the folder or URL of a data set, a manifest or a `Mixture`; or a source as `ArrayBatches(samples)`.
            batch_size: samples of one rank's batch.
            channels_last: whether images are (n, height, width, 3), or (n, 3, height, width).
            rank_and_size: returns both, instead of `rank` and `world_size`; called at the start of each epoch.
            **keywords: see `dlio.loaders.options.Options`.

        Raises:
            ManifestError, UsageError: the folder holds no data set; an argument is out of range or of a wrong type.
        """
        options = options_of(keywords)
        check_number("batch_size", batch_size, 1)
        self.source: BatchSource[B] = source_of(data, options, channels_last=channels_last)
        self.batch_size = batch_size
        self.shuffle, self.seed, self.end = options.shuffle, options.seed, End(options.end)
        self.lanes = num_lanes(self.source.samples.manifest) if options.lanes is None else options.lanes
        self.num_workers = num_cores_of_rank() if options.num_workers is None else options.num_workers
        self.prefetch, self.timeout = options.prefetch, options.timeout or None
        self.source.samples.keep_memory(self.prefetch + 2, batch_size)  # one in use, one while the next is asked for
        self.source.samples.num_threads = self.num_workers
        self._rank_and_size = rank_and_size or partial(place_of, options.rank, options.world_size)
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

    def __iter__(self) -> Generator[B, None, None]:
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
    ) -> Generator[C, None, None]:
        """Starts an epoch as `__iter__`, and yields what is made of its batches; the state counts these.

        Args:
            convert: makes it of one batch, in the consumer's thread.
            then: may take converted batches ahead of use.
        """
        epoch = self.next_epoch
        steps = self.steps_left(epoch)
        self._progress.begin()
        return self._watched(self._counted(steps, then(self.run(steps, epoch, convert))), epoch)

    def steps_left(self, epoch: int) -> RankSteps:
        """Returns this rank's steps of an epoch from a position on that is loaded in it; raises as `steps`."""
        whole, loaded = self.steps(epoch), self._progress.loaded
        return replace(whole, start=loaded.consumed) if epoch == loaded.epoch else whole

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
        key, source = derive(self.seed, epoch, _TRANSFORM), self.source
        if isinstance(steps, RankSteps):
            source.samples.opened.expect(steps)
        if self.num_workers and isinstance(source, ProcessSource):
            made = source.prefetched(steps, key, self.prefetch, self.timeout)
        else:
            works = (source.work(step, key) for step in steps)
            made = prefetched(works, self.num_workers, self.prefetch, self.timeout)
        return self._watched(self._timed(made, convert), epoch)

    def _timed(self, made: Generator[B, None, None], convert: Callable[[B], C]) -> Generator[C, None, None]:
        """Yields the converted batches, and measures how long the consumer waits for them."""
        clock, fillings = self.source.samples.clock, self.source.samples.opened.fillings
        clock.clear()
        self._arrived_before = arrived(fillings)
        with closing(made), clock.stage("epoch"), staging_shown(fillings, self._rank_and_size, self.stats):
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
        return found | {"skipped": len(samples.skips), "num_workers": self.num_workers}

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
        steps = self.steps_left(epoch)
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
