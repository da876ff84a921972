"""The compiled JPEG core: lossless crop-ready rewriting, cropped decode and antialiased resize on libjpeg-turbo.

    make_crop_ready(jpeg)                        the same picture, as a JPEG that windows can be cut from
    decode_batch(buffers, boxes, flips, out)     crops, resized into the rows of one array; a status for each
    decode(jpeg)                                 all pixels
    probe(jpeg)                                  what the headers say
    status_message(status)                       what a status of decode_batch means
    available                                    whether the core was built into this installation

Every function takes any object with the buffer protocol and needs no Python lock while it works, so threads run side
by side; each thread keeps its working memory from image to image. Nothing else is kept: fork and spawn are safe.

A JPEG is refused, whatever function reads it, above 2**28 pixels, above 100 scans, and where it claims more than
1024 pixels for each of its bytes. Damaged or truncated data count as an error once they touch what is decoded; stray
bytes between intact data do not. CMYK, YCCK and 12 bit JPEGs are left to Pillow: their status is UNSUPPORTED.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dlio.errors import MissingPackageError

if TYPE_CHECKING:
    from dlio.native._jpeg import Probe, decode, decode_batch, make_crop_ready, probe, status_message

__all__ = ["Probe", "available", "decode", "decode_batch", "make_crop_ready", "probe", "status_message"]

try:
    from dlio.native import _jpeg
except ModuleNotFoundError:
    _jpeg = None

available = _jpeg is not None
