"""Tar archives: headers of 512 bytes, each followed by a member's data and zeros up to a multiple of 512.

Only POSIX ustar is written. Read are ustar and the headers of GNU and pax for long names
(POSIX.1-2017 `pax`, "ustar Interchange Format" and "pax Extended Header"; GNU tar manual, "Basic Tar Format").
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from dlio.errors import corrupt_errors
from dlio.io.random_access import RandomAccessFile

BLOCK_BYTES = 512
NAME_BYTES = 100
PREFIX_BYTES = 155
MAX_MEMBER_BYTES = (1 << 33) - 1  # eleven octal digits
END = bytes(2 * BLOCK_BYTES)
_MAX_LONG_NAME_BYTES = 1 << 16  # limit for a header with a long name; Linux allows paths of 4096 bytes
_REGULAR = b"0\0007"
_GNU_LONG_NAME, _PAX, _GNU_SPARSE = b"L", b"x", b"S"
_WITHOUT_DATA = b"123456"  # links, devices, folders and pipes: whatever their size says
_PAX_RECORD = re.compile(rb"([0-9]{1,9}) ([^=\n]+)=")

# mode 0444, uid 0, gid 0 come before the size, mtime 0 after it; type, link, magic, owner, device after the checksum
_BEFORE_SIZE = b"0000444\0" + 2 * b"0000000\0"
_OWNER = 2 * b"bigdata".ljust(32, b"\0")
_TIME = b"\0" + b"00000000000\0"
_AFTER_CHECKSUM = b"0" + bytes(100) + b"ustar\00000" + _OWNER + 2 * b"0000000\0"
_CHECKSUM_AT = 148
_CONSTANT_SUM = sum(_BEFORE_SIZE + _TIME + b" " * 8 + _AFTER_CHECKSUM)


def frame(stem: bytes, extension: bytes, prefix: bytes, num_bytes: int) -> tuple[bytes, bytes]:
    """Returns the bytes around the data of the file `prefix/stem` + `extension` of `num_bytes`.

    Returns:
        Its ustar header, 512 bytes, and the zeros after the data.
    """
    before, checksum, after, zeros = _without_stem(len(stem), extension, prefix, num_bytes)
    return b"%b%b%06o\0 %b" % (stem, before, checksum + _sum(stem), after), zeros


@lru_cache(1 << 12)  # small images have few sizes
def _without_stem(stem_bytes: int, extension: bytes, prefix: bytes, size: int) -> tuple[bytes, int, bytes, bytes]:
    """Returns the bytes between stem and checksum, the sum of all but the stem, the bytes after both, and the zeros."""
    octal = b"%011o" % size
    before = extension.ljust(NAME_BYTES - stem_bytes, b"\0") + _BEFORE_SIZE + octal + _TIME
    checksum = _CONSTANT_SUM + _sum(extension) + _sum(octal) + _sum(prefix)
    return before, checksum, _AFTER_CHECKSUM + prefix.ljust(167, b"\0"), bytes(padding(size))


def _sum(data: bytes) -> int:
    """Returns the sum of up to 256 bytes, from the checksum that begins with it (RFC 1950), five times as fast."""
    return (zlib.adler32(data) & 0xFFFF) - 1


def padding(num_bytes: int) -> int:
    """Returns how many zeros follow a member of `num_bytes`."""
    return -num_bytes % BLOCK_BYTES


@dataclass(frozen=True, slots=True)
class Header:
    """A header: path, type and size in bytes of the member that follows it."""

    name: bytes
    kind: bytes
    num_bytes: int

    @property
    def is_regular(self) -> bool:
        """True for a file; a name that ends in a slash is a folder in the oldest tars."""
        return self.kind in _REGULAR and not self.name.endswith(b"/")

    @classmethod
    def parse(cls, block: bytes | memoryview) -> Header:
        """Returns the header in 512 bytes.

        Raises:
            ValueError: it is not a header, or its checksum is wrong.
        """
        block = bytes(block)
        if len(block) != BLOCK_BYTES or _checksum(block) != _number(block[_CHECKSUM_AT : _CHECKSUM_AT + 8]):
            raise ValueError("no tar header, or its checksum is wrong: restore the file")
        name = block[:NAME_BYTES].partition(b"\0")[0]
        prefix = block[345 : 345 + PREFIX_BYTES].partition(b"\0")[0] if block[257:263] == b"ustar\0" else b""
        return cls(prefix + b"/" + name if prefix else name, block[156:157], _number(block[124:136]))


def _checksum(block: bytes) -> int:
    return sum(block[:_CHECKSUM_AT]) + sum(block[_CHECKSUM_AT + 8 :]) + 8 * ord(" ")


def _number(field: bytes) -> int:
    """Returns a number in octal digits, or in GNU's form for large ones: the first byte is 0x80, big-endian."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    digits = field.strip(b" \0") or b"0"
    if not digits.isdigit():
        raise ValueError(f"a tar header has the number {digits!r}, expected octal digits: restore the file")
    return int(digits, 8)


