"""BackupAndResume: saves a model with the state of its data set, and continues from there in mid-epoch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import keras

from dlio.errors import UsageError
from dlio.io.files import publish, publish_bytes, read_regular, storage_errors
from dlio.loaders.keras.dataset import PackedPyDataset

_NAME = "resume.json"
_LIMIT = 1 << 16  # bytes of it


class BackupAndResume(keras.callbacks.Callback):  # type: ignore[misc]
    """Saves weights, the optimizer's state and the data set's, and begins `fit` with what was saved last.

    Unlike Keras' BackupAndRestore it continues with the next batch, not with the next epoch or with batches seen
    before. The rest of the epoch is an epoch of Keras, with its validation. A kill at any moment leaves a consistent
    backup. The first rank saves; all load, so the folder must be one that all of them see. It stays after training:
    the same `fit` then has nothing left to do, and with more `epochs` it continues.
    """

    def __init__(self, data: PackedPyDataset, folder: str | Path, save_freq: int | Literal["epoch"] = "epoch") -> None:
        """Reads nothing yet.

        Args:
            data: what the model is fitted with.
            folder: for the backup; it is made when needed.
            save_freq: `epoch` saves at the end of each epoch, a number after as many batches, too.

        Raises:
            UsageError: `save_freq` is neither.
        """
        super().__init__()
        if save_freq != "epoch" and not (isinstance(save_freq, int) and save_freq > 0):
            raise UsageError(f"save_freq={save_freq!r}: expected 'epoch' or a number of batches >= 1")
        self._data, self._folder, self._save_freq = data, Path(folder), save_freq
        self._unsaved = self._counted = 0

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Loads the backup, if there is one.

        Raises:
            UsageError: the model is not built, or the backup is damaged, or of another data set, order or seed.
        """
        if not (self._folder / _NAME).exists():
            return
        if not self.model.built:
            raise UsageError(
                "the model has no weights yet, so it cannot resume: give it a keras.Input, or call it on a batch"
            )
        saved = self._read()
        if self.model.optimizer is not None and not self.model.optimizer.built:
            self.model.optimizer.build(self.model.trainable_variables)
        weights = self._folder / saved["weights"]
        try:
            self.model.load_weights(weights)
        except OSError as error:
            raise UsageError(f"{weights} cannot be read: {error}; remove {self._folder} to start again") from error
        self._data.load_state_dict(saved["state"])
        self.model._initial_epoch = self._data.epoch  # as Keras' BackupAndRestore does

    def on_train_end(self, logs: Mapping[str, Any] | None = None) -> None:
        """Lets the next `fit` begin where it is told to."""
        self.model._initial_epoch = None

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Counts from 0."""
        self._counted = 0
        self._data.count(0)

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Counts the batches, and saves after `save_freq` of them; the epoch's end saves the last one itself."""
        length = len(self._data)
        done = min(batch + 1, length)  # Keras counts a last execution of fewer steps as a whole one
        self._unsaved += done - self._counted
        self._counted = done
        self._data.count(done)
        if self._save_freq != "epoch" and self._unsaved >= self._save_freq and done < length:
            self._save()

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Saves the end of an epoch, or where it was stopped."""
        self._save()

    def _save(self) -> None:
        """Writes the weights under a new name, then the file that names them, and removes the earlier ones."""
        self._unsaved = 0
        if not self._data.is_first_rank:
            return
        state = self._data.state_dict()
        weights = self._folder / f"{state['epoch']}-{state['samples']}.weights.h5"
        aside = self._folder / "unfinished.weights.h5"  # the same step may be in the backup already
        with storage_errors("write", aside):
            self._folder.mkdir(parents=True, exist_ok=True)
            self.model.save_weights(aside, overwrite=True)
        publish(aside, weights)
        publish_bytes(self._folder / _NAME, json.dumps({"weights": weights.name, "state": state}).encode())
        for old in self._folder.glob("*.weights.h5"):
            if old != weights:
                old.unlink(missing_ok=True)

    def _read(self) -> dict[str, Any]:
        path = self._folder / _NAME
        try:
            saved = json.loads(read_regular(path, _LIMIT))
            weights, state = str(saved["weights"]), dict(saved["state"])
        except (ValueError, TypeError, KeyError) as error:
            raise UsageError(f"{path} is not a backup: {error}; remove it to start again") from error
        return {"weights": Path(weights).name, "state": state}
