"""Protobuf's wire format, written straight into parts (https://protobuf.dev/programming-guides/encoding)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dlio.formats.payloads import Part
from dlio.io.random_access import Numbers

_ONE_BYTE = [bytes([number]) for number in range(0x80)]


def varint(number: int) -> bytes:
    """Returns a whole number as protobuf's int32, int64 and bool write it; negative ones take 10 bytes."""
    if 0 <= number <= 0x7F:
        return _ONE_BYTE[number]
    if 0 <= number <= 0x1FFFFF:  # the sizes of images
        low, high = number & 0x7F | 0x80, number >> 7
        return bytes((low, high) if high <= 0x7F else (low, high & 0x7F | 0x80, high >> 7))
    number &= 0xFFFFFFFFFFFFFFFF
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def varint_bytes(numbers: Numbers) -> Numbers:
    """Returns how many bytes `varint` takes for each of `numbers`, which are at least 0; int64, same shape."""
    return 1 + np.searchsorted(1 << np.arange(7, 63, 7), numbers, side="right")


def delimited(field: int, parts: Sequence[Part]) -> list[Part]:
    """Returns a field of bytes or of a message, made of `parts`, with its tag and length before them."""
    return [varint(field << 3 | 2) + varint(sum(map(len, parts))), *parts]