@dataclass(frozen=True, slots=True)
class TarMember:
    """A file in a tar: its path, and where its data begins and how much there is, in bytes."""

    name: bytes
    offset: int
    num_bytes: int


def scan(file: RandomAccessFile) -> Iterator[TarMember]:
    """Yields the files of a tar in order, by reading the headers only.

    Raises:
        CorruptRecordError: a header is damaged, or the tar ends without its end mark; names the offset.
    """
    offset = 0
    extended: dict[bytes, bytes] = {}
    while (block := file.read(offset, BLOCK_BYTES)) != END[:BLOCK_BYTES]:
        with corrupt_errors(file.path, offset=offset):
            head = Header.parse(block)
            num_bytes = _data_bytes(head, extended, file.num_bytes - offset - BLOCK_BYTES)
            if head.kind in (_GNU_LONG_NAME, _PAX):
                extended |= _extension(head.kind, file.read(offset + BLOCK_BYTES, num_bytes))
            elif head.is_regular:
                yield TarMember(extended.get(b"path", head.name), offset + BLOCK_BYTES, num_bytes)
        if head.kind not in (_GNU_LONG_NAME, _PAX):
            extended = {}
        offset += BLOCK_BYTES + num_bytes + padding(num_bytes)


def _data_bytes(head: Header, extended: dict[bytes, bytes], left: int) -> int:
    """Returns the size, in bytes, of the data after a header, at most `left`."""
    if head.kind in _WITHOUT_DATA:
        return 0
    if head.kind == _GNU_SPARSE or b"GNU.sparse.major" in extended:
        raise ValueError("a sparse file: write the tar without --sparse")
    is_extension = head.kind in (_GNU_LONG_NAME, _PAX)
    num_bytes = head.num_bytes if is_extension else int(extended.get(b"size", head.num_bytes))
    limit = min(left, _MAX_LONG_NAME_BYTES) if is_extension else left
    if not 0 <= num_bytes <= limit:
        raise ValueError(f"a member of {num_bytes} bytes where at most {limit} fit: the file is cut off or damaged")
    return num_bytes


def _extension(kind: bytes, data: bytes) -> dict[bytes, bytes]:
    """Returns the facts of an extra header about the next member, such as its path."""
    if kind == _GNU_LONG_NAME:
        return {b"path": data.rstrip(b"\0")}
    records: dict[bytes, bytes] = {}
    position = 0
    while match := _PAX_RECORD.match(data, position):
        end = position + int(match[1])
        if not match.end() < end <= len(data) or data[end - 1 : end] != b"\n":
            break
        records[match[2]] = data[match.end() : end - 1]
        position = end
    if position != len(data):
        raise ValueError("a pax header is damaged: restore the file")
    return records
