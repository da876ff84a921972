"""Checksums made to fit again, so that a mutation reaches what they guard."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator

from dlio.dataset import seal
from dlio.dataset.location import NAME
from dlio.formats.tfrecord import masked_crc

_BLOCK_BYTES = 512
_ZIP_ENTRY, _ZIP_LOCAL = b"PK\1\2", b"PK\3\4"


def tfrecord(data: bytes) -> bytes:
    """Returns TFRecords whose lengths and data have the right checksums, as far as the lengths lead."""
    fixed, at = bytearray(data), 0
    while at + 12 <= len(fixed):
        length = int.from_bytes(fixed[at : at + 8], "little")
        fixed[at + 8 : at + 12] = struct.pack("<I", masked_crc(bytes(fixed[at : at + 8])))
        end = at + 12 + length
        if end + 4 > len(fixed):
            break
        fixed[end : end + 4] = struct.pack("<I", masked_crc(bytes(fixed[at + 12 : end])))
        at = end + 4
    return bytes(fixed)


def tar(data: bytes) -> bytes:
    """Returns a tar in which every block with ustar's magic has the right checksum."""
    fixed = bytearray(data)
    for at in range(0, len(fixed) - _BLOCK_BYTES + 1, _BLOCK_BYTES):
        if fixed[at + 257 : at + 262] == b"ustar":
            fixed[at + 148 : at + 156] = b" " * 8
            fixed[at + 148 : at + 156] = b"%06o\0 " % sum(fixed[at : at + _BLOCK_BYTES])
    return bytes(fixed)


def zipped(data: bytes) -> bytes:
    """Returns a zip whose directory and local headers tell the CRC-32 of what each member holds."""
    fixed = bytearray(data)
    for entry in _occurrences(data, _ZIP_ENTRY):
        if entry + 46 > len(fixed):
            continue
        method, packed, header = fixed[entry + 10], _u32(fixed, entry + 20), _u32(fixed, entry + 42)
        if fixed[header : header + 4] != _ZIP_LOCAL or header + 30 > len(fixed):
            continue
        start = header + 30 + _u16(fixed, header + 26) + _u16(fixed, header + 28)
        crc = struct.pack("<I", zlib.crc32(_content(bytes(fixed[start : start + packed]), method)))
        fixed[entry + 16 : entry + 20] = fixed[header + 14 : header + 18] = crc
    return bytes(fixed)


def manifest(data: bytes) -> bytes:
    """Returns a manifest whose last line has the digest of the others."""
    return seal.sealed(data[: data.rfind(b"\n", 0, -1) + 1])


def _content(packed: bytes, method: int) -> bytes:
    try:
        return zlib.decompressobj(-zlib.MAX_WBITS).decompress(packed, 1 << 24) if method else packed
    except zlib.error:
        return b""


def _occurrences(data: bytes, mark: bytes) -> Iterator[int]:
    at = data.find(mark)
    while at >= 0:
        yield at
        at = data.find(mark, at + 1)


def _u16(data: bytearray, at: int) -> int:
    return int.from_bytes(data[at : at + 2], "little")


def _u32(data: bytearray, at: int) -> int:
    return int.from_bytes(data[at : at + 4], "little")


#: What repairs a file, by a part of its name. HDF5's and LMDB's pages as dlio and these libraries write them by
#: default, RecordIO, MDS and the lists have no checksums.
REPAIRS: dict[str, Callable[[bytes], bytes]] = {
    NAME: manifest,
    ".tfrecord": tfrecord,
    ".tar": tar,
    ".npz": zipped,
    ".zip": zipped,
}


def repaired(name: str, data: bytes) -> bytes:
    """Returns a file's content with checksums that fit; unchanged if the file has none."""
    return next((repair(data) for part, repair in REPAIRS.items() if part in name), data)
