"""Decode, random crop and flip as users write it for loaders that bring none: simplejpeg and OpenCV.

OpenCV's bilinear resize is not antialiased, which makes it cheaper than torchvision's and dlio's.
"""

from __future__ import annotations

import math
import random
from typing import Any

import cv2
import numpy as np
import simplejpeg
from numpy.typing import NDArray

cv2.setNumThreads(1)


def random_box(height: int, width: int) -> tuple[int, int, int, int]:
    """Returns top, left, height, width of a box drawn as torchvision's RandomResizedCrop draws it."""
    for _ in range(10):
        area = height * width * random.uniform(0.08, 1)
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return random.randint(0, height - h), random.randint(0, width - w), h, w
    side = min(height, width)
    return (height - side) // 2, (width - side) // 2, side, side


def random_crop(data: Any, pixels: int) -> NDArray[np.uint8]:
    """Returns a random crop of an encoded image, mirrored half of the time: uint8 (pixels, pixels, 3)."""
    if bytes(data[:2]) == b"\xff\xd8":
        image = simplejpeg.decode_jpeg(data)
    else:
        image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB)
    top, left, height, width = random_box(*image.shape[:2])
    crop = cv2.resize(image[top : top + height, left : left + width], (pixels, pixels))
    return cv2.flip(crop, 1) if random.random() < 0.5 else crop
