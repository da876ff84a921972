"""Images with labels from TFRecord shards, read, parsed and decoded by TensorFlow's own operations.

    shards of this rank's lanes, in the epoch's order
      -> interleaved TFRecordDatasets, each record with its number -> shuffle buffer -> this rank's equal share
      -> batches: parse_example; boxes planned as for every other format, keyed by seed, epoch and sample
      -> single images on all cores: decode_and_crop_jpeg, resize with antialiasing -> batches

JPEG, PNG, GIF and BMP can be decoded here. Pixels are within 3 of 255 of Pillow's for 8 bit images; a PNG of 16 bit is
scaled, not cut off as Pillow does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
import tensorflow as tf

from dlio.codecs import decoders
from dlio.dataset.reader import checked_files
from dlio.dataset.schema import Field
from dlio.formats import tfrecord
from dlio.formats.payloads import example
from dlio.io.random_access import RandomAccessFile
from dlio.loaders._tensorflow.images import decode_batch
from dlio.loaders.batches import transform_key
from dlio.loaders.dataset import IMAGE, LABEL, PackedSamples, is_pair
from dlio.loaders.sampling.order import Shuffle, Window, epoch_order
from dlio.loaders.sampling.rank_share import End, RankSteps, Share, rank_steps
from dlio.random_keys import derive, derive_each

_SHUFFLE_BYTES = 64 << 20
_INTERLEAVED = 16  # shards read in turn; each holds a buffer of _READ_BYTES
_READ_BYTES = 1 << 20
_GRAPH_SEED = 87654321  # TensorFlow's own where no other is set


def reads(samples: PackedSamples) -> bool:
    """Tells whether TensorFlow's operations can read and decode these samples."""
    schema = samples.schema
    if samples.manifest.format != "tfrecord" or not is_pair(schema) or samples.upright:
        return False
    if any(shard.nodes for shard in samples.manifest.shards):
        return False  # staged in parts: the lanes are given
    label = schema[LABEL]
    return schema[IMAGE] == Field("bytes") and label.is_fixed and label.dtype not in ("float64", "uint64")


