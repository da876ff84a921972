"""NumPy's `.npy`, without its Python objects (numpy `lib/format.py`, versions 1.0 to 3.0).

    \\x93NUMPY | u8 major | u8 minor | u16le or, from version 2.0, u32le length | header, a Python literal | the array

The header is matched, not evaluated: a damaged or hostile one raises ValueError and has no other effect.
"""
# numpy.lib.format writes a float32[14] in 18 us and reads it in 42 us, this module in 2.5 and 7 us (one core of a Xeon,
# numpy 2); WebDataset has such a file in every sample.

from __future__ import annotations

import math
import re
from functools import lru_cache

import numpy as np

from dlio.dataset.schema import Array

MAGIC = b"\x93NUMPY"
HEAD_BYTES = 4096  # which hold the header of an array of numbers
_HEADER = re.compile(
    rb"\{'descr': '([<>|=]?[biuf][0-9]{1,2})', 'fortran_order': (True|False), "
    rb"'shape': \((|[0-9]{1,19},|[0-9]{1,19}(?:, [0-9]{1,19}){1,31},?)\),? ?\} *\n"
)


def encode(array: Array) -> bytes:
    """Returns the file of an array of numbers, little-endian, row-major."""
    little = np.asarray(array, dtype=array.dtype.newbyteorder("<"), order="C")
    return b"".join([_head(little.dtype.str, little.shape), little.data])


@lru_cache(1 << 10)
def _head(descr: str, shape: tuple[int, ...]) -> bytes:
    literal = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    header = literal + b" " * (-(len(literal) + 11) % 64) + b"\n"  # the array begins at a multiple of 64 bytes
    return b"".join([MAGIC, b"\x01\x00", len(header).to_bytes(2, "little"), header])


def decode(data: bytes | memoryview) -> Array:
    """Returns a new array, in this machine's byte order.

    Raises:
        ValueError: as `view`.
    """
    found = view(data)
    return found.astype(found.dtype.newbyteorder("="))


def view(data: bytes | memoryview) -> Array:
    """Returns the array that lies in `data`, in the file's byte order.

    Raises:
        ValueError: `data` is not a `.npy` of numbers, or its size does not match its header.
    """
    file = memoryview(data)
    dtype, shape, by_columns, ends = parse_head(file)
    if math.prod(shape) * dtype.itemsize != len(file) - ends:
        raise ValueError(f"the .npy has {len(file) - ends} bytes, expected {list(shape)} of {dtype}")
    array = np.frombuffer(file[ends:], dtype=dtype)
    return array.reshape(shape[::-1]).T if by_columns else array.reshape(shape)


def parse_head(file: bytes | memoryview) -> tuple[np.dtype[np.generic], tuple[int, ...], bool, int]:
    """Returns dtype, shape, whether columns come first, and where the array begins, of a `.npy` or its first bytes.

    Raises:
        ValueError: it is not a `.npy` of numbers.
    """
    if bytes(file[:6]) != MAGIC or len(file) < 12 or file[6] not in (1, 2, 3):
        raise ValueError("the file is not a .npy")
    begins = 10 if file[6] == 1 else 12
    ends = begins + int.from_bytes(file[8:begins], "little")
    match = _HEADER.fullmatch(file[begins:ends]) if ends <= len(file) else None
    if match is None:
        raise ValueError("the .npy has a damaged header, or does not hold numbers")
    shape = tuple(int(dim) for dim in match[3].replace(b",", b" ").split())
    try:
        return np.dtype(match[1].decode()), shape, match[2] == b"True", ends
    except TypeError as error:
        raise ValueError(f"the .npy has an unknown type: {error}") from None
