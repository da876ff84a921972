"""Loader: batches of numpy arrays, decoded by threads ahead of need, in one order for any number of ranks.

The adapters of the frameworks, and whoever has none of them, iterate over it:

    from dlio.images import RandomResizedCrop
    from dlio.loaders.dataset import PackedSamples
    from dlio.loaders.loader import Loader
    from dlio.loaders.sources import ArrayBatches

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
from typing import Any

from dlio.errors import UsageError
from dlio.loaders._prefetch.batch_sources import Source
from dlio.loaders._prefetch.prefetch import ahead
from dlio.loaders.batches import transform_key
from dlio.loaders.sampling.order import Shuffle, check_shuffle, epoch_order, num_lanes
from dlio.loaders.sampling.rank import num_cores_of_rank, place_from_env
from dlio.loaders.sampling.rank_share import End, RankSteps, Share, Step, rank_steps
from dlio.loaders.sampling.state import Position, Run, State
from dlio.loaders.stats import verdict

log = logging.getLogger(__name__)

_Running = weakref.WeakKeyDictionary[Generator[Any, None, None], int]  # iterations, each with its epoch


class Loader:
    """Iterates over the batches of one rank (`dlio.loaders.batches`); each iteration is the next epoch.

    Used by one thread; pickles, and survives fork, between iterations.
    """

    def __init__(
        self,
        source: Source,
        batch_size: int,
        *,
        shuffle: Shuffle = False,
        seed: int = 0,
        lanes: int | None = None,
        end: End = End.DROP,
        place: Callable[[], tuple[int, int]] = place_from_env,
        num_threads: int | None = None,
        prefetch: int = 2,
        timeout: float | None = None,
    ) -> None:
        """Plans nothing and reads nothing yet.

        Args:
            source: makes the batches, usually `ArrayBatches(PackedSamples(folder, transform))`.
            batch_size: samples of one rank's batch.
            shuffle: False, True or `Window(w)`.
            seed: of order and transform, the same on every rank.
            lanes: see `dlio.loaders.sampling.order`; by default 1, or one for each part that is staged.
            end: see `dlio.loaders.sampling.rank_share`.
            place: tells rank and world size; asked at the start of each epoch.
            num_threads: threads that read and decode; 0 for none. By default one for each core that may be used; ranks
                of a node that are not bound to cores of their own divide these. Where storage is slow, up to 64 more
                read ahead.
            prefetch: batches made ahead of the one in use.
            timeout: seconds to wait for a batch at most; it needs threads.

        Raises:
            UsageError: a number out of its range, or something else in its place.
        """
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
        source.samples.keep_memory(prefetch + 2, batch_size)  # one in use, another asked for meanwhile
        self.timeout = timeout
        self._place = place
        self._next = Position()  # where the next iteration starts
        self._reached = Position()  # where the run stands
        self._running: _Running = weakref.WeakKeyDictionary()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_running"}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        vars(self).update(state, _running=weakref.WeakKeyDictionary())

    @property
    def next_epoch(self) -> int:
        """The epoch that the next iteration runs."""
        return self._next.epoch

    @property
    def epoch(self) -> int:
        """The epoch of the iteration that is under way, of the latest where there are several, else the next."""
        under_way = [epoch for batches, epoch in self._running.items() if getgeneratorstate(batches) != GEN_CLOSED]
        return under_way[-1] if under_way else self.next_epoch

    @property
    def reached(self) -> Position:
        """Where the run stands; at an epoch's end, at the start of the next."""
        return self._reached

    def share(self) -> Share:
        """Returns this rank's part of every global batch.

        Raises:
            UsageError: the numbers cannot be shared out evenly.
            LauncherError: the launcher's variables contradict each other.
        """
        return Share(*self._place(), self.batch_size, self.lanes)

    def steps(self, epoch: int) -> RankSteps:
        """Returns this rank's steps of a whole epoch.

        Raises:
            UsageError: not a single batch would come of it, or the numbers cannot be shared out evenly.
            LauncherError: the launcher's variables contradict each other.
        """
        manifest = self.source.samples.manifest
        order = epoch_order(manifest, seed=self.seed, epoch=epoch, shuffle=self.shuffle, lanes=self.lanes)
        return rank_steps(order, self.share(), self.end)

    def __len__(self) -> int:
        """Returns the number of batches of a whole epoch, the same on every rank.

        As in torchdata's StatefulDataLoader, that is so too where the next iteration goes on in the middle of one.
        """
        return len(self.steps(self._next.epoch))

    def __iter__(self) -> Iterator[Any]:
        """Starts the next epoch, or goes on where `load_state_dict` says.

        Raises:
            UsageError, LauncherError: as `steps`.
            CorruptRecordError, StorageError: when the batch that needs the record is reached.
        """
        start = self._next
        whole = self.steps(start.epoch)
        steps = RankSteps(whole.order, whole.share, self.end, start.consumed)
        self._next = Position(start.epoch + 1)
        self._reached = start
        return self._watched(self._counted(steps), start.epoch)

    def _counted(self, steps: RankSteps) -> Generator[Any, None, None]:
        """Yields the batches of `steps` and keeps count of what was handed out."""
        epoch = steps.order.epoch
        with closing(self.run(steps, epoch)) as batches:
            for number, batch in enumerate(batches, start=1):
                done = number == len(steps)
                self._reached = Position(epoch + 1) if done else Position(epoch, steps.consumed(number))
                yield batch
        if log.isEnabledFor(logging.INFO):
            log.info("epoch %d: %s", epoch, self.verdict())

    def run(self, steps: Iterable[Step], epoch: int) -> Generator[Any, None, None]:
        """Yields the batches of any steps; they count for no state.

        Raises:
            CorruptRecordError, StorageError: when the batch that needs the record is reached.
        """
        key = self.key(epoch)
        works = (self.source.work(step, key) for step in steps)
        made = ahead(works, self.num_threads, self.prefetch, self.timeout)
        return self._watched(self._timed(self._watched(made, epoch)), epoch)

    def key(self, epoch: int) -> int:
        """Returns what names the random choices of the transforms in an epoch."""
        return transform_key(self.seed, epoch)

    def _timed(self, made: Generator[Any, None, None]) -> Generator[Any, None, None]:
        """Yields what is made, and keeps the time that the consumer waits for it."""
        clock = self.source.samples.clock
        clock.clear()
        with closing(made), clock.stage("epoch"):
            while True:
                with clock.stage("wait"):
                    batch = next(made, None)
                if batch is None:
                    return
                clock.add("batches", 1)
                yield batch

    def stats(self) -> dict[str, float | int]:
        """Returns where the time of the latest iteration went.

        `epoch_seconds` runs while batches are asked for and used, and is known when the iteration has ended;
        `wait_seconds` is what the consumer spent waiting for batches; `read_seconds` and `decode_seconds` are of all
        threads that decode together, of reads ahead of need what was waited for; `collate_seconds` is the consumer's.
        `skipped` counts damaged samples since the beginning.
        """
        counted = self.source.samples.clock.sums()
        names = ("epoch_seconds", "wait_seconds", "read_seconds", "decode_seconds", "collate_seconds")
        seconds = {name: counted.get(name, 0.0) for name in names}
        counts = {"batches": int(counted.get("batches", 0)), "skipped": len(self.source.samples.skips)}
        return seconds | counts | {"num_threads": self.num_threads}

    def verdict(self) -> str:
        """Returns one line on the latest iteration: whether the trainer waited, what for, and what to do about it."""
        ready = any(shard.crop_ready for shard in self.source.samples.manifest.shards)
        return verdict(self.stats(), num_cores_of_rank(), crop_ready=ready)

    def _watched(self, batches: Generator[Any, None, None], epoch: int) -> Generator[Any, None, None]:
        self._running[batches] = epoch
        return batches

    def set_epoch(self, epoch: int) -> None:
        """Makes `epoch` the next one; a position that was loaded in this very epoch is kept."""
        if epoch != self._next.epoch:
            self._next = Position(epoch)

    def _run(self) -> Run:
        return Run(self.source.samples.manifest, self.shuffle, self.seed, self.lanes)

    def state_dict(self) -> State:
        """Returns where the run stands, as five scalars; the same on every rank.

        Batches count when they have been handed out. Any number of ranks, threads and any batch size may go on.
        """
        return self._run().state(self._reached)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Makes the next iteration go on where `state_dict` was taken; an empty state changes nothing.

        Raises:
            UsageError: the state is of another data set, order or seed, no state of a loader, or its numbers are not.
        """
        if state:
            self._next = self._reached = self._run().position(state)

    def close(self) -> None:
        """Ends iterations that are under way and closes all files; the loader can be used again."""
        for batches in list(self._running):
            batches.close()
        self.source.samples.close()
