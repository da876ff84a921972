"""Opens images by Pillow, in common formats only, and encodes them; no other module does.

By default Pillow tries all of its plugins: one starts Ghostscript on PostScript, and the plugins of rare formats raise
any exception on damage.
"""

from __future__ import annotations

import io
import re
import struct
import zlib
from typing import Any

from numpy.typing import NDArray
from PIL import Image

from dlio.codecs.decode_ready import restored

#: The formats whose suffixes the image folder takes, and GIF, which files of such names often are.
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

_MOST_SCANS = 100  # as in the core: a few bytes of a JPEG may ask for one more pass over all pixels
_START, _SCAN, _END = b"\xff\xd8", b"\xff\xda", b"\xff\xd9"
_SEGMENT = re.compile(rb"\xff[\x02-\xcf\xd8-\xfe]")  # not stuffed bytes and restarts, which are within a scan


def open_image(data: bytes | memoryview) -> Image.Image:
    """Returns an encoded image of one of `FORMATS`, its header read, its pixels not; safe in several threads.

    A decode-ready record is opened as the JPEG that it was made of.

    Raises:
        one of ERRORS: it is of another format, is damaged, or has more than `dlio.dataset.schema.MAX_PIXELS` pixels or
            100 scans.
    """
    file = bytes(restored(data))
    if file.startswith(_START):
        _check_scans(file)
    return Image.open(io.BytesIO(file), formats=FORMATS)


def _check_scans(jpeg: bytes) -> None:
    """Raises ValueError for a JPEG of too many scans."""
    at, scans = len(_START), 0
    while (segment := _SEGMENT.search(jpeg, at)) and segment[0] != _END:
        at = segment.end() + int.from_bytes(jpeg[segment.end() : segment.end() + 2], "big")
        scans += segment[0] == _SCAN
        if scans > _MOST_SCANS:
            raise ValueError(f"the JPEG has more than {_MOST_SCANS} scans")


def encoded(image: Image.Image | NDArray[Any], kind: str = "PNG", **options: Any) -> bytes:
    """Returns the file of an image, or of an array's pixels, with Pillow's options of this kind of file."""
    out = io.BytesIO()
    (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(out, kind, **options)
    return out.getvalue()


def reason(error: BaseException) -> str:
    """Returns the message of one of `ERRORS`."""
    if "cannot identify image file" in str(error):
        return f"no known format, expected {', '.join(FORMATS)}"
    return str(error) or type(error).__name__