@dataclass(frozen=True, slots=True)
class Plan:
    """What a rank reads.

    Attributes:
        samples: the data set and its transform.
        batch_size, shuffle, seed, end, rank, world_size: as `dlio.loaders.tensorflow.dataset` takes them.

    A rank reads shards of its own where each can have one; else every rank reads all and keeps its share of records.
    """

    samples: PackedSamples
    batch_size: int
    shuffle: Shuffle
    seed: int
    end: End
    rank: int
    world_size: int

    def steps(self, epoch: int) -> RankSteps:
        """Returns the count and ends of the steps, and the order of shards, of an epoch.

        Raises:
            UsageError: not a single batch would come of it.
        """
        manifest = self.samples.manifest
        num_filled = sum(shard.num_samples > 0 for shard in manifest.shards)
        lanes = self.world_size if num_filled >= self.world_size else 1
        by_shards = Window(1) if self.shuffle else False
        order = epoch_order(manifest, seed=self.seed, epoch=epoch, shuffle=by_shards, lanes=lanes)
        return rank_steps(order, Share(self.rank, self.world_size, self.batch_size, lanes), self.end)

    @property
    def num_interleaved(self) -> int:
        """How many shards are read in turn."""
        if isinstance(self.shuffle, Window):
            return self.shuffle.num_shards
        return _INTERLEAVED if self.shuffle else 1

    @property
    def shuffle_buffer(self) -> int:
        """How many samples are held to draw from: those of the shards read in turn, up to 64 MiB."""
        manifest = self.samples.manifest
        held_bytes = min(_SHUFFLE_BYTES, self.num_interleaved * manifest.num_bytes // len(manifest.shards))
        return max(1, manifest.num_samples * held_bytes // max(1, manifest.num_bytes))


def batches(plan: Plan, epoch: int = 0) -> tf.data.Dataset:
    """Returns the batches of the rank from `epoch` on; iterating again gives the next."""
    numbers = tf.TensorSpec((None,), tf.int64)
    signature = ((tf.TensorSpec((None,), tf.string), numbers, numbers), tf.TensorSpec((), tf.int64))
    counter = count(epoch)
    epochs = tf.data.Dataset.from_generator(lambda: _next_epoch(plan, counter), output_signature=signature)
    numbered = epochs.flat_map(lambda shards, epoch: _records(plan, shards, epoch))
    drops = plan.end is End.DROP
    parsed = numbered.batch(plan.batch_size, drop_remainder=drops).map(
        lambda *columns: _parse(plan, *columns), num_parallel_calls=tf.data.AUTOTUNE
    )
    if plan.samples.transform is None:
        return parsed.map(lambda encoded, numbers, *rest: (encoded[0], *rest))
    pixels = plan.samples.transform.output_size
    decoded = parsed.interleave(
        lambda encoded, numbers, *rest: decode_batch(encoded, numbers, pixels, plan.samples.damage).map(
            lambda images: (images, *rest)
        ),
        cycle_length=2,
        num_parallel_calls=2,
        deterministic=True,
    )
    size = plan.batch_size if drops else None
    return decoded.map(lambda *columns: tuple(tf.ensure_shape(each, (size, *each.shape[1:])) for each in columns))


def _next_epoch(plan: Plan, counter: Iterator[int]) -> Iterator[Any]:
    """Yields, once, the shards to read in the next epoch (path, number of the first sample, count), and the epoch."""
    steps = plan.steps(next(counter))
    manifest = plan.samples.manifest
    firsts = steps.order.lane(steps.share.lanes[0]).firsts
    numbers = np.searchsorted(steps.order.offsets, firsts, side="right") - 1
    paths = [str(manifest.root / manifest.shards[number].files[0].name) for number in numbers]
    yield (paths, firsts, [manifest.shards[number].num_samples for number in numbers]), steps.order.epoch


def _records(plan: Plan, shards: tuple[tf.Tensor, ...], epoch: tf.Tensor) -> tf.data.Dataset:
    """Returns (position in the lane, epoch, number, record) of each sample of the rank in one epoch."""
    steps = plan.steps(0)
    share, stop = steps.share, steps.stop
    numbered = tf.data.Dataset.from_tensor_slices(shards).interleave(
        lambda path, first, count: _shard(plan, path, first, count),
        cycle_length=plan.num_interleaved,
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=True,
    )
    if plan.shuffle:
        tf.compat.v1.set_random_seed(_GRAPH_SEED)  # of this function only: else the caller's would change the order
        seed = epoch + derive(plan.seed) % (1 << 31)
        numbered = numbered.shuffle(plan.shuffle_buffer, seed=seed, reshuffle_each_iteration=False)
    places = numbered.repeat().take(stop).enumerate().shard(share.ranks_per_lane, share.place)
    return places.map(lambda position, numbered: (position, epoch, *numbered))


def _shard(plan: Plan, path: tf.Tensor, first: tf.Tensor, count: tf.Tensor) -> tf.data.Dataset:
    """Returns (number, record) of each sample of a shard; records are empty where TensorFlow cannot read on."""

    def checked(path: Any, first: Any) -> Any:
        manifest = plan.samples.manifest
        checked_files(manifest, manifest.shards[manifest.locate(int(first))[0]])
        return path  # of a missing file `ignore_errors` would try to read the first record without end

    path = tf.numpy_function(checked, [path, first], tf.string)
    records = tf.data.TFRecordDataset(path, buffer_size=_READ_BYTES).ignore_errors()
    return records.concatenate(tf.data.Dataset.from_tensors("").repeat()).take(count).enumerate(first)


def _refuse_empty(plan: Plan, numbers: tf.Tensor, records: tf.Tensor) -> tf.Tensor:
    """Returns `records`; where one is empty, the damage is looked for, and raised with its name."""

    def look(numbers: Any) -> Any:
        shard, _ = plan.samples.manifest.locate(int(numbers[0]))
        for number in range(*plan.samples.manifest.offsets[shard : shard + 2]):
            plan.samples.read([number])
        raise plan.samples.damage(int(numbers[0]), "TensorFlow cannot read the record: see what `dlio verify` says")

    empty = tf.equal(tf.strings.length(records), 0)
    lost = tf.boolean_mask(numbers, empty)
    return tf.cond(tf.reduce_any(empty), lambda: tf.numpy_function(look, [lost], tf.string), lambda: records)


def _parse(plan: Plan, positions: tf.Tensor, epochs: tf.Tensor, numbers: tf.Tensor, records: tf.Tensor) -> Any:
    """Returns (images, windows, flips), numbers, labels, and, where the epoch ends by masking, weights, of a batch."""
    schema = plan.samples.schema
    names = _feature_names(plan.samples)
    label = schema[LABEL]
    stored = tf.float32 if np.dtype(label.dtype).kind == "f" else tf.int64
    features = tf.io.parse_example(
        tf.ensure_shape(_refuse_empty(plan, numbers, records), (None,)),
        {
            names[IMAGE]: tf.io.FixedLenFeature([], tf.string),
            names[LABEL]: tf.io.FixedLenFeature(label.shape, stored),
        },
    )
    images, labels = features[names[IMAGE]], tf.cast(features[names[LABEL]], label.dtype)
    windows, flips = _windows(plan, images, numbers, epochs)
    if schema.label_offset:
        labels -= tf.cast(schema.label_offset, label.dtype)
    valid = positions < int(plan.steps(0).order.lane_sizes[plan.steps(0).share.lanes[0]])
    return (images, windows, flips), numbers, labels, *((tf.cast(valid, tf.float32),) if plan.end is End.MASK else ())


def _feature_names(samples: PackedSamples) -> dict[str, str]:
    """Returns the features of the two fields; image classification by other tools may have ImageNet's names or not."""
    names = {IMAGE: IMAGE, LABEL: LABEL}
    if not samples.schema.is_image_classification:
        return names
    first = next(shard for shard in samples.manifest.shards if shard.num_samples)
    with closing(RandomAccessFile(samples.manifest.root / first.files[0].name)) as file:
        offset, num_bytes = next(tfrecord.scan(file))
        record = file.read(offset + tfrecord.HEADER_BYTES, num_bytes - tfrecord.FRAME_BYTES, 0)
    imagenet = {IMAGE: example.IMAGE, LABEL: example.LABEL}
    return imagenet if example.IMAGE in example.parse(record) else names


def _windows(plan: Plan, images: tf.Tensor, numbers: tf.Tensor, epochs: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns boxes and the parts to resize, float32 (n, 2, 4), and flips, bool (n,), for a batch of encoded images."""
    transform = plan.samples.transform
    if transform is None:
        return tf.zeros((tf.size(numbers), 2, 4), tf.float32), tf.zeros(tf.size(numbers), tf.bool)

    def windows(pictures: Any, indices: Any, epochs: Any) -> tuple[Any, Any]:
        sizes, problems = decoders.measure(pictures.tolist())
        for row, problem in problems.items():
            raise plan.samples.damage(int(indices[row]), problem)
        keys = derive_each(transform_key(plan.seed, int(epochs[0])), indices)
        planned = transform.plan(sizes, keys)
        whole = np.concatenate([np.zeros_like(planned.boxes[:, :2]), planned.boxes[:, 2:]], axis=1)
        parts = whole if planned.parts is None else planned.parts
        return np.stack([planned.boxes, parts], axis=1).astype(np.float32), planned.flips

    planned, flips = tf.numpy_function(windows, [images, numbers, epochs], (tf.float32, tf.bool))
    return tf.ensure_shape(planned, (None, 2, 4)), tf.ensure_shape(flips, (None,))
