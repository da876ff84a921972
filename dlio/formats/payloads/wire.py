"""Protobuf's wire format, written straight into parts (https://protobuf.dev/programming-guides/encoding)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dlio.formats.payloads import Part
from dlio.io.random_access import Numbers

MAX_VARINT_BYTES = 10
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


def varints(numbers: Numbers) -> bytes:
    """Returns whole numbers as `varint` writes them, one after the other.

    Args:
        numbers: int64 of shape (n,).
    """
    rest = numbers.astype(np.uint64)
    width = max(1, -(-int(rest.max(initial=0)).bit_length() // 7))
    out, used = np.empty((len(rest), width), np.uint8), np.empty((len(rest), width), np.bool_)
    for at in range(width):
        used[:, at] = rest if at else True
        out[:, at] = rest & 0x7F
        rest >>= np.uint64(7)
        out[:, at] |= (rest != 0).view(np.uint8) << 7
    return out[used].tobytes()


def parse_varints(data: bytes) -> Numbers:
    """Returns the numbers in a series of varints; int64 of shape (n,).

    Raises:
        ValueError: the last one is cut off, or one has more than 10 bytes.
    """
    raw = np.frombuffer(data, np.uint8)
    lasts = np.flatnonzero(raw < 0x80)
    firsts = np.concatenate([[0], lasts[:-1] + 1])[: len(lasts)]
    lengths = lasts - firsts + 1
    width = int(lengths.max(initial=0))
    if width > MAX_VARINT_BYTES or (len(raw) and raw[-1] >= 0x80):
        raise ValueError("a packed list of numbers is damaged")
    numbers = np.zeros(len(lasts), np.uint64)
    for at in range(width):
        longer = lengths > at
        numbers[longer] |= (raw[firsts[longer] + at] & 0x7F).astype(np.uint64) << np.uint64(7 * at)
    return numbers.view(np.int64)


def varint_bytes(numbers: Numbers) -> Numbers:
    """Returns how many bytes `varint` takes for each of `numbers`, which are at least 0; int64, same shape."""
    return 1 + np.searchsorted(1 << np.arange(7, 63, 7), numbers, side="right")


def delimited(field: int, parts: Sequence[Part]) -> list[Part]:
    """Returns a field of bytes or of a message, made of `parts`, with its tag and length before them."""
    return [varint(field << 3 | 2) + varint(sum(map(len, parts))), *parts]
