"""Batches whose transform is written in Python, made by worker processes.

Threads would share Python's lock. So torch's own worker processes run the transform and `collate_fn`, and hand over
whole batches in shared memory. What a batch holds, its order, the state of a run and errors are as with threads.

    this process     steps of the epoch -> numbers and key of each batch          batches, in order, and times
    worker process   read, decode, transform, collate into shared memory

Python's random generators, torch's and NumPy's are seeded for each batch by the seed of the run, the epoch and its
first sample. So a run can be repeated, with any number of workers.
"""

from __future__ import annotations

import pickle
import random
import sys
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.utils.data

from dlio.errors import TimedOutError
from dlio.loaders.batch_sources import described
from dlio.loaders.dataset import PackedSamples
from dlio.loaders.prefetch.work import Work
from dlio.loaders.sampling.rank_share import Step
from dlio.loaders.torch.dataset import PackedDataset
from dlio.loaders.torch.samples import ItemBatches, Items
from dlio.random_keys import derive

_PYTHONS = 3  # separates the seeds of Python's generators from other keys
_TIMED_OUT = "DataLoader timed out"  # the message of torch


@dataclass(frozen=True, slots=True)
class Collated:
    """A batch that a worker has collated, and `Step.valid`."""

    batch: Any
    valid: npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class _Done:
    made: Collated | None
    error: Exception | None
    note: str  # the error's traceback
    seconds: dict[str, float]


def is_for_processes(dataset: PackedDataset) -> bool:
    """Returns whether the transform is a function in Python, whose lock threads would share."""
    has_lock = getattr(sys, "_is_gil_enabled", lambda: True)()
    return has_lock and callable(dataset.transform) and dataset.transform is not dataset.packed.transform


class ProcessBatches:
    """Makes batches in worker processes: a `BatchSource` and a `ProcessSource`.

    Pickles, and forks between iterations, without its processes.
    """

    def __init__(self, items: ItemBatches, collate: Callable[[list[Any]], Any], options: Mapping[str, Any]) -> None:
        """Starts nothing yet.

        Args:
            items: makes the samples of a batch.
            collate: makes a batch of them, in the worker.
            options: of torch's DataLoader, about its workers.
        """
        self._items, self._collate, self._options = items, collate, dict(options)
        self._persistent: tuple[_Tasks, _Workers, Iterator[_Done]] | None = None

    def __getstate__(self) -> dict[str, object]:
        return vars(self) | {"_persistent": None}

    @property
    def samples(self) -> PackedSamples:
        """The data set, with its clock and its count of skipped samples."""
        return self._items.samples

    def work(self, step: Step, key: int) -> Work[Items]:
        """Returns the work of making the samples of one batch in this process."""
        return self._items.work(step, key)

    def prefetched(
        self, steps: Iterable[Step], key: int, prefetch: int, timeout: float | None
    ) -> Generator[Collated, None, None]:
        """Yields the batch of each step, in order; each worker makes up to `prefetch` ahead of use.

        Raises:
            Exception: what reading, the transform or `collate_fn` raised in a worker.
            TimedOutError: a batch took longer than `timeout` seconds.
        """
        tasks, made = self._started(steps, key, prefetch, timeout)
        is_over = False
        try:
            for done in made:
                tasks.begun.popleft()
                yield self._taken(done)
                del done  # and the memory of its batch
            is_over = True
        except RuntimeError as error:
            if not str(error).startswith(_TIMED_OUT):
                raise
            late = described(self.samples, tasks.begun[0].indices)
            advice = "check the storage and the transform, or give more time"
            raise TimedOutError(f"a batch took longer than {timeout:g} s, that of {late}: {advice}") from None
        finally:
            if not (is_over and self._options["persistent_workers"]):
                _end(made)
                self._persistent = None

    def end(self) -> None:
        """Ends the processes that persist; they start again when needed."""
        if self._persistent is not None:
            _end(self._persistent[2])
        self._persistent = None

    def _started(
        self, steps: Iterable[Step], key: int, prefetch: int, timeout: float | None
    ) -> tuple[_Tasks, Iterator[_Done]]:
        """Returns the tasks and results of workers, started or, if they persist, still running."""
        if self._persistent is None:
            tasks = _Tasks()
            workers = _Workers(
                _Maker(self._items, self._collate),  # type: ignore[arg-type]  # it has what a map-style data set needs
                batch_size=None,
                sampler=tasks,
                collate_fn=_as_made,
                prefetch_factor=prefetch,
                timeout=timeout or 0,
                **self._options,
            )
        else:
            tasks, workers, _ = self._persistent
        tasks.begin(steps, key)
        made = iter(workers)
        if self._options["persistent_workers"]:
            self._persistent = tasks, workers, made
        return tasks, made

    def _taken(self, done: _Done) -> Collated:
        for name, seconds in done.seconds.items():
            self.samples.clock.add(name, seconds)
        if done.error is not None:
            done.error.add_note(done.note)
            raise done.error
        assert done.made is not None
        return done.made


class _Workers(torch.utils.data.DataLoader[Any]):
    """torch's DataLoader, without its advice about the number of processes."""

    def check_worker_number_rationality(self) -> None:
        """Does nothing: the number is the user's."""


class _Tasks:
    """The sampler of the workers: yields the step and key of each batch of an epoch.

    Attributes:
        begun: the steps that were yielded, and whose batches were not taken.
    """

    def begin(self, steps: Iterable[Step], key: int) -> None:
        """Starts an epoch."""
        self._steps, self._key, self.begun = steps, key, deque[Step]()

    def __iter__(self) -> Iterator[tuple[Step, int]]:
        for step in self._steps:
            self.begun.append(step)
            yield step, self._key


def _end(made: Iterator[_Done]) -> None:
    """Ends the workers; else they would live as long as a traceback refers to torch's iterator."""
    if shut_down := getattr(made, "_shutdown_workers", None):
        shut_down()


@dataclass(frozen=True, slots=True)
class _Maker:
    """Makes the batch of a task; the map-style data set of the workers."""

    items: ItemBatches
    collate: Callable[[list[Any]], Any]

    def __getitem__(self, task: tuple[Step, int]) -> _Done:
        (step, key), clock = task, self.items.samples.clock
        clock.clear()
        _seed(derive(key, int(step.indices[0]) if len(step.indices) else 0, _PYTHONS))
        made, error, note = None, None, ""
        try:
            items, valid = self.items.work(step, key).finish()
            with clock.stage("collate"):
                made = Collated(self.collate(items), valid)
        except Exception as raised:
            error, note = _sendable(raised), f"in a worker process:\n{traceback.format_exc()}"
        seconds = {name: amount for name, amount in clock.sums().items() if name != "epoch_seconds"}
        return _Done(made, error, note, seconds)


def _seed(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)


def _sendable(error: Exception) -> Exception:
    """Returns an exception that survives pickling."""
    with suppress(Exception):
        if type(pickle.loads(pickle.dumps(error))) is type(error):
            return error
    return RuntimeError(f"{type(error).__name__}: {error}")


def _as_made(made: Any) -> Any:
    return made
