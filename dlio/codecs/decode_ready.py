"""Decode-ready records: JPEGs in a form of their own, which the compiled core decodes in about half of the time.

Packing makes them of JPEGs that come back from them. Decoders read them as JPEGs. No other program reads them, so
wherever the bytes of an image leave dlio, they are a JPEG again.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dlio import native
from dlio.dataset.schema import DECODE_READY_START
from dlio.errors import DataError


def is_record(data: object) -> bool:
    """Returns whether these are bytes that begin as a decode-ready record."""
    return isinstance(data, bytes | memoryview) and data[: len(DECODE_READY_START)] == DECODE_READY_START


def check_core() -> None:
    """Raises MissingPackageError if this installation cannot read decode-ready records."""
    if not native.decodes_jpeg:
        raise native.missing("reading decode-ready records")


def made(jpeg: bytes) -> bytes | None:
    """Returns the decode-ready record of a JPEG; None if it is of a kind that has none, or would not come back.

    A baseline JPEG comes back byte for byte, a progressive one as a baseline JPEG of the same pixels.
    """
    record = native.to_planes(jpeg)
    return record if record is not None and _comes_back(record, jpeg) else None


def _comes_back(record: bytes, jpeg: bytes) -> bool:
    back = native.from_planes(record)
    if native.planes_restores_original(record):
        return bool(back == jpeg)
    try:
        return np.array_equal(native.decode(back), native.decode(jpeg))
    except DataError:
        return False


def was_progressive(record: bytes) -> bool:
    """Returns whether a record was made of a progressive JPEG, so that it comes back as a baseline one."""
    return not native.planes_restores_original(record)


def restored(data: Any) -> Any:
    """Returns the JPEG that a decode-ready record, or each of a list, was made of; anything else as it is.

    Raises:
        DataError: a record is damaged.
        MissingPackageError: this installation cannot read such records.
    """
    if isinstance(data, list):
        return [restored(each) for each in data] if any(map(is_record, data)) else data
    if not is_record(data):
        return data
    check_core()
    try:
        return native.from_planes(data)
    except ValueError as error:
        raise DataError(f"its decode-ready record is damaged: {error}") from None
