"""What the jobs under TensorFlow's strategies have in common."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from dlio.images import Resize
from dlio.loaders.tensorflow import dataset
from tests.loaders.jobs.reading import DATA, numbers

GLOBAL_BATCH = 6
OPTIONS: dict[str, Any] = {"transform": Resize(16), "shuffle": True, "seed": 1, "end": "mask"}


def per_worker(context: tf.distribute.InputContext) -> tf.data.Dataset:
    """Returns one worker's batches, for its place in the strategy."""
    place = {"rank": context.input_pipeline_id, "world_size": context.num_input_pipelines}
    return dataset(DATA, context.get_per_replica_batch_size(GLOBAL_BATCH), **OPTIONS, **place)


def photos(strategy: tf.distribute.Strategy, batches: Any) -> list[list[int]]:
    """Returns the photos that each replica of this process gets in each step, the repeated left out."""

    @tf.function
    def step(batch: Any) -> Any:
        return strategy.run(lambda images, labels, weights: tf.boolean_mask(images, weights > 0), batch)

    return [numbers(part.numpy()) for batch in batches for part in strategy.experimental_local_results(step(batch))]


def fit(strategy: tf.distribute.Strategy, keras: Any) -> dict[str, list[float]]:
    """Returns the losses and weights of a model that `keras` has fitted for two epochs."""
    with strategy.scope():
        layers = [keras.layers.Rescaling(1 / 255), keras.layers.Flatten(), keras.layers.Dense(3)]
        model = keras.Sequential([keras.layers.Input((16, 16, 3)), *layers])
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    history = model.fit(dataset(DATA, GLOBAL_BATCH, **OPTIONS), epochs=2, verbose=0, shuffle=False)
    return {"losses": history.history["loss"], "weights": [float(tf.reduce_sum(w)) for w in model.weights]}
