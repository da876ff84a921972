"""Decode-ready records: JPEGs in their own form, which the compiled core decodes in about half of the time.

Packing makes them from JPEGs that can be restored from them. Decoders read them as JPEGs. No other program reads them,
so wherever the bytes of an image leave dlio, they are a JPEG again.
"""

from __future__ import annotations

from typing import Any, TypeGuard

from dlio import native
from dlio.dataset.schema import DECODE_READY_START


def is_record(data: object) -> TypeGuard[bytes | memoryview]:
    """Returns whether these are bytes that begin as a decode-ready record."""
    return isinstance(data, bytes | memoryview) and data[: len(DECODE_READY_START)] == DECODE_READY_START


def check_core() -> None:
    """Raises MissingPackageError if this installation cannot read decode-ready records."""
    if not native.decodes_jpeg:
        raise native.missing("reading decode-ready records")


def restored(data: Any) -> Any:
    """Returns the JPEG that a decode-ready record, or each of a list, was made from; anything else unchanged.

    Raises:
        DataError: a record is damaged, or of a version that this core does not read.
        MissingPackageError: this installation cannot read such records.
    """
    if isinstance(data, list):
        return [restored(each) for each in data] if any(map(is_record, data)) else data
    if not is_record(data):
        return data
    check_core()
    return native.from_planes(data)
