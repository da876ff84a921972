"""The compiled JPEG core: lossless crop-ready rewriting, cropped decode and antialiased resize on libjpeg-turbo.

    make_crop_ready(jpeg)                        the same picture, as a JPEG that windows can be cut from
    decode_batch(buffers, boxes, flips, out)     crops, resized into the images of one array; a status for each
    decode(jpeg)                                 all pixels
    probe(jpeg)                                  what the headers say
    status_message(status)                       what a status of decode_batch means
    available                                    whether the core was built into this installation

Every function takes any object with the buffer protocol and works without Python's lock, so threads run side by side;
each thread keeps its working memory from image to image, and nothing else is kept, so fork and spawn are safe. Where
the core was not built, `available` is False and the other names raise MissingPackageError.

Crop-ready: a restart marker stands after every k MCUs, where k divides the MCUs of a row and is about 64 pixels. The
intervals between markers can be decoded alone, so decode_batch reads only those that a box touches. Any decoder of
JPEG reads such a file as before.

Bad input: damaged and truncated data are an error as soon as they touch what is decoded; stray bytes between intact
data, and oddities of headers, are not. Refused are more than 2**28 pixels (of the window, where one is cut), more than
100 scans, and more than 1024 pixels for each byte of the file. CMYK, YCCK and 12 bit JPEGs are left to Pillow.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

from dlio.errors import MissingPackageError

if TYPE_CHECKING:
    from dlio.native._jpeg import Probe, decode, decode_batch, make_crop_ready, probe, status_message

__all__ = ["Probe", "available", "decode", "decode_batch", "make_crop_ready", "probe", "status_message"]

available = importlib.util.find_spec("dlio.native._jpeg") is not None
if available:
    from dlio.native import _jpeg as _core


def __getattr__(name: str) -> Any:
    """Returns a function of the core; raises MissingPackageError where it was not built."""
    if name not in __all__:
        raise AttributeError(f"module 'dlio.native' has no attribute {name!r}")
    if not available:
        raise MissingPackageError(
            f"dlio.native.{name} needs the compiled JPEG core, which this installation of dlio was built without: "
            "install libjpeg-turbo's headers (apt-get install libjpeg62-turbo-dev) and dlio again"
        )
    return getattr(_core, name)
