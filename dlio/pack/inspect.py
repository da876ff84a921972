"""What an encoded image's header tells, read without decoding."""

from __future__ import annotations

import io
import warnings

from dlio.errors import SourceError
from dlio.sample import ImageInfo

MAX_PIXELS = 1 << 28  # 16,384 x 16,384: beyond this a few kilobytes can ask for gigabytes of memory


def inspect_image(data: bytes) -> ImageInfo:
    """Returns format, size and channels of an encoded image.

    Raises:
        SourceError: `data` is empty, no image that Pillow knows, or larger than `MAX_PIXELS`.
    """
    from PIL import Image

    if not data:
        raise SourceError("it is empty, expected an image")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # our own bound is checked below
            with Image.open(io.BytesIO(data)) as image:
                (width, height), channels = image.size, len(image.getbands())
                kind = image.format or ""
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise SourceError(f"it is no image: {_reason(error)}") from None
    if width * height > MAX_PIXELS:
        raise SourceError(f"it claims {width} x {height} pixels, at most {MAX_PIXELS:,} are accepted")
    return ImageInfo(kind, height, width, channels)


def _reason(error: Exception) -> str:
    text = str(error)
    return "no known format" if "cannot identify image file" in text else text


def decode_image(data: bytes) -> None:
    """Decodes an image and throws the pixels away.

    Raises:
        SourceError: the header or the pixels are damaged.
    """
    from PIL import Image

    inspect_image(data)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(data)) as image:
                image.load()
    except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
        raise SourceError(f"it cannot be decoded: {error}") from None
