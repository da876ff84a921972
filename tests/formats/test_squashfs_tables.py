"""What makes a SquashFS image of many files quick and exportable: the index of a large folder, and the export table."""

from __future__ import annotations

import struct

import pytest

from dlio.dataset.schema import IMAGE_CLASSIFICATION, Sample
from dlio.testing.container import Container

COUNT = 3000


def table(data: bytes, begin: int, end: int) -> bytes:
    """Returns the records of a table of stored metadata blocks."""
    found = b""
    while begin < end:
        size = struct.unpack_from("<H", data, begin)[0] & 0x7FFF
        found += data[begin + 2 : begin + 2 + size]
        begin += 2 + size
    return found


def place(reference: int) -> int:
    """Returns where an inode with this reference is in a stored table."""
    return (reference >> 16) // 8194 * 8192 + (reference & 0xFFFF)


@pytest.fixture(scope="module")
def crowded(tmp_path_factory) -> tuple[bytes, bytes, list[int]]:
    """Inodes, listings and the places of inodes by number, of an image with a folder of 3,000 files."""
    records = [Sample(f"class/{n:016}.jpg", {"image": b"\xff\xd8\xff", "label": 0}) for n in range(COUNT)]
    path = Container("squashfs").write(tmp_path_factory.mktemp("crowded") / "shard", IMAGE_CLASSIFICATION, records)
    data = path.read_bytes()
    (count,) = struct.unpack_from("<I", data, 4)
    begin, directories, _, exports = struct.unpack_from("<4Q", data, 64)
    (first,) = struct.unpack_from("<Q", data, exports)  # block of the export table, after the listings
    references = struct.unpack(f"<{count}Q", table(data, first, exports))
    return table(data, begin, directories), table(data, directories, first), [place(each) for each in references]


def test_the_export_table_finds_every_inode_by_its_number(crowded):
    inodes, _, places = crowded
    assert [struct.unpack_from("<I", inodes, at + 12)[0] for at in places] == list(range(1, len(places) + 1))
    assert len(places) > COUNT + 2


def test_a_large_folder_has_an_index_of_its_listing(crowded):
    inodes, listings, places = crowded
    at = places[-2]  # the root is the last
    kind, _, size, block, _, count, offset, _ = struct.unpack_from("<H14x4I2HI", inodes, at)
    assert (kind, size > 0xFFFF) == (8, True)
    begin, at, last = place(block << 16 | offset), at + 40, 0
    for _ in range(count):
        position, where, length = struct.unpack_from("<3I", inodes, at)
        name = inodes[at + 12 : at + 13 + length]
        run = begin + position
        assert where == run // 8192 * 8194
        assert listings[run + 20 : run + 20 + len(name)] == name, "the index leads to no run that begins with its name"
        assert 8192 <= position - last < 2 * 8192
        at, last = at + 13 + length, position
    assert size - last < 2 * 8192
