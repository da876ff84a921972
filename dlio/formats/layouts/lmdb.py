"""The layout of an LMDB file, and the offsets of its records (LMDB 0.9 `mdb.c`, data version 1; 64-bit little-endian).

It consists of pages, numbered from 0. Their size is in pages 0 and 1, the two meta pages; the meta page with the higher
transaction number counts.

    page   u64 number | u16 pad | u16 flags | u16 lower, u16 upper, or u32 number of overflow pages
    meta   page | u32 0xBEEFC0DE | u32 version | u64 address | u64 map size | db of free pages | db of records
           | u64 last page | u64 transaction
    db     u32 page size | u16 flags | u16 depth | u64 branch, leaf, overflow pages | u64 entries | u64 root
    leaf, branch   page | u16 offsets in the page of its nodes, up to byte `lower` | nodes, from byte `upper` on
    node   u16, u16 low and high half of the value's size | u16 flags | u16 key's size | key | value; in a branch the
           first three numbers are the child's page; with flag 1 the value is the u64 number of an overflow page
    overflow   page | value, which continues over the pages that follow

LMDB itself maps the file and trusts it: a file cut short, or one flipped bit in a page, ends the process with SIGBUS.
Here the B+tree is walked with plain reads: every branch and leaf page is read once and checked against the file's size,
and nothing outside of it is read. LMDB keeps no checksum, so a flip inside a value is not detected.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dlio.errors import CorruptRecordError
from dlio.io.random_access import Numbers, RandomAccessFile

PAGE = struct.Struct("<QHHHH")
OVERFLOW_PAGE = struct.Struct("<QHHI")
META = struct.Struct("<IIQQ" + 2 * "IHHQQQQQ" + "QQ")
NODE = struct.Struct("<HHHH")
MAGIC, VERSION = 0xBEEFC0DE, 1
BRANCH, LEAF, OVERFLOW, META_PAGE = 1, 2, 4, 8
BIG_VALUE = 1
INTEGER_KEYS, DUPLICATE_KEYS = 8, 4
NO_PAGE = 2**64 - 1
MAX_KEY_BYTES = 511

# What dlio writes; LMDB takes the machine's page size, and reads any.
PAGE_BYTES = 4096
ROOM = PAGE_BYTES - PAGE.size
OFFSET_BYTES = 2
MAX_NODE_BYTES = (ROOM // 2 & -2) - OFFSET_BYTES  # `me_nodemax`: with more, the value gets its own pages

_KINDS = 0x2F  # flags of a page's kind
_PAGE_BYTES = frozenset(1 << bits for bits in range(8, 17))
_MAX_DEPTH = 32  # of LMDB's own cursors


@dataclass(frozen=True, slots=True)
class Entries:
    """All records in the order of their keys.

    Attributes:
        page_bytes: the file's page size.
        keys: the records' keys.
        extents: offset in the file and size of each value in bytes, int64 of shape (n, 2).
    """

    page_bytes: int
    keys: list[bytes]
    extents: Numbers

    def value(self, file: RandomAccessFile, index: int) -> memoryview:
        """Returns the value of record `index`.

        Raises:
            CorruptRecordError: its overflow pages are missing.
            StorageError: the file cannot be read.
        """
        offset, num_bytes = map(int, self.extents[index])
        if offset % self.page_bytes != PAGE.size:
            return memoryview(file.read(offset, num_bytes, index))
        start = offset - PAGE.size
        pages = memoryview(file.read(start, PAGE.size + num_bytes, index))
        number, _, flags, num_pages = OVERFLOW_PAGE.unpack_from(pages)
        expected = start // self.page_bytes
        if number != expected or flags & _KINDS != OVERFLOW or num_pages * self.page_bytes < len(pages):
            problem = f"expected overflow page {expected}, with {num_bytes} bytes, found another"
            raise _corrupt(file, problem, record=index, offset=start)
        return pages[PAGE.size :]


def read_entries(file: RandomAccessFile) -> Entries:
    """Returns the records of the unnamed database.

    Raises:
        CorruptRecordError: the file is not an LMDB file, is cut off, or its tree is damaged.
        StorageError: it cannot be read.
    """
    meta = _meta_in_force(file)
    keys: list[bytes] = []
    extents: list[tuple[int, int]] = []
    for leaf in _leaves(file, meta):
        for key, offset, num_bytes in _values(file, meta, leaf, len(keys)):
            keys.append(key)
            extents.append((offset, num_bytes))
    if len(keys) != meta.num_entries:
        raise _corrupt(file, f"expected {meta.num_entries} records in its tree, found {len(keys)}")
    bounds = np.array(extents, dtype="int64").reshape(-1, 2)
    claimed = int(bounds[:, 1].sum())
    if claimed > file.num_bytes:  # else a small file could claim any amount of data
        problem = f"expected records of at most {file.num_bytes} bytes in all, found {claimed}: they overlap"
        raise _corrupt(file, problem)
    return Entries(meta.page_bytes, keys, bounds)


@dataclass(frozen=True, slots=True)
class _Meta:
    """The state of the database of records, as a meta page has it."""

    page_bytes: int
    flags: int
    depth: int
    num_leaves: int
    num_entries: int
    root: int
    last_page: int
    transaction: int

    @property
    def end(self) -> int:
        return (self.last_page + 1) * self.page_bytes


def _meta_in_force(file: RandomAccessFile) -> _Meta:
    first = _meta(file, 0, 0)
    if first.page_bytes not in _PAGE_BYTES:
        raise _corrupt(file, f"its pages have {first.page_bytes} bytes, which is no page size of LMDB", offset=0)
    second = _meta(file, 1, first.page_bytes)
    if second.page_bytes != first.page_bytes:
        problem = f"its meta pages have page sizes of {first.page_bytes} and {second.page_bytes} bytes"
        raise _corrupt(file, problem, offset=first.page_bytes)
    meta = max(first, second, key=lambda meta: meta.transaction)
    # transaction n writes page n mod 2, so the two numbers are neighbours, or both 0 in a new file
    if abs(first.transaction - second.transaction) > 1 or meta is not (first, second)[meta.transaction & 1]:
        raise _corrupt(file, f"its meta pages are of transactions {first.transaction} and {second.transaction}")
    if meta.flags & DUPLICATE_KEYS:
        raise CorruptRecordError(file.path, "its keys have several values each: expected one record for each key")
    return meta


def _meta(file: RandomAccessFile, number: int, offset: int) -> _Meta:
    page = file.read(offset, PAGE.size + META.size)
    found, _, flags, _, _ = PAGE.unpack_from(page)
    magic, version, _, _, page_bytes, *fields = META.unpack_from(page, PAGE.size)
    if found != number or flags & _KINDS != META_PAGE or (magic, version) != (MAGIC, VERSION):
        raise _corrupt(file, f"page {number} is not a meta page of LMDB 0.9, 64-bit little-endian", offset=offset)
    db_flags, depth, _, num_leaves, _, num_entries, root, last_page, transaction = fields[8:]
    return _Meta(page_bytes, db_flags, depth, num_leaves, num_entries, root, last_page, transaction)


def _leaves(file: RandomAccessFile, meta: _Meta) -> list[int]:
    """Returns the page numbers of the leaves in order, level by level from the root."""
    level = [] if meta.root == NO_PAGE else [meta.root]
    if meta.depth > _MAX_DEPTH or (meta.depth == 0) != (not level):
        raise _corrupt(file, f"its tree has the depth {meta.depth} and the root {meta.root}")
    for _ in range(meta.depth - 1):
        level = [child for number in level for child in _children(file, meta, number)]
        if len(set(level)) != len(level):
            raise _corrupt(file, "a page is in its tree twice")
    if len(level) != meta.num_leaves:
        raise _corrupt(file, f"expected {meta.num_leaves} leaves in its tree, found {len(level)}")
    return level


def _children(file: RandomAccessFile, meta: _Meta, number: int) -> Iterator[int]:
    page, nodes = _page(file, meta, number, BRANCH)
    for node in nodes:
        low, middle, high, _ = NODE.unpack_from(page, node)
        yield low | middle << 16 | high << 32


def _values(file: RandomAccessFile, meta: _Meta, number: int, first: int) -> Iterator[tuple[bytes, int, int]]:
    """Yields key, offset and size of the values of a leaf, whose first record has the number `first`."""
    page, nodes = _page(file, meta, number, LEAF)
    end = min(meta.end, file.num_bytes)  # the last pages may never have been written, if no record needs them
    room = len(page)  # nodes that overlap would let a small file claim any number of keys
    for record, node in enumerate(nodes, first):
        low, high, flags, key_bytes = NODE.unpack_from(page, node)
        start, num_bytes = node + NODE.size + key_bytes, low | high << 16
        stop = start + (8 if flags == BIG_VALUE else num_bytes)
        room -= stop - node
        offset = number * meta.page_bytes + start
        if flags == BIG_VALUE:
            offset = int.from_bytes(page[start:stop], "little") * meta.page_bytes + PAGE.size
        problem = _problem(flags, stop > len(page) or room < 0, offset + num_bytes > end)
        if problem:
            raise _corrupt(file, problem, record=record, offset=number * meta.page_bytes + node)
        yield page[node + NODE.size : start], offset, num_bytes


def _problem(flags: int, beyond_page: bool, beyond_file: bool) -> str | None:
    if flags & ~BIG_VALUE:
        return "expected a value, found a named database"
    if beyond_page:
        return "the record goes beyond its page"
    return "the record's value goes beyond the end of the file" if beyond_file else None


def _page(file: RandomAccessFile, meta: _Meta, number: int, kind: int) -> tuple[bytes, tuple[int, ...]]:
    """Returns a branch or leaf page and the offsets of its nodes."""
    if number > meta.last_page:
        raise _corrupt(file, f"its tree refers to page {number}, the last one is {meta.last_page}")
    offset = number * meta.page_bytes
    page = file.read(offset, meta.page_bytes)
    found, _, flags, lower, upper = PAGE.unpack_from(page)
    if found != number or flags & _KINDS != kind or not PAGE.size <= lower <= upper <= len(page):
        expected = "leaf" if kind == LEAF else "branch"
        raise _corrupt(
            file, f"page {number} is not the {expected} page that its place in the tree needs", offset=offset
        )
    nodes = struct.unpack_from(f"<{(lower - PAGE.size) // 2}H", page, PAGE.size)
    if nodes and (min(nodes) < upper or max(nodes) > len(page) - NODE.size):
        raise _corrupt(file, f"page {number} has a node beyond its end", offset=offset)
    return page, nodes


def _corrupt(
    file: RandomAccessFile, problem: str, *, record: int | None = None, offset: int | None = None
) -> CorruptRecordError:
    return CorruptRecordError(file.path, f"{problem}: restore the file", record=record, offset=offset)
