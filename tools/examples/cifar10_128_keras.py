"""ResNet50V2 on CIFAR-10 at 128 x 128 with TensorFlow and Keras, on one GPU, all of a node's, or many nodes'.

    for part in train test; do dlio pack cifar-10-batches-py cifar/$part --source cifar10 --option split=$part \
        --format tfrecord --resize 128 --num-shards 16; done
    for part in train test; do dlio stage cifar/$part; done                       # once on each node
    python cifar10_128_keras.py cifar/train cifar/test

The strategy follows from the environment: TF_CONFIG, or a SLURM job of several tasks, makes it MultiWorkerMirrored,
several GPUs make it Mirrored. As a SLURM job, with one task on each node for all of its GPUs:

    #SBATCH --nodes=4 --ntasks-per-node=1 --gpus-per-node=4 --cpus-per-task=48
    for part in train test; do srun dlio stage cifar/$part; done
    srun python cifar10_128_keras.py cifar/train cifar/test
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from dlio import Manifest
from dlio.cluster.topology import Topology
from dlio.images import RandomResizedCrop, Resize
from dlio.loaders.tensorflow import dataset


def strategy_from_env() -> tf.distribute.Strategy:
    """Returns the strategy for the available processes and GPUs."""
    topology = Topology.from_env()
    if "TF_CONFIG" in os.environ:
        return tf.distribute.MultiWorkerMirroredStrategy()
    if topology.launcher == "slurm" and topology.world_size > 1:
        return tf.distribute.MultiWorkerMirroredStrategy(tf.distribute.cluster_resolver.SlurmClusterResolver())
    if len(tf.config.list_physical_devices("GPU")) > 1:
        return tf.distribute.MirroredStrategy()
    return tf.distribute.get_strategy()


def batches(strategy: tf.distribute.Strategy, path: str, global_batch_size: int, **options: Any) -> Any:
    """Returns what each replica trains on: its own part of the images, as many batches as every other."""

    def of_pipeline(context: tf.distribute.InputContext) -> tf.data.Dataset:
        place = {"rank": context.input_pipeline_id, "world_size": context.num_input_pipelines}
        return dataset(path, context.get_per_replica_batch_size(global_batch_size), **place, **options)

    return strategy.distribute_datasets_from_function(of_pipeline)


def network(name: str, size: int, num_classes: int) -> keras.Model:
    """Returns one of keras.applications with random weights: uint8 images (n, size, size, 3) to logits."""
    images = keras.Input((size, size, 3), dtype="uint8")
    scaled = keras.layers.Rescaling(1 / 127.5, offset=-1)(images)
    body = getattr(keras.applications, name)(
        include_top=False, weights=None, input_shape=(size, size, 3), pooling="avg"
    )
    return keras.Model(images, keras.layers.Dense(num_classes, dtype="float32")(body(scaled)))


def sgd(peak: float, epochs: int, steps_per_epoch: int) -> keras.optimizers.Optimizer:
    """Returns SGD with momentum: its rate warms up over a twentieth of the steps, then a cosine takes it to zero."""
    steps = epochs * steps_per_epoch
    warmup = steps // 20
    rate = keras.optimizers.schedules.CosineDecay(0.0, steps - warmup, warmup_target=peak, warmup_steps=warmup)
    return keras.optimizers.SGD(rate, momentum=0.9, nesterov=True, weight_decay=5e-4)


class Training:
    """What each replica does with its batch; `model.fit` of Keras 3 fails on several processes (keras issue 20585)."""

    def __init__(self, model: keras.Model, optimizer: keras.optimizers.Optimizer) -> None:
        self.model, self.optimizer = model, optimizer

    def train(self, images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        """Takes a step and returns the `sums` of the batch before it."""
        with tf.GradientTape() as tape:
            logits = self.model(images, training=True)
            losses = keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
            loss = tf.reduce_mean(losses) / tf.distribute.get_strategy().num_replicas_in_sync
        variables = self.model.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return sums(labels, logits, tf.ones_like(losses))

    def test(self, images: tf.Tensor, labels: tf.Tensor, valid: tf.Tensor) -> tf.Tensor:
        """Returns the `sums` of the batch, without the images that were repeated to fill it."""
        return sums(labels, self.model(images, training=False), tf.cast(valid, tf.float32))


def sums(labels: tf.Tensor, logits: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Returns the number of images, the sum of their losses, and how many are right: float32 (3,)."""
    losses = keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
    right = tf.cast(tf.argmax(logits, axis=1) == labels, tf.float32)
    return tf.stack([tf.reduce_sum(weights), tf.reduce_sum(weights * losses), tf.reduce_sum(weights * right)])


def on_all_replicas(strategy: tf.distribute.Strategy, step: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
    """Returns a function of one batch for each replica, which adds up what the step gives."""

    @tf.function(reduce_retracing=True)
    def run(*batch: Any) -> tf.Tensor:
        return strategy.reduce("SUM", strategy.run(step, batch), axis=None)

    return run


def shown(what: str, epoch: int, summed: tf.Tensor) -> str:
    """Returns a line on an epoch."""
    count, loss, right = summed.numpy()
    return f"epoch {epoch}: {what} on {count:.0f} images, loss {loss / count:.4f}, accuracy {right / count:.2%}"


def arguments() -> argparse.Namespace:
    """Returns the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("train", help="the packed training images")
    parser.add_argument("test", help="the packed test images")
    parser.add_argument("--model", default="ResNet50V2", help="any of keras.applications that wants -1 to 1")
    parser.add_argument("--size", type=int, default=128, help="height and width of the images")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=128, help="images of one replica's batch")
    parser.add_argument("--learning-rate", type=float, default=0.1, help="for each 256 images of the global batch")
    parser.add_argument("--save", default="cifar10.keras", help="the trained model")
    return parser.parse_args()


def main() -> None:
    """Trains, and tests after each epoch."""
    options = arguments()
    strategy = strategy_from_env()
    keras.utils.set_random_seed(0)
    if tf.config.list_physical_devices("GPU"):
        keras.mixed_precision.set_global_policy("mixed_bfloat16")
    batch_size = options.batch_size * strategy.num_replicas_in_sync
    crop = RandomResizedCrop(options.size, scale=(0.5, 1.0), flip=True)
    train = batches(strategy, options.train, batch_size, transform=crop, shuffle=True, drop_remainder=True)
    test = batches(strategy, options.test, batch_size, transform=Resize(options.size), end="mask")
    manifest = Manifest.load(options.train)
    with strategy.scope():
        model = network(options.model, options.size, len(manifest.class_names))
        rate = options.learning_rate * batch_size / 256
        optimizer = sgd(rate, options.epochs, manifest.num_samples // batch_size)
        optimizer.build(model.trainable_variables)
    training = Training(model, optimizer)
    train_step, test_step = (on_all_replicas(strategy, step) for step in (training.train, training.test))
    first = Topology.from_env().rank == 0
    for epoch in range(options.epochs):
        trained = sum(train_step(*batch) for batch in train)
        tested = sum(test_step(*batch) for batch in test)
        if first:
            print(shown("trained", epoch, trained), shown("tested", epoch, tested), sep="\n", flush=True)
    if first:
        model.save(options.save)


if __name__ == "__main__":
    main()
