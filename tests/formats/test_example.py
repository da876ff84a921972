"""What an Example tells of an image, beside the image itself."""

from __future__ import annotations

import pytest

from dlio.dataset.schema import IMAGE_CLASSIFICATION, Sample
from dlio.formats.payloads import example
from dlio.pack.inspect.image_header import inspect_image
from tests.helpers.images import image


@pytest.mark.parametrize(
    ("kind", "mode", "channels", "colorspace"),
    [
        ("JPEG", "L", 1, b"Grayscale"),
        ("JPEG", "RGB", 3, b"RGB"),
        ("JPEG", "CMYK", 4, b"CMYK"),
        ("PNG", "I;16", 1, b"Grayscale"),
        ("PNG", "LA", 2, b"GrayscaleAlpha"),
        ("PNG", "P", 3, b"RGB"),
        ("PNG", "RGBA", 4, b"RGBA"),
    ],
)
def test_channels_and_colorspace_are_those_of_the_pixels(kind, mode, channels, colorspace):
    data = image(1, kind, mode)
    sample = Sample("a/1", {"image": data, "label": 0}, inspect_image(data))
    features = example.parse(b"".join(example.encode(sample, IMAGE_CLASSIFICATION)))
    assert list(features["image/channels"].int64_list.value) == [channels]
    assert list(features["image/colorspace"].bytes_list.value) == [colorspace]
