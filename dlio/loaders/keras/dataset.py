"""PackedPyDataset: the batches of one rank by number, as Keras asks for them."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Unpack

import keras

from dlio.errors import UsageError
from dlio.loaders.batches import paired, with_bytes
from dlio.loaders.dataset import VALID, Batch
from dlio.loaders.loader import Loader
from dlio.loaders.mixture import Data
from dlio.loaders.options import Keywords, forwarded, takes_options
from dlio.loaders.sampling.rank_share import End
from dlio.loaders.sampling.state import State
from dlio.locking.fork_lock import ForkLock


class PackedPyDataset(keras.utils.PyDataset):  # type: ignore[misc]
    """The batches of one rank by number, in the order of all of dlio's loaders.

    A batch is (image, label), or (image, label, weights) with `end="mask"` (0 for repeated samples), else a dict of all
    fields. Images are uint8, with channels first or last as `keras.config.image_data_format()` says.

    Within `fit`, epochs are Keras' own: `initial_epoch` resumes there, and `BackupAndResume` in the middle of one.
    `evaluate` and `predict` repeat their epoch.

    While batches are asked for in turn, threads make the next ones. After a jump, as in a shuffled `fit`, they make the
    batch that is asked for, and no other.

    Safe for several threads within an epoch. Picklable, and safe across fork.
    """

    @takes_options()
    def __init__(
        self, data: Data, batch_size: int, *, steps_per_epoch: int | None = None, **keywords: Unpack[Keywords]
    ) -> None:
        """Opens a data set; shards are opened on demand.

        Args:
            data: the folder or URL that holds `manifest.jsonl`, a manifest, or a `Mixture` of these.
            batch_size: samples of this rank's batch.
            steps_per_epoch: batches of an epoch of Keras, which continue through the data set again and again; by
                default all of them. Give `fit` none.
            **keywords: see `dlio.loaders.options.Options`.

        Raises:
            ManifestError: the folder holds no data set.
            UsageError: an argument is out of range, or a transform is given without a field `image`.
        """
        super().__init__()  # its workers would ask for batches out of turn
        if steps_per_epoch is not None and steps_per_epoch < 1:
            raise UsageError(f"steps_per_epoch={steps_per_epoch}: expected a number >= 1")
        channels_last = keras.config.image_data_format() == "channels_last"
        self._loader: Loader[Batch] = Loader(data, batch_size, channels_last=channels_last, **keywords)
        self._steps = steps_per_epoch
        self._lock = ForkLock()
        self._epoch = self._used = 0  # the epoch that runs, and how many of its batches were trained on
        self._first = self._begun = 0  # the epoch in which the run began, and how many of its batches came before that
        self._asked: set[int] = set()
        self._running: Generator[Any, None, None] | None = None
        self._in_turn = -1, -1, -1  # process, epoch and number of the batch that follows the one asked for last

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in vars(self).items() if name not in ("_lock", "_running")}

    def __setstate__(self, state: Mapping[str, object]) -> None:
        self.__dict__ = {**state, "_lock": ForkLock(), "_running": None}

    def __len__(self) -> int:
        """Returns the number of batches of the epoch that runs, the same on every rank.

        It is that of every epoch, unless a run continues in mid-epoch: then the first epoch has the rest.
        """
        if self._steps is None:
            return len(self._loader.steps_left(self._epoch))
        return self._steps - (self._begun if self._epoch == self._first else 0)

    def __getitem__(self, index: int) -> Any:
        """Returns a batch of the epoch that runs.

        Raises:
            IndexError: `index` is out of range.
            CorruptRecordError, StorageError: a record or its image cannot be read; names it.
        """
        with self._lock:
            batch = self._made(index)
            self._asked.add(index)
        return batch

    def _made(self, index: int) -> Any:
        """Returns a batch; begins the next ones only if batches are asked for in turn."""
        if self._steps is not None and not 0 <= index < len(self):
            raise IndexError(f"there is no batch {index}: an epoch has {len(self)}, numbered from 0")
        process, (epoch, index) = os.getpid(), self._place(index)
        in_turn = self._in_turn == (process, epoch, index)
        if not in_turn or self._running is None:
            self._stop()
            steps = self._loader.steps_left(epoch)
            step = steps[index]
            ahead = in_turn or index == 0
            coming = replace(steps, start=steps.consumed(index)) if ahead else [step]
            self._running = self._loader.run(coming, epoch, partial(_converted, self._loader))
        batch = next(self._running)
        if not (in_turn or index == 0):
            self._stop()
        self._in_turn = process, epoch, index + 1
        return batch

    def _place(self, number: int) -> tuple[int, int]:
        """Returns the epoch of the data set in which a batch of the running epoch is, and its number there."""
        if self._steps is None:
            return self._epoch, number
        if self._epoch > self._first:
            number += (self._epoch - self._first) * self._steps - self._begun
        first = self._loader.next_epoch
        left = len(self._loader.steps_left(first))
        if number < left:
            return first, number
        turns, number = divmod(number - left, len(self._loader))
        return first + 1 + turns, number

    def _stop(self) -> None:
        """Ends the threads."""
        if self._running is not None:
            self._running.close()
            self._running = None

    @property
    def epoch(self) -> int:
        """The epoch that runs."""
        return self._epoch

    def on_epoch_begin(self) -> None:
        """Moves on to the epoch of `fit`.

        Raises:
            UsageError: `fit` has got another number of steps than an epoch has.
        """
        verb, asked = _caller()
        if verb != "fit":
            return
        if (epoch := asked.get("epoch", 0)) > self._epoch:
            with self._lock:
                self._stop()
            self.set_epoch(epoch)
        self._asked.clear()
        if asked.get("steps_per_epoch") not in (None, len(self)):
            steps = f"fit(steps_per_epoch={asked['steps_per_epoch']}), but an epoch of this data set has {len(self)}"
            raise UsageError(f"{steps} batches: give steps_per_epoch to PackedPyDataset, and none to fit")
        _set_length(asked.get("epoch_iterator"), len(self))

    def on_epoch_end(self) -> None:
        """Moves to the next epoch, unless Keras has only taken the first batches to build the model, or evaluates."""
        with self._lock:
            self._stop()
        verb, asked = _caller()
        is_over = len(self._asked) == len(self) if verb in ("", "fit") else False
        if is_over and (verb == "" or "epoch" in asked):
            self.set_epoch(self._epoch + 1)
            self._asked.clear()

    def set_epoch(self, epoch: int) -> None:
        """Makes `epoch` the one that runs; `fit` does so itself for its `initial_epoch`."""
        self._used = 0
        if self._steps is None:
            self._loader.set_epoch(epoch)
        elif epoch < self._first:
            self._load(self._loader.state_dict() | {"epoch": 0, "samples": 0})
        self._epoch = epoch

    @property
    def is_first_rank(self) -> bool:
        """Whether this process is the first of its job."""
        return self._loader.share().rank == 0

    def count(self, batches: int) -> None:
        """Notes how many batches of the running epoch a model was trained on, for `state_dict`."""
        self._used = batches

    def state_dict(self) -> State:
        """Returns the state of the run: five scalars, the same on every rank.

        It has the batches of the running epoch that `count` was told of, as `BackupAndResume` does: a backend may take
        batches before it trains on them. Without that it is the state at the beginning of this epoch.
        """
        return self._loader.state_after(*self._place(self._used))

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Makes the next `fit(initial_epoch=data.epoch)` continue from `state`; an empty one changes nothing.

        Raises:
            UsageError: the state is malformed, or of another data set, order or seed.
        """
        if state:
            with self._lock:
                self._stop()
            self._load(state)

    def _load(self, state: Mapping[str, object]) -> None:
        self._loader.load_state_dict(state)
        self._epoch, self._used, self._begun = self._loader.next_epoch, 0, 0
        self._asked.clear()
        if self._steps is not None:
            whole = len(self._loader)
            done = (self._epoch + 1) * whole - len(self._loader.steps_left(self._epoch))
            self._epoch, self._begun = divmod(done, self._steps)
        self._first = self._epoch

    stats = forwarded(Loader.stats)
    verdict = forwarded(Loader.verdict)
    close = forwarded(Loader.close)  # it can be used again


