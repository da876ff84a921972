"""Small images as inline JPEGs, which together take no more than a number of bytes."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterable, Mapping

from PIL import Image

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
        urls = {number: _url(image, quality) for number, image in images.items()}
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


def _url(image: Image.Image, quality: int) -> str:
    out = io.BytesIO()
    image.save(out, "JPEG", quality=quality, optimize=True)
    return f"data:image/jpeg;base64,{base64.b64encode(out.getvalue()).decode()}"


def image_tag(url: str | None, title: str) -> str:
    """Returns an image with a title that appears when one points to it; "" without an image."""
    return f'<img src="{url}" title="{text(title)}" alt="{text(title)}">' if url else ""
