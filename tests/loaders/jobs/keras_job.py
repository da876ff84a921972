"""Keras 3 on a backend of KERAS_BACKEND: what a PyDataset gives, and what a model is fitted with."""

from __future__ import annotations

import os
from typing import Any

import keras
import numpy as np

from dlio.images import Resize
from dlio.loaders.keras import PackedPyDataset
from tests.loaders.jobs.reading import DATA, numbers, report


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


def fit(workers: int) -> dict[str, Any]:
    """Returns the photos of each batch and the losses of three epochs."""
    batches = Recorded(DATA, 4, transform=Resize(16), shuffle=True, end="mask", workers=workers)
    layers = [keras.layers.Rescaling(1 / 255), keras.layers.Flatten(), keras.layers.Dense(3)]
    model = keras.Sequential([keras.Input((16, 16, 3)), *layers])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    history = model.fit(batches, epochs=3, verbose=0, shuffle=False)
    model.predict(np.zeros((1, 16, 16, 3)), verbose=0)
    batches.close()
    return {"seen": batches.seen, "losses": history.history["loss"]}


assert keras.backend.backend() == os.environ["KERAS_BACKEND"]
encoded, _ = PackedPyDataset(DATA, 4)[0]
report(0, {"alone": fit(1), "threads": fit(3), "encoded": [type(image).__name__ for image in encoded]})