def _converted(loader: Loader[Batch], batch: Batch) -> Any:
    """Returns a batch as Keras expects it."""
    if loader.end is End.MASK:
        batch[VALID] = batch[VALID].astype("float32")
    return paired(with_bytes(batch), loader.source.samples.schema)


def _set_length(iterator: Any, length: int) -> None:
    """Tells Keras how many batches the epoch has that begins; it asks only once, before the first one.

    Raises:
        UsageError: it cannot be told, and the number differs from that.
    """
    if iterator is not None and iterator.num_batches != length:
        iterator._num_batches = length
        if iterator.num_batches != length:
            advice = "fit the rest of the epoch alone: fit(data, initial_epoch=epoch, epochs=epoch + 1)"
            raise UsageError(f"an epoch of {length} batches, but this Keras counts {iterator.num_batches}: {advice}")


def _caller() -> tuple[str, Mapping[str, Any]]:
    """Returns which function of Keras runs: `fit`, `evaluate`, `predict` or '', and its variables.

    Keras tells a PyDataset neither the epoch nor the steps of `fit`, and there is no other way to know them.
    """
    frame = sys._getframe(1)
    while frame := frame.f_back:  # type: ignore[assignment]
        name = frame.f_code.co_name
        if name in ("fit", "evaluate", "predict") and frame.f_globals.get("__name__", "").startswith("keras."):
            return name, frame.f_locals
    return "", {}
