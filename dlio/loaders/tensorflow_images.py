"""Windows of single images, decoded and resized by TensorFlow's operations."""

from __future__ import annotations

import tensorflow as tf

_MARGIN = 2  # pixels


def decode(image: tf.Tensor, window: tf.Tensor, flip: tf.Tensor, size: tuple[int, int]) -> tf.Tensor:
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
