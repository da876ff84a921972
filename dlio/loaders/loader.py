"""Loader: batches of numpy arrays, decoded by threads ahead of need, in one order for any number of ranks."""

from __future__ import annotations

import json
import logging
import operator
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from dlio.cores import num_usable_cores
from dlio.errors import UsageError
from dlio.files import digest_bytes
from dlio.keyed import derive
from dlio.loaders.ahead import Work, ahead
from dlio.loaders.dataset import PackedSamples
from dlio.loaders.order import Shuffle, check_shuffle, epoch_order, num_lanes
from dlio.loaders.share import End, RankSteps, Share, Step, rank_steps
from dlio.loaders.stats import verdict
from dlio.manifest import Manifest
from dlio.topology import Topology

log = logging.getLogger(__name__)

_STATE_VERSION = 1
_MAX_EPOCH = 2**63 - 1
_PART_SIZE = 32  # samples that one thread decodes in a row: 20 ms of work; a first batch is shared by all threads
_SHOWN_SHARDS = 4
_AUGMENTATION = 1  # tells the keys of random boxes from those of the order


class Source(Protocol):
    """Makes batches of samples; safe for several threads."""

    @property
    def manifest(self) -> Manifest:
        """The data set."""

    def work(self, step: Step, key: int) -> Work[Any]:
        """Returns the work of making one batch; `key` names the random choices of its transform."""

    @property
    def samples(self) -> PackedSamples:
        """The data set, which keeps the time and counts what is left out."""

    def close(self) -> None:
        """Closes all files; they are opened again when needed."""


@dataclass(frozen=True, slots=True)
class ArrayBatches:
    """Makes dicts of numpy arrays (see `dlio.loaders.dataset`), written in place by several threads.

    Attributes:
        samples: the data set and its transform.
        channels_last: images are (n, H, W, 3).
        mask: adds the field `valid`, `Step.valid`.
    """

    samples: PackedSamples
    channels_last: bool = False
    mask: bool = False

    @property
    def manifest(self) -> Manifest:
        """The data set."""
        return self.samples.manifest

    def work(self, step: Step, key: int) -> Work[Any]:
        """Returns the work of making one batch, in parts that fill some rows each."""
        batch = self.samples.empty(len(step.indices), channels_last=self.channels_last)

        def fill(rows: slice) -> None:
            replaced = self.samples.fill(batch, rows.start, step.indices[rows], key)
            step.valid[replaced] = False

        parts = tuple(partial(fill, rows) for rows in parts_of(step))
        about = partial(part_name, self.samples, step)
        return Work(batch | {"valid": step.valid} if self.mask else batch, parts, about)

    def close(self) -> None:
        """Closes all files."""
        self.samples.close()


def parts_of(step: Step) -> list[slice]:
    """Returns the rows of each part of a batch."""
    return [slice(start, start + _PART_SIZE) for start in range(0, len(step.indices), _PART_SIZE)]


