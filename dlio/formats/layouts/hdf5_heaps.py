"""Global heaps of HDF5, checked before the library reads them.

Values of varying length are in heaps, and a row of their dataset refers to them (HDF5 File Format Specification 3.0,
III.E and IV.A.2.d), little-endian:

    row     u32 length | u64 address of the heap | u32 number of the object
    heap    GCOL | u8 version 1 | 3 zeros | u64 size of all | objects
    object  u16 number | u16 references | 4 zeros | u64 size | data, up to a multiple of 8
            number 0 is free space, and its size counts its head, too

HDF5 1.14 loops forever, holding Python's lock, in a heap whose free space has the size 0.
"""

from __future__ import annotations

import struct

from dlio.errors import CorruptRecordError
from dlio.io.random_access import RandomAccessFile

_ROW = struct.Struct("<IQI")
_HEAD = struct.Struct("<4sB3xQ")
_OBJECT = struct.Struct("<HHxxxxQ")


class Heaps:
    """The heaps of a file, each checked once; the library itself finds all other damage."""

    def __init__(self, file: RandomAccessFile) -> None:
        self._file = file
        self._checked: set[int] = set()

    def check(self, row: bytes, record: int) -> None:
        """Checks the heap to which a row refers.

        Raises:
            CorruptRecordError: the library would never return.
            StorageError: the file cannot be read.
        """
        address = _ROW.unpack(row)[1] if len(row) == _ROW.size else self._file.num_bytes
        if address not in self._checked and address + _HEAD.size <= self._file.num_bytes:
            self._walk(address, record)
            self._checked.add(address)

    def _walk(self, address: int, record: int) -> None:
        magic, _, num_bytes = _HEAD.unpack(self._file.read(address, _HEAD.size, record))
        at, end = address + _HEAD.size, min(address + num_bytes, self._file.num_bytes)
        while magic == b"GCOL" and at + _OBJECT.size <= end:
            number, _, size = _OBJECT.unpack(self._file.read(at, _OBJECT.size, record))
            if not number and not size:
                problem = "the free space of an HDF5 heap has the size 0: restore the file"
                raise CorruptRecordError(self._file.path, problem, record=record, offset=at)
            at += _OBJECT.size + -(-size // 8) * 8 if number else size
