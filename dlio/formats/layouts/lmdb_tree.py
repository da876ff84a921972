"""Writing the B+tree of an LMDB file from its first page to its last.

Records come in the order of their keys, so every page is full when it is written and never changes, except for the meta
pages: they describe an empty database until the end. LMDB itself would map the file, list the pages that a transaction
changes, and leave random memory in their unused parts. Here equal records give equal bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dlio.formats.layouts import lmdb as layout
from dlio.formats.layouts.lmdb import MAX_NODE_BYTES, OFFSET_BYTES, PAGE_BYTES, ROOM
from dlio.formats.payloads import Part

_BUFFER_BYTES = 128 << 10  # for small records; the values of large ones are written without a copy
_NO_RECORDS = 0, 0, 0, 0, 0, 0, 0, layout.NO_PAGE
_NO_FREE_PAGES = PAGE_BYTES, layout.INTEGER_KEYS, *_NO_RECORDS[2:]


def _meta(number: int, transaction: int, num_pages: int, records: tuple[int, ...]) -> bytes:
    """Returns the meta page `number` of a file of `num_pages`, after a transaction that left these records."""
    head = layout.PAGE.pack(number, 0, layout.META_PAGE, 0, 0)
    map_bytes = num_pages * PAGE_BYTES
    state = *_NO_FREE_PAGES, *records, num_pages - 1, transaction
    return (head + layout.META.pack(layout.MAGIC, layout.VERSION, 0, map_bytes, *state)).ljust(PAGE_BYTES, b"\0")


class TreeWriter:
    """Writes the records of the unnamed database to a new file; used by one thread."""

    def __init__(self, path: Path) -> None:
        """Creates the file.

        Raises:
            OSError: it is there already, or cannot be made.
        """
        self._file = path.open("xb", buffering=_BUFFER_BYTES)
        self._num_pages = {layout.BRANCH: 0, layout.LEAF: 0, layout.OVERFLOW: 0}
        self._next_page = 2
        self._num_entries = 0
        self._nodes: list[bytes] = []  # of the leaf that is being filled
        self._room = ROOM
        self._leaves: list[tuple[bytes, int]] = []  # first key and page number
        self._file.writelines(_meta(number, 0, 2, _NO_RECORDS) for number in range(2))

    def put(self, key: bytes, parts: Sequence[Part], num_bytes: int) -> None:
        """Appends a record, whose value is `parts` of `num_bytes` bytes; its key follows all earlier ones.

        Raises:
            OSError: the file system refused.
        """
        sizes = num_bytes & 0xFFFF, num_bytes >> 16
        if layout.NODE.size + len(key) + num_bytes <= MAX_NODE_BYTES:
            node = b"".join([layout.NODE.pack(*sizes, 0, len(key)), key, *parts])
        else:
            number = self._write_value(parts, num_bytes)
            node = layout.NODE.pack(*sizes, layout.BIG_VALUE, len(key)) + key + number.to_bytes(8, "little")
        if len(node) % 2:
            node += b"\0"
        self._room -= len(node) + OFFSET_BYTES
        if self._room < 0:
            self._end_leaf()
            self._room -= len(node) + OFFSET_BYTES
        self._nodes.append(node)
        self._num_entries += 1

    def _write_value(self, parts: Sequence[Part], num_bytes: int) -> int:
        """Writes a value to its own pages and returns the number of the first."""
        number, num_pages = self._next_page, -(-(layout.PAGE.size + num_bytes) // PAGE_BYTES)
        head = layout.OVERFLOW_PAGE.pack(number, 0, layout.OVERFLOW, num_pages)
        zeros = bytes(num_pages * PAGE_BYTES - num_bytes - len(head))
        self._file.writelines([head, *parts, zeros])
        self._num_pages[layout.OVERFLOW] += num_pages
        self._next_page += num_pages
        return number

    def _end_leaf(self) -> None:
        first, start = self._nodes[0], layout.NODE.size
        key = first[start : start + layout.NODE.unpack_from(first)[3]]
        self._leaves.append((key, self._write_page(layout.LEAF, self._nodes)))
        self._nodes, self._room = [], ROOM

    def _write_page(self, kind: int, nodes: list[bytes]) -> int:
        """Writes a page of nodes, the first one at its end, and returns its number."""
        number, upper = self._next_page, PAGE_BYTES
        offsets = bytearray()
        for node in nodes:
            upper -= len(node)
            offsets += upper.to_bytes(OFFSET_BYTES, "little")
        lower = layout.PAGE.size + len(offsets)
        head = layout.PAGE.pack(number, 0, kind, lower, upper)
        self._file.write(b"".join([head, offsets, bytes(upper - lower), *reversed(nodes)]))
        self._num_pages[kind] += 1
        self._next_page += 1
        return number

    def finish(self) -> None:
        """Writes the rest of the tree, then the meta page that refers to it.

        Raises:
            OSError: the file system refused.
        """
        if not self._num_entries:
            return
        self._end_leaf()
        level, depth = self._leaves, 1
        while len(level) > 1:
            level, depth = [self._write_branch(children) for children in _branches(level)], depth + 1
        records = 0, 0, depth, *self._num_pages.values(), self._num_entries, level[0][1]
        self._file.seek(PAGE_BYTES)
        self._file.write(_meta(1, 1, self._next_page, records))

    def _write_branch(self, children: list[tuple[bytes, int]]) -> tuple[bytes, int]:
        nodes = []
        for position, (key, number) in enumerate(children):
            key = key if position else b""  # nothing of this page comes before its first child
            node = layout.NODE.pack(number & 0xFFFF, number >> 16 & 0xFFFF, number >> 32, len(key)) + key
            nodes.append(node + bytes(len(node) % 2))
        return children[0][0], self._write_page(layout.BRANCH, nodes)

    def close(self) -> None:
        """Closes the file; may be called twice.

        Raises:
            OSError: the file system refused what was left to write.
        """
        self._file.close()


def _branches(children: list[tuple[bytes, int]]) -> list[list[tuple[bytes, int]]]:
    """Returns the children of each branch page, at least two, since LMDB treats a single one as damage."""
    pages: list[list[tuple[bytes, int]]] = []
    room = 0
    for key, number in children:
        num_bytes = layout.NODE.size + len(key) + len(key) % 2 + OFFSET_BYTES
        if room < num_bytes:
            pages.append([])
            room = ROOM
        pages[-1].append((key, number))
        room -= num_bytes
    if len(pages[-1]) == 1:  # a page has room for seven of the longest keys
        pages[-1].insert(0, pages[-2].pop())
    return pages
