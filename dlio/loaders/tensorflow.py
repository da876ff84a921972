"""TensorFlow: `dataset`, a `tf.data.Dataset` of this rank's batches.

    from dlio.images import RandomResizedCrop
    from dlio.loaders.tensorflow import dataset

    train = dataset("packed", batch_size=256, transform=RandomResizedCrop(224, flip=True), shuffle=True, seed=0)
    model.fit(train, epochs=90, shuffle=False)  # uint8 (256, 224, 224, 3), int64 (256,); each pass is the next epoch

Images with a label that are packed as TFRecord are read, parsed and decoded by TensorFlow's own operations
(`dlio.loaders._tensorflow.records`); everything else comes from `dlio.loaders.loader`, in whole batches. Auto-sharding
is off, since each rank gets its own part, as many batches as every other. Under a strategy:

    strategy.distribute_datasets_from_function(lambda context: dataset(
        "packed", context.get_per_replica_batch_size(256),
        rank=context.input_pipeline_id, world_size=context.num_input_pipelines))

`model.fit` and `experimental_distribute_dataset` take `dataset(...)` itself, and divide each batch among all replicas
of the strategy: there `batch_size` is that of all of them together. Horovod's ranks are known from its variables.
"""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

from dlio.errors import SchemaError, missing_package

try:
    import tensorflow as tf
except ModuleNotFoundError as error:
    raise missing_package("tensorflow", "tensorflow", "dlio.loaders.tensorflow") from error

import numpy as np

from dlio.dataset.manifest import Manifest
from dlio.dataset.schema import Field
from dlio.images import Transform
from dlio.loaders._prefetch.batch_sources import ArrayBatches
from dlio.loaders._tensorflow import records
from dlio.loaders.batches import paired, with_bytes
from dlio.loaders.dataset import IMAGE, VALID, Batch, PackedSamples
from dlio.loaders.loader import Loader
from dlio.loaders.sampling.order import Shuffle, check_shuffle
from dlio.loaders.sampling.rank import given_place, place_from_env
from dlio.loaders.sampling.rank_share import End, chosen_end


def dataset(
    data: str | Path | Manifest,
    batch_size: int,
    *,
    transform: Transform | None = None,
    shuffle: Shuffle = False,
    seed: int = 0,
    epoch: int = 0,
    drop_remainder: bool = False,
    end: End | str | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    lanes: int | None = None,
    upright: bool = False,
    max_skipped: int = 0,
) -> tf.data.Dataset:
    """Returns this rank's batches; iterating again gives the next epoch.

    An element is (image, label) where the fields are these two, else a dict of all fields. Images are uint8
    (n, height, width, 3) with a transform, else encoded, as strings; labels are class indices (the label offset is
    taken off) or vectors; lists whose length varies are ragged.

    Args:
        data: the folder that holds `manifest.jsonl`, or a manifest.
        batch_size: samples of this rank's batch.
        transform: what to make of the field `image`.
        shuffle: False, True or `Window(w)`. From TFRecord, True shuffles shards and then samples in a buffer of 64 MiB;
            a window reads that many shards in turn.
        seed: of order and transform, the same on every rank.
        epoch: the first epoch, where a job goes on that was stopped: `fit(..., initial_epoch=...)`.
        drop_remainder: end an epoch with whole batches; else the last may be short, and a few samples are repeated
            where ranks would differ.
        end: `drop`, `pad` or `mask` in the place of `drop_remainder`; `mask` adds to each element the weights of its
            samples, which Keras takes as such: float32 (n,), 0 for samples that were repeated.
        rank, world_size: which process of how many; by default what the launcher tells.
        lanes: see `dlio.loaders.sampling.order`; given, the order is that of every other loader, from TFRecord too.
        upright: turn images as their EXIF orientation says.
        max_skipped: how many damaged samples are replaced by others of their batch, with a warning in the log, before
            one is an error; given, dlio's own loader reads TFRecord, too, and its order is that of every other loader.

    Raises:
        ManifestError: there is no data set.
        UsageError: numbers that cannot be shared out evenly, no shuffle, or a transform and no image.
        SchemaError: a field whose shape varies in more than one dimension.
        LauncherError: the launcher's variables contradict each other.
    """
    check_shuffle(shuffle)
    place = given_place(rank, world_size) or place_from_env()
    ends = chosen_end(end, drops=drop_remainder)
    samples = PackedSamples(data, transform, upright=upright, max_skipped=max_skipped)
    if lanes is None and not max_skipped and records.reads(samples):
        plan = records.Plan(samples, batch_size, shuffle, seed, ends, *place)
        num_steps = len(plan.steps(0))
        return _finished(records.batches(plan, epoch), num_steps)
    source = ArrayBatches(samples, channels_last=True, mask=ends is End.MASK)
    loader = Loader(source, batch_size, shuffle=shuffle, seed=seed, lanes=lanes, end=ends, place=lambda: place)
    loader.set_epoch(epoch)
    return _finished(_from_loader(loader), len(loader))


def _finished(batches: tf.data.Dataset, num_steps: int) -> tf.data.Dataset:
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return batches.apply(tf.data.experimental.assert_cardinality(num_steps)).with_options(options).prefetch(1)


def _from_loader(loader: Loader) -> tf.data.Dataset:
    source = loader.source
    assert isinstance(source, ArrayBatches)
    schema = source.samples.schema
    size = loader.batch_size if loader.end is End.DROP else None
    spec: Batch = {name: _spec(name, kind, size, source.samples.transform) for name, kind in schema.fields}
    if loader.end is End.MASK:
        spec[VALID] = tf.TensorSpec((size,), tf.float32)

    def generate() -> Generator[Any, None, None]:
        for batch in loader:
            yield paired({name: _tensor(value, spec[name]) for name, value in with_bytes(batch).items()}, schema)

    return tf.data.Dataset.from_generator(generate, output_signature=paired(spec, schema))


def _spec(name: str, kind: Field, size: int | None, transform: Transform | None) -> tf.TypeSpec:
    if name == IMAGE and transform is not None:
        return tf.TensorSpec((size, *transform.output_size, 3), tf.uint8)
    dtype = tf.as_dtype(kind.dtype) if kind.is_number else tf.string
    if None not in kind.shape:
        return tf.TensorSpec((size, *kind.shape), dtype)
    if kind.shape == (None,):
        return tf.RaggedTensorSpec((size, None), dtype, ragged_rank=1, row_splits_dtype=tf.int64)
    raise SchemaError(f"the field {name!r} of type {kind} makes no batch in TensorFlow: pack it with one shape")


def _tensor(value: Any, spec: tf.TypeSpec) -> Any:
    if not isinstance(spec, tf.RaggedTensorSpec):
        return value
    lengths = np.array([len(row) for row in value], dtype=np.int64)
    flat = [item for row in value for item in row]
    return tf.RaggedTensor.from_row_lengths(tf.constant(flat, dtype=spec.dtype), lengths)
