"""tf.data over TFRecord shards as its performance guide says: parallel, AUTOTUNE, decode and crop in one step."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.loaders.tasks import BATCH_SIZE, NUM_WORKERS, Task
from benchmarks.pack_peers import images_below

NAME = "tf.data"
PACKAGES = {"tensorflow": "tensorflow"}
TASKS = ("jpeg", "png", "raw-sequential", "raw-shuffled")
NUM_SHARDS = 16


def prepare(images: Path, out: Path) -> None:
    """Writes a tf.train.Example an image, dealt out over shards."""
    import tensorflow as tf

    samples = images_below(images)
    for shard in range(NUM_SHARDS):
        with tf.io.TFRecordWriter(str(out / f"{shard:02d}.tfrecord")) as writer:
            for path, label in samples[shard::NUM_SHARDS]:
                image = tf.train.Feature(bytes_list=tf.train.BytesList(value=[path.read_bytes()]))
                number = tf.train.Feature(int64_list=tf.train.Int64List(value=[label]))
                features = tf.train.Features(feature={"image/encoded": image, "image/class/label": number})
                writer.write(tf.train.Example(features=features).SerializeToString())


def batches(data: Path, task: Task) -> Iterator[Any]:
    """Yields arrays (n, height, width, 3), or of strings."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(NUM_WORKERS)
    tf.config.threading.set_inter_op_parallelism_threads(NUM_WORKERS)
    fields = {
        "image/encoded": tf.io.FixedLenFeature([], tf.string),
        "image/class/label": tf.io.FixedLenFeature([], tf.int64),
    }
    shards = tf.data.Dataset.from_tensor_slices(sorted(map(str, data.glob("*.tfrecord"))))
    if task.shuffle:
        shards = shards.shuffle(NUM_SHARDS)
    records = shards.repeat().interleave(
        tf.data.TFRecordDataset, cycle_length=4, num_parallel_calls=tf.data.AUTOTUNE, deterministic=not task.shuffle
    )
    if task.shuffle:
        records = records.shuffle(1024)
    if task.pixels is None:
        samples = records.batch(BATCH_SIZE).map(lambda batch: tf.io.parse_example(batch, fields), tf.data.AUTOTUNE)
    else:
        crop = _crop_jpeg if task.name == "jpeg" else _crop_png

        def make(record: Any) -> Any:
            parsed = tf.io.parse_single_example(record, fields)
            return {"image/encoded": crop(parsed["image/encoded"], task.pixels), "label": parsed["image/class/label"]}

        samples = records.map(make, tf.data.AUTOTUNE, deterministic=False).batch(BATCH_SIZE)
    for batch in samples.prefetch(tf.data.AUTOTUNE).as_numpy_iterator():
        yield batch["image/encoded"]


def _box(shape: Any) -> Any:
    """Returns begin and size of a random box, as torchvision's RandomResizedCrop draws them."""
    import tensorflow as tf

    whole = tf.zeros([1, 0, 4])
    begin, size, _ = tf.image.sample_distorted_bounding_box(
        shape,
        whole,
        aspect_ratio_range=(3 / 4, 4 / 3),
        area_range=(0.08, 1.0),
        max_attempts=10,
        use_image_if_no_bounding_boxes=True,
    )
    return begin, size


def _crop_jpeg(data: Any, pixels: int) -> Any:
    import tensorflow as tf

    begin, size = _box(tf.image.extract_jpeg_shape(data))
    image = tf.image.decode_and_crop_jpeg(data, tf.stack([begin[0], begin[1], size[0], size[1]]), channels=3)
    return _finish(image, pixels)


def _crop_png(data: Any, pixels: int) -> Any:
    import tensorflow as tf

    image = tf.io.decode_png(data, channels=3)
    begin, size = _box(tf.shape(image))
    return _finish(tf.slice(image, begin, size), pixels)


def _finish(image: Any, pixels: int) -> Any:
    """Resizes without antialiasing, mirrors half of the images, and gives them as uint8."""
    import tensorflow as tf

    resized = tf.cast(tf.image.resize(image, [pixels, pixels]), tf.uint8)
    return tf.image.random_flip_left_right(resized)
