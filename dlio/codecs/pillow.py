"""Pillow's decoders, asked for common formats only: the one place that opens an image by Pillow.

Left to itself Pillow tries every plugin it has, whatever the file is called: one starts Ghostscript on PostScript, and
damage in a rare format raises whatever its plugin happens to raise.
"""

from __future__ import annotations

import io
import struct
import zlib

from PIL import Image

#: The formats whose suffixes the image folder takes, and GIF, in which such names are often found.
FORMATS = ("JPEG", "PNG", "BMP", "PPM", "TIFF", "WEBP", "GIF")

#: What Pillow raises on damaged files of these formats, when it opens them or later, when it decodes.
ERRORS = (
    OSError,
    SyntaxError,
    ValueError,
    TypeError,
    AttributeError,
    LookupError,
    ArithmeticError,
    EOFError,
    MemoryError,
    RuntimeError,  # NotImplementedError too
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
)


def open_image(data: bytes | memoryview) -> Image.Image:
    """Returns an encoded image of one of `FORMATS`, its header read, its pixels not; safe in several threads.

    Raises:
        one of ERRORS: it is of no such format, is damaged, or has more than `dlio.dataset.schema.MAX_PIXELS` pixels.
    """
    return Image.open(io.BytesIO(data), formats=FORMATS)


def reason(error: BaseException) -> str:
    """Returns what one of `ERRORS` says, as the end of a message."""
    if "cannot identify image file" in str(error):
        return f"no known format, expected {', '.join(FORMATS)}"
    return str(error) or type(error).__name__
