"""Keras 3 on a backend of KERAS_BACKEND: what a PyDataset gives, and what a model is fitted with."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import keras
import numpy as np

from dlio.errors import UsageError
from dlio.images import Resize
from dlio.loaders.keras import BackupAndResume, PackedPyDataset
from tests.loaders.jobs.reading import DATA, FOLDER, numbers, report


class Recorded(PackedPyDataset):
    """Keeps the photos that Keras asked for, by epoch and number of the batch."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.seen: dict[str, list[int]] = {}

    def __getitem__(self, index: int) -> Any:
        """Returns a batch."""
        images, labels, weights = super().__getitem__(index)
        self.seen[f"{self.epoch}.{index}"] = numbers(images[weights > 0])
        return images, labels, weights


def compiled() -> keras.Model:
    """Returns a small model."""
    layers = [keras.layers.Rescaling(1 / 255), keras.layers.Flatten(), keras.layers.Dense(3)]
    model = keras.Sequential([keras.Input((16, 16, 3)), *layers])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def recorded(**options: Any) -> Recorded:
    """Returns a shuffled data set that keeps what it was asked for."""
    return Recorded(DATA, 4, transform=Resize(16), shuffle=True, end="mask", **options)


def epochs_and_steps() -> dict[str, Any]:
    """Returns what a run from the middle saw, and one with its own steps; and the error of steps in `fit`."""
    late, stepped, validation, wrong = (recorded(steps_per_epoch=steps) for steps in (None, 4, None, None))
    model = compiled()
    model.fit(late, epochs=3, initial_epoch=2, verbose=0, shuffle=False)
    model.fit(stepped, epochs=3, verbose=0, shuffle=False, validation_data=validation, validation_steps=2)
    try:
        model.fit(wrong, epochs=3, steps_per_epoch=4, verbose=0, shuffle=False)
    except UsageError as error:
        problem = str(error)
    small = Recorded(DATA, 41, transform=Resize(16), end="mask")
    model.fit(small, epochs=2, verbose=0, shuffle=False)
    for batches in (late, stepped, validation, wrong, small):
        batches.close()
    return {
        "late": late.seen,
        "stepped": stepped.seen,
        "problem": problem,
        "small": sorted(small.seen),
        "validated": validation.epoch,
    }


class Stop(keras.callbacks.Callback):
    """Raises after a number of batches."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.left = after

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Counts, and raises."""
        self.left -= 1
        if not self.left:
            raise InterruptedError


class Trained(keras.callbacks.Callback):
    """Keeps the epoch and number of each batch that the model was trained on, and when it validated."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[str] = []
        self.epoch = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Notes the epoch."""
        self.epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Notes a batch."""
        self.batches.append(f"{self.epoch}.{batch}")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Notes whether there was a validation."""
        self.batches.append("validated" if "val_loss" in logs else "not validated")


def resumed(name: str, stops: tuple[int, ...], save_freq: Any, **options: Any) -> dict[str, Any]:
    """Returns what each of several runs saw and trained on, all but the last of which are stopped, and the weights."""
    runs, model = [], compiled()
    for stop in (*stops, 0):
        keras.utils.set_random_seed(1)
        model, train, kept = compiled(), recorded(**options), Trained()
        validation = PackedPyDataset(DATA, 8, transform=Resize(16))
        resume = BackupAndResume(train, Path(FOLDER, name), save_freq)
        callbacks = [kept, resume, *([Stop(stop)] if stop else [])]
        with suppress(InterruptedError):
            model.fit(train, epochs=3, validation_data=validation, verbose=0, shuffle=False, callbacks=callbacks)
        runs.append({"seen": train.seen, "trained": kept.batches})
        train.close()
        validation.close()
    weights = [float(abs(each).sum()) for each in model.get_weights()]
    return {"runs": runs, "weights": weights, "left": sorted(path.name for path in (Path(FOLDER, name)).iterdir())}


def by_hand() -> dict[str, Any]:
    """Returns what a run saw and trained on that begins with a state which another data set gave after 4 batches."""
    first, rest, kept = recorded(), recorded(), Trained()
    first.count(4)
    rest.load_state_dict(first.state_dict())
    compiled().fit(rest, epochs=2, initial_epoch=rest.epoch, verbose=0, shuffle=False, callbacks=[kept])
    rest.close()
    return {"seen": rest.seen, "trained": kept.batches}


def fit(workers: int) -> dict[str, Any]:
    """Returns the photos of each batch and the losses of three epochs."""
    batches = recorded(workers=workers)
    model = compiled()
    history = model.fit(batches, epochs=3, verbose=0, shuffle=False)
    model.predict(np.zeros((1, 16, 16, 3)), verbose=0)
    batches.close()
    return {"seen": batches.seen, "losses": history.history["loss"]}


assert keras.backend.backend() == os.environ["KERAS_BACKEND"]
encoded, _ = PackedPyDataset(DATA, 4)[0]
found = {"alone": fit(1), "threads": fit(3), "encoded": [type(image).__name__ for image in encoded]}
found |= {"whole": resumed("whole", (), "epoch"), "stopped": resumed("stopped", (6, 11), 4)}
found |= {
    "by epoch": resumed("by-epoch", (13,), "epoch"),
    "in steps": resumed("in-steps", (6, 3), 3, steps_per_epoch=4),
}
found |= {"by hand": by_hand()}
report(0, found | epochs_and_steps())
