"""JPEGs as the compiled core reads them; packing, checking and loading all use this module, so that they agree.

Decode-ready records count as JPEGs here.

A function returns None if Pillow has to decode: the core has no libjpeg-turbo, the bytes are not a JPEG, or of a kind
that the core does not decode (CMYK, 12 bit). A damaged JPEG is an error: Pillow would fill it with grey.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeGuard

import numpy as np
import numpy.typing as npt

from dlio import native
from dlio.codecs.decode_ready import check_core, is_record
from dlio.errors import DataError, UnsupportedJpegError

START = b"\xff\xd8\xff"
_ENCODED = (bytes, memoryview)
TRUNCATED = (
    "the JPEG's compressed data are truncated or damaged"  # the message of the core for a file whose end is missing
)


def is_for_core(data: object) -> TypeGuard[bytes | memoryview]:
    """Returns whether this is a JPEG, and the core decodes some.

    Raises:
        MissingPackageError: it is a decode-ready record, which nothing else decodes, and the core decodes no JPEGs.
    """
    if isinstance(data, bytes | memoryview) and data[: len(START)] == START:
        return native.decodes_jpeg
    if is_record(data):
        check_core()
        return native.is_planes(data)
    return False


def probe(data: object) -> native.Probe | None:
    """Returns the headers of a complete JPEG.

    Raises:
        DataError: the headers are bad, or the end is missing.
    """
    if not is_for_core(data):
        return None
    try:
        found = native.probe(data)
    except UnsupportedJpegError:
        return None
    if not found.complete:
        raise DataError(f"{TRUNCATED}: its end is missing")
    return found


def measure(pictures: Sequence[object]) -> npt.NDArray[np.int64]:
    """Returns heights and widths, int64 (n, 2), of the JPEGs that `probe` returns something of; of others 0, 0."""
    if not native.decodes_jpeg:
        return np.zeros((len(pictures), 2), dtype=np.int64)
    return native.measure([picture if isinstance(picture, _ENCODED) else b"" for picture in pictures])


def decode(data: object) -> npt.NDArray[np.uint8] | None:
    """Returns all pixels of a JPEG, uint8 (height, width, 3), RGB.

    Raises:
        DataError: it is damaged.
    """
    if not is_for_core(data) or probe(data) is None:
        return None
    try:
        return native.decode(data)
    except UnsupportedJpegError:
        return None


def error_of(status: int) -> DataError:
    """Returns the error of a status of the core."""
    return DataError(native.status_message(status))