def part_name(samples: PackedSamples, step: Step, number: int) -> str:
    """Returns how many samples, and of which shards, part `number` of a batch holds."""
    indices, manifest = step.indices[parts_of(step)[number]], samples.manifest
    names = list(dict.fromkeys(manifest.shards[manifest.locate(samples.number(i))[0]].name for i in indices))
    more = f" and {len(names) - _SHOWN_SHARDS} more shards" if len(names) > _SHOWN_SHARDS else ""
    return f"{len(indices)} samples of {', '.join(names[:_SHOWN_SHARDS])}{more} in {manifest.root}"


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run stands: positions of every lane consumed in an epoch."""

    epoch: int = 0
    consumed: int = 0


def place_from_env() -> tuple[int, int]:
    """Returns this process's number and the world size as the launcher tells them.

    Processes are numbered node by node, whatever ranks the launcher gave them, so that the ranks which share a lane
    are on the node that holds it.

    Raises:
        LauncherError: as Topology.from_env.
    """
    place = Topology.from_env()
    if place.node_rank is None or place.num_nodes is None or place.local_rank is None:
        return place.rank, place.world_size
    if place.world_size != (place.local_world_size or 0) * place.num_nodes:
        return place.rank, place.world_size
    return place.node_rank * (place.world_size // place.num_nodes) + place.local_rank, place.world_size


class Loader:
    """Iterates over the batches of one rank; each iteration is the next epoch.

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
            lanes: see `dlio.loaders.order`; by default as the data lie: 1, or one for each part that is staged.
            end: see `dlio.loaders.share`.
            place: tells rank and world size; asked at the start of each epoch.
            num_threads: threads that read and decode; by default one for each core that may be used; 0 for none.
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
        self.lanes = num_lanes(source.manifest) if lanes is None else lanes
        self.end = end
        self.num_threads = num_usable_cores() if num_threads is None else num_threads
        if timeout is not None and not (self.num_threads and timeout > 0):
            raise UsageError(f"timeout={timeout}, num_threads={self.num_threads}: expected both above 0, or no timeout")
        self.prefetch = prefetch
        self.timeout = timeout
        self._place = place
        self._next = Progress()  # where the next iteration starts
        self._reached = Progress()  # where the run stands
        self._running: weakref.WeakSet[Generator[Any, None, None]] = weakref.WeakSet()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_running"}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        vars(self).update(state, _running=weakref.WeakSet())

    @property
    def next_epoch(self) -> int:
        """The epoch that the next iteration runs."""
        return self._next.epoch

    @property
    def reached(self) -> Progress:
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
        order = epoch_order(self.source.manifest, seed=self.seed, epoch=epoch, shuffle=self.shuffle, lanes=self.lanes)
        return rank_steps(order, self.share(), self.end)

    def __len__(self) -> int:
        """Returns the number of batches of an epoch, the same on every rank."""
        return len(self.steps(self._next.epoch))

    def __iter__(self) -> Iterator[Any]:
        """Starts the next epoch, or goes on where `load_state_dict` says.

        Raises:
            UsageError, LauncherError: as `steps`.
            CorruptRecordError, StorageError: when the batch that needs the record is reached.
        """
        progress = self._next
        whole = self.steps(progress.epoch)
        steps = RankSteps(whole.order, whole.share, self.end, progress.consumed)
        self._next = Progress(progress.epoch + 1)
        self._reached = progress
        return self._watched(self._counted(steps))

    def _counted(self, steps: RankSteps) -> Generator[Any, None, None]:
        """Yields the batches of `steps` and keeps count of what was handed out."""
        epoch = steps.order.epoch
        with closing(self.run(steps, epoch)) as batches:
            for number, batch in enumerate(batches, start=1):
                done = number == len(steps)
                self._reached = Progress(epoch + 1) if done else Progress(epoch, steps.consumed(number))
                yield batch
        if log.isEnabledFor(logging.INFO):
            log.info("epoch %d: %s", epoch, self.verdict())

    def run(self, steps: Iterable[Step], epoch: int) -> Generator[Any, None, None]:
        """Yields the batches of any steps; they count for no state.

        Raises:
            CorruptRecordError, StorageError: when the batch that needs the record is reached.
        """
        key = derive(self.seed, epoch, _AUGMENTATION)
        works = (self.source.work(step, key) for step in steps)
        made = ahead(works, self.num_threads, self.prefetch, self.timeout)
        return self._watched(self._timed(self._watched(made)))

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
        threads together; `collate_seconds` is the consumer's. `skipped` counts damaged samples since the beginning.
        """
        counted = self.source.samples.clock.sums()
        names = ("epoch_seconds", "wait_seconds", "read_seconds", "decode_seconds", "collate_seconds")
        seconds = {name: counted.get(name, 0.0) for name in names}
        counts = {"batches": int(counted.get("batches", 0)), "skipped": len(self.source.samples.skips)}
        return seconds | counts | {"num_threads": self.num_threads}

    def verdict(self) -> str:
        """Returns one line on the latest iteration: whether the trainer waited, what for, and what to do about it."""
        return verdict(self.stats(), num_usable_cores())

    def _watched(self, batches: Generator[Any, None, None]) -> Generator[Any, None, None]:
        self._running.add(batches)
        return batches

    def set_epoch(self, epoch: int) -> None:
        """Makes `epoch` the next one; a position that was loaded in this very epoch is kept."""
        if epoch != self._next.epoch:
            self._next = Progress(epoch)

    def state_dict(self) -> dict[str, int | str]:
        """Returns where the run stands, as five scalars; the same on every rank.

        Batches count when they have been handed out. Any number of ranks, threads and any batch size may go on.
        """
        return {
            "version": _STATE_VERSION,
            "order": order_id(self.source.manifest, self.shuffle, self.lanes),
            "seed": self.seed,
            "epoch": self._reached.epoch,
            "samples": self._reached.consumed * self.lanes,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Makes the next iteration go on where `state_dict` was taken; an empty state changes nothing.

        Raises:
            UsageError: the state is of another data set, order or seed, no state of a loader, or its numbers are not.
        """
        if not state:
            return
        mine = self.state_dict()
        if state.keys() != mine.keys() or state["version"] != _STATE_VERSION:
            raise UsageError(f"no state of this version of dlio's loader: {dict(state)!r:.200}")
        if state["order"] != mine["order"]:
            raise UsageError(
                f"the state belongs to another data set, shuffle or number of lanes than {self.source.manifest.root} "
                f"with shuffle={self.shuffle} and lanes={self.lanes}: go on with what it was saved with"
            )
        if state["seed"] != self.seed:
            raise UsageError(f"the state was saved with seed={state['seed']}, this loader has seed={self.seed}")
        order = epoch_order(self.source.manifest, seed=self.seed, shuffle=self.shuffle, lanes=self.lanes)
        samples = _count_in(state, "samples", int(order.lane_sizes.max()) * self.lanes)
        self._next = self._reached = Progress(_count_in(state, "epoch", _MAX_EPOCH), samples // self.lanes)

    def close(self) -> None:
        """Ends iterations that are under way and closes all files; the loader can be used again."""
        for batches in list(self._running):
            batches.close()
        self.source.close()


def _count_in(state: Mapping[str, Any], name: str, most: int) -> int:
    """Returns a count that a state holds: a whole number of any kind, such as a tensor's.

    Raises:
        UsageError: it is no whole number from 0 to `most`.
    """
    try:
        value = operator.index(state[name])
    except TypeError:
        value = -1
    if not 0 <= value <= most:
        raise UsageError(f"the state has {name}={state[name]!r}: expected a whole number from 0 to {most}")
    return value


def order_id(manifest: Manifest, shuffle: Shuffle, lanes: int) -> str:
    """Returns 32 hex digits that name the order of samples for every seed, whatever format they are packed in."""
    counts = [shard.num_samples for shard in manifest.shards]
    described = json.dumps([counts, manifest.schema.types(), manifest.origin.get("plan"), repr(shuffle), lanes])
    return digest_bytes(described.encode()).partition(":")[2]
