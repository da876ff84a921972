"""Keras 3: `PackedPyDataset`, a `keras.utils.PyDataset` of this rank's batches for any backend.

    from dlio.images import RandomResizedCrop
    from dlio.loaders.keras import PackedPyDataset

    train = PackedPyDataset("packed", 256, transform=RandomResizedCrop(224, flip=True), shuffle=True)
    model.fit(train, epochs=90, shuffle=False)  # uint8 (256, 224, 224, 3), int64 (256,); each epoch in another order

Threads of dlio make batches ahead of use, all threads one batch. With the backends torch and tensorflow, `fit` also
takes `dlio.loaders.torch.DataLoader` and `dlio.loaders.tensorflow.dataset`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from dlio.errors import UsageError, missing_package

try:
    import keras
except ModuleNotFoundError as error:
    raise missing_package("keras", "tensorflow", "dlio.loaders.keras") from error

from dlio.images import Transforms
from dlio.loaders.batch_sources import ArrayBatches
from dlio.loaders.batches import paired, with_bytes
from dlio.loaders.dataset import VALID, Batch, PackedSamples
from dlio.loaders.loader import Loader
from dlio.loaders.mixture import Data
from dlio.loaders.sampling.order import Shuffle
from dlio.loaders.sampling.rank import rank_from_env
from dlio.loaders.sampling.rank_share import End
from dlio.locking.fork_lock import ForkLock


class PackedPyDataset(keras.utils.PyDataset):  # type: ignore[misc]
    """The batches of one rank by number, in the order of all of dlio's loaders.

    A batch is (image, label), or (image, label, weights) with `end="mask"`, else a dict of all fields. Images are
    uint8, with channels first or last as `keras.config.image_data_format()` says.

    Within `fit`, epochs are Keras' own: `initial_epoch` resumes there. `evaluate` and `predict` repeat their epoch.

    While batches are asked for in turn, threads make the next ones. After a jump, as in a shuffled `fit`, they make the
    batch that is asked for, and no other.

    Safe for several threads within an epoch. Picklable, and safe across fork.
    """

    def __init__(
        self,
        data: Data,
        batch_size: int,
        *,
        cache: str | Path | bool | None = None,
        transform: Transforms | None = None,
        fields: Sequence[str] | None = None,
        shuffle: Shuffle = False,
        seed: int = 0,
        steps_per_epoch: int | None = None,
        end: End | str = End.PAD,
        rank_and_size: Callable[[], tuple[int, int]] = rank_from_env,
        upright: bool = False,
        max_skipped: int = 0,
        workers: int | None = None,
        max_queue_size: int = 2,
    ) -> None:
        """Opens a data set; shards are opened on demand.

        Args:
            data: the folder or URL that holds `manifest.jsonl`, a manifest, or a `Mixture` of these.
            batch_size: samples of this rank's batch.
            cache: the node-local folder to stage to while the data set is read; True chooses one, as `dlio.stage` does.
            transform: applied to the field `image`; one of `dlio.images`, or a list.
            fields: the names of the fields that samples have; by default all.
            shuffle: False, True or `Window(w)`; give `fit` shuffle=False, or it shuffles the batches again.
            seed: of order and transform, the same on every rank.
            steps_per_epoch: batches of an epoch of Keras, which go on through the data set again and again; by default
                all of them. Give `fit` none.
            end: see `dlio.loaders.sampling.rank_share`; `mask` gives repeated samples the weight 0.
            rank_and_size: returns both; called at the start of each epoch.
            upright: rotate images, their boxes and masks by their EXIF orientation.
            max_skipped: how many damaged samples are replaced by others of their batch before one is an error.
            workers: threads that make a batch together; by default one for each core of this rank. Keras itself starts
                none.
            max_queue_size: batches made ahead of the one in use.

        Raises:
            ManifestError: the folder holds no data set.
            UsageError: an argument is out of range, or a transform is given without a field `image`.
        """
        super().__init__()
        if steps_per_epoch is not None and steps_per_epoch < 1:
            raise UsageError(f"steps_per_epoch={steps_per_epoch}: expected a number from 1")
        samples = PackedSamples(data, transform, fields=fields, cache=cache, upright=upright, max_skipped=max_skipped)
        channels_last = keras.config.image_data_format() == "channels_last"
        self._source = ArrayBatches(samples, channels_last=channels_last, mask=End(end) is End.MASK)
        self._loader = Loader(
            self._source,
            batch_size,
            shuffle=shuffle,
            seed=seed,
            end=End(end),
            rank_and_size=rank_and_size,
            num_threads=workers,
            prefetch=max_queue_size,
        )
        self._steps = steps_per_epoch
        self._lock = ForkLock()
        self._asked: set[int] = set()
        self._repeats = False  # whether evaluate or predict runs
        self._running: Generator[Any, None, None] | None = None
        self._in_turn = -1, -1, -1  # process, epoch and number of the batch that follows the one asked for last

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in vars(self).items() if name not in ("_lock", "_running")}

    def __setstate__(self, state: Mapping[str, object]) -> None:
        self.__dict__ = {**state, "_lock": ForkLock(), "_running": None}

    def __len__(self) -> int:
        """Returns the number of batches of an epoch, the same on every rank."""
        return len(self._loader) if self._steps is None else self._steps

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
        process, (epoch, index) = os.getpid(), self._place(index)
        in_turn = self._in_turn == (process, epoch, index)
        if not in_turn or self._running is None:
            self._stop()
            steps = self._loader.steps(epoch)
            step = steps[index]
            ahead = in_turn or index == 0
            coming = replace(steps, start=steps.consumed(index)) if ahead else [step]
            self._running = self._loader.run(coming, epoch, partial(_converted, self._source))
        batch = next(self._running)
        if not (in_turn or index == 0):
            self._stop()
        self._in_turn = process, epoch, index + 1
        return batch

    def _place(self, index: int) -> tuple[int, int]:
        """Returns the epoch of the data set in which a batch of the running epoch is, and its number there."""
        if self._steps is None:
            return self.epoch, index
        if not 0 <= index < self._steps:
            raise IndexError(f"there is no batch {index}: an epoch has {self._steps}, numbered from 0")
        return divmod(self.epoch * self._steps + index, len(self._loader))

    def _stop(self) -> None:
        """Ends the threads."""
        if self._running is not None:
            self._running.close()
            self._running = None

    @property
    def epoch(self) -> int:
        """The epoch that runs."""
        return self._loader.next_epoch

    def on_epoch_begin(self) -> None:
        """Moves on to the epoch of `fit`.

        Raises:
            UsageError: `fit` has got another number of steps than an epoch has.
        """
        verb, asked = _caller()
        self._repeats = verb in ("evaluate", "predict")
        if verb != "fit":
            return
        if asked.get("steps_per_epoch") not in (None, len(self)):
            steps = f"fit(steps_per_epoch={asked['steps_per_epoch']}), but an epoch of this data set has {len(self)}"
            raise UsageError(f"{steps} batches: give steps_per_epoch to PackedPyDataset, and none to fit")
        if (epoch := asked.get("epoch", 0)) > self.epoch:
            with self._lock:
                self._stop()
            self.set_epoch(epoch)
            self._asked.clear()

    def on_epoch_end(self) -> None:
        """Moves to the next epoch, unless Keras has only taken the first batches to build the model, or evaluates."""
        with self._lock:
            self._stop()
        if len(self._asked) == len(self) and not self._repeats:
            self.set_epoch(self.epoch + 1)
            self._asked.clear()

    def set_epoch(self, epoch: int) -> None:
        """Makes `epoch` the one that runs; `fit` does so itself for its `initial_epoch`."""
        self._loader.set_epoch(epoch)

    def close(self) -> None:
        """Ends the threads and closes all files; both begin again when needed."""
        self._loader.close()


def _converted(source: ArrayBatches, batch: Batch) -> Any:
    """Returns a batch as Keras expects it."""
    if source.mask:
        batch[VALID] = batch[VALID].astype("float32")
    return paired(with_bytes(batch), source.samples.schema)


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
