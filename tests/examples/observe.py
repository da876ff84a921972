"""Runs a script and writes down which images each process is given: observe.py SCRIPT ARGUMENTS...

Image number n is of one colour, red 5 n. Each process writes `$OBSERVED/RANK.jsonl`, an object for each batch.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dlio.cluster.topology import Topology

RED_STEP = 5
NUM_TRAIN, NUM_TEST = 48, 21  # one divides evenly, the other does not


def note(data: str, red: Any, valid: Any = True) -> None:
    """Writes down a batch, from the red of one pixel of each image."""
    numbers = np.rint(np.asarray(red, float) / RED_STEP).astype(int)[np.broadcast_to(valid, len(red)).astype(bool)]
    with (Path(os.environ["OBSERVED"]) / f"{Topology.from_env().rank}.jsonl").open("a") as file:
        file.write(json.dumps({"data": data, "images": numbers.tolist()}) + "\n")


def observe_torch() -> None:
    """Makes dlio's DataLoader note its batches."""
    from dlio.loaders import torch as loaders

    class Observed(loaders.DataLoader):
        def __iter__(self) -> Iterator[Any]:
            for batch in super().__iter__():
                note("train" if self.shuffle else "test", batch[0][:, 0, 4, 4], *batch[2:])
                yield batch

    loaders.DataLoader = Observed


def observe_tensorflow() -> None:
    """Makes dlio's tf.data datasets note their batches, and adds a small network to those of Keras."""
    import keras
    import tensorflow as tf

    from dlio.loaders import tensorflow as loaders

    keras.applications.Small = small
    make = loaders.dataset

    def observed(*arguments: Any, **options: Any) -> tf.data.Dataset:
        data = "train" if options.get("shuffle") else "test"

        def look(images: tf.Tensor, *others: tf.Tensor) -> Any:
            tf.numpy_function(lambda *parts: note(data, *parts), [images[:, 4, 4, 0], *others[1:]], [])
            return images, *others

        return make(*arguments, **options).map(look)

    loaders.dataset = observed


def small(input_shape: tuple[int, ...], **_: Any) -> Any:
    """Returns a network as those of keras.applications, of one layer: theirs have millions of weights to exchange."""
    import keras

    layers = [keras.layers.Conv2D(8, 5, strides=4, activation="relu"), keras.layers.GlobalAveragePooling2D()]
    return keras.Sequential([keras.Input(input_shape), *layers])


def main() -> None:
    """Runs the script as it would run by itself."""
    del sys.argv[0]
    if "import tensorflow" in Path(sys.argv[0]).read_text():
        observe_tensorflow()
    else:
        observe_torch()
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
