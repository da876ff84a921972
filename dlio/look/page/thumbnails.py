"""Small images as inline JPEGs, which together take no more than a number of bytes."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping

from PIL import Image

from dlio.codecs.pillow import encoded
from dlio.look.page.html import text

_SIDE = 96  # pixels
_QUALITIES = (80, 60, 40, 20)


def inline(
    numbers: Iterable[int], open_image: Callable[[int], Image.Image | None], most_bytes: int
) -> Mapping[int, str]:
    """Returns the data URLs of small versions of images, by number; those that do not fit are left out.

    Args:
        numbers: the images, the most important first.
        open_image: returns an image, None if it cannot be decoded.
        most_bytes: of all data URLs together.
    """
    images = {number: image for number in dict.fromkeys(numbers) if (image := _small(open_image(number)))}
    for quality in _QUALITIES:
        jpegs = {number: encoded(image, "JPEG", quality=quality, optimize=True) for number, image in images.items()}
        urls = {each: f"data:image/jpeg;base64,{b64encode(jpeg).decode()}" for each, jpeg in jpegs.items()}
        if sum(map(len, urls.values())) <= most_bytes:
            return urls
    kept: dict[int, str] = {}
    for number, url in urls.items():
        most_bytes -= len(url)
        if most_bytes >= 0:
            kept[number] = url
    return kept


def _small(image: Image.Image | None) -> Image.Image | None:
    if image is not None:
        image.thumbnail((_SIDE, _SIDE))
    return image


def image_tag(url: str | None, title: str) -> str:
    """Returns an image with a title that appears when one points to it; "" without an image."""
    return f'<img src="{url}" title="{text(title)}" alt="{text(title)}">' if url else ""
