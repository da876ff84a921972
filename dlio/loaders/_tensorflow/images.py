"""Windows of images, decoded and resized by TensorFlow's operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

_MARGIN = 2  # pixels


def decode_batch(
    encoded: tuple[tf.Tensor, ...],
    numbers: tf.Tensor,
    size: tuple[int, int],
    damage: Callable[[int, str], Exception],
) -> tf.data.Dataset:
    """Returns the images of one batch, uint8 (n, height, width, 3), as one element; each is decoded by its own.

    Args:
        encoded: images, windows and flips, as `decode` takes them, n each.
        numbers: of the samples; int64 of shape (n,).
        size: height and width of the images.
        damage: returns what to raise for the sample of a number, given what is wrong with it.
    """
    count = tf.size(numbers, tf.int64)
    images = tf.data.Dataset.from_tensor_slices(encoded).map(
        lambda *image: (decode(*image, size=size), True), num_parallel_calls=tf.data.AUTOTUNE
    )
    lost = tf.data.Dataset.from_tensors((tf.zeros((*size, 3), tf.uint8), False)).repeat()

    def look(numbers: Any, *columns: Any) -> Any:
        for number, *image in zip(numbers, *columns, strict=True):
            try:
                decode(*image, size=size)
            except tf.errors.InvalidArgumentError as error:
                raise damage(int(number), f"TensorFlow cannot decode the image: {error.message}") from error
        raise damage(int(numbers[0]), "TensorFlow cannot decode this image, or one of the same batch")

    def checked(images: tf.Tensor, good: tf.Tensor) -> tf.Tensor:
        named = tf.cond(
            tf.reduce_all(good), lambda: images, lambda: tf.numpy_function(look, [numbers, *encoded], tf.uint8)
        )
        return tf.ensure_shape(named, images.shape)

    return images.ignore_errors().concatenate(lost).take(count).batch(count).map(checked)


def decode(image: tf.Tensor, window: tf.Tensor, flip: tf.Tensor, *, size: tuple[int, int]) -> tf.Tensor:
    """Returns one window as uint8 (height, width, 3)."""
    left, top, width, height = tf.unstack(tf.cast(window[0], tf.int32))
    pixels = tf.cond(
        tf.io.is_jpeg(image),
        lambda: _decode_jpeg(image, left, top, width, height),
        lambda: tf.io.decode_image(image, 3, expand_animations=False)[top : top + height, left : left + width],
    )
    scale = tf.cast(tf.stack(size), tf.float32) / window[1, 3:1:-1]  # tf.image.resize does this for a whole image
    resized = tf.raw_ops.ScaleAndTranslate(
        images=pixels[None], size=size, scale=scale, translation=-window[1, 1::-1] * scale, kernel_type="triangle"
    )[0]
    resized = tf.cond(flip, lambda: tf.reverse(resized, [1]), lambda: resized)
    return tf.ensure_shape(tf.cast(tf.round(tf.clip_by_value(resized, 0, 255)), tf.uint8), (*size, 3))


def _decode_jpeg(image: tf.Tensor, left: tf.Tensor, top: tf.Tensor, width: tf.Tensor, height: tf.Tensor) -> tf.Tensor:
    """Returns a box, decoded with a margin: at a window's edge libjpeg lacks the chroma on the other side."""
    full_height, full_width, _ = tf.unstack(tf.io.extract_jpeg_shape(image))
    x, y = tf.maximum(left - _MARGIN, 0), tf.maximum(top - _MARGIN, 0)
    right = tf.minimum(left + width + _MARGIN, full_width)
    bottom = tf.minimum(top + height + _MARGIN, full_height)
    window = tf.stack([y, x, bottom - y, right - x])
    pixels = tf.io.decode_and_crop_jpeg(image, window, channels=3, dct_method="INTEGER_ACCURATE")
    return pixels[top - y : top - y + height, left - x : left - x + width]
