"""The files of any image: names, sizes, and where their data is. Layouts are in `tables.py`.

The image may be hostile. Each folder has one place, inodes and listings together are no larger than their tables,
and every reference leads to where such a thing can be; so time and memory follow from the size of the image.
"""

from __future__ import annotations

import struct
from array import array
from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dlio.formats.layouts.squashfs import (
    FILE,
    FOLDER,
    LONG_FOLDER,
    MAX_PATH_BYTES,
    SYMLINK,
)
from dlio.formats.layouts.squashfs.inodes import file_inodes, file_places
from dlio.formats.layouts.squashfs.metadata import Superblock, Table
from dlio.io.random_access import Numbers

_RUN = struct.Struct("<3I")
_ENTRY = np.dtype([("place", "<u2"), ("delta", "<i2"), ("type", "<u2"), ("length", "<u2")])
_FOLDER = struct.Struct("<H10xI 2I2HI")
_LONG_FOLDER = struct.Struct("<H10xI 4I2HI")
_NAMES = {SYMLINK: "symbolic links", 4: "devices", 5: "devices", 6: "fifos", 7: "sockets"}


@dataclass(frozen=True, slots=True)
class Files:
    """The n names of regular files of an image; hard links are several names of one inode.

    Attributes:
        names: the uncompressed directory table.
        name_at, name_bytes: where each file's name is in it; int64 of shape (n,).
        folder: the number of its folder; int64 of shape (n,).
        folders: of each folder the number of the one above it, and the bounds of its name; the root is the first.
        number: its inode number; int64 of shape (n,).
        start, size: where its data begins, and its size, in bytes; int64 of shape (n,).
        is_stored: whether the `size` bytes from `start` on are its content; bool of shape (n,).
        words_at: the position of its size words in `inodes`; int64 of shape (n,).
        fragment, offset: the fragment block with its end, -1 for none, and where in the block; int64 of shape (n,).
        inodes: the uncompressed inode table.
        fragments: start and size word of each fragment block; int64 of shape (m, 2).
        block_bytes: the block size.
        left_out: how many entries of each other kind there are.
    """

    names: bytes
    name_at: Numbers
    name_bytes: Numbers
    folder: Numbers
    folders: list[tuple[int, int, int]]
    number: Numbers
    start: Numbers
    size: Numbers
    is_stored: NDArray[np.bool_]
    words_at: Numbers
    fragment: Numbers
    offset: Numbers
    inodes: bytes
    fragments: Numbers
    block_bytes: int
    left_out: dict[str, int]

    def __len__(self) -> int:
        return len(self.number)

    def path(self, index: int) -> bytes:
        """Returns the path of a file, without a slash in front."""
        return self.folder_path(int(self.folder[index])) + self.name(index)

    def name(self, index: int) -> bytes:
        """Returns the name of a file within its folder."""
        at = int(self.name_at[index])
        return self.names[at : at + int(self.name_bytes[index])]

    def folder_path(self, folder: int) -> bytes:
        """Returns the path of a folder with a slash after it, empty for the root."""
        parts = [b""]
        while folder:
            folder, begin, end = self.folders[folder]
            parts.append(self.names[begin:end])
        return b"/".join(reversed(parts))

    def words(self, index: int) -> list[int]:
        """Returns the size words of a file's blocks."""
        whole, rest = divmod(int(self.size[index]), self.block_bytes)
        count = whole + (rest > 0 and self.fragment[index] < 0)
        found: list[int] = np.frombuffer(self.inodes, "<u4", count, int(self.words_at[index])).tolist()
        return found


def read_files(superblock: Superblock, inodes: Table, listings: Table, fragments: Numbers) -> Files:
    """Returns the files of an image.

    Args:
        superblock: its superblock.
        inodes: its inode table.
        listings: its directory table.
        fragments: start and size word of each fragment block; int64 of shape (m, 2).

    Raises:
        ValueError: a table is damaged; names the inode if it is known.
    """
    walk = _Walk(inodes, listings)
    walk.all_folders(superblock.root)
    columns = [np.concatenate(column) for column in zip(*walk.found, strict=True)]
    walk.found.clear()
    kinds = columns.pop(3)
    *kept, at = (column[kinds == FILE] for column in columns)
    counts = Counter(_NAMES.get(kind, "unknown") for kind in kinds[(kinds != FILE) & (kinds != FOLDER)].tolist())
    del columns, kinds
    own, inverse = np.unique(at, return_inverse=True)
    found = file_inodes(inodes, own, superblock.block_bytes)
    problem = np.flatnonzero(found["number"][inverse] != kept[3])
    if problem.size:
        raise ValueError(f"inode {kept[3][problem[0]]}: its folder lists it under another number")
    found |= file_places(inodes, found, fragments, superblock)
    each = {name: found[name][inverse] for name in ("start", "size", "is_stored", "words_at", "fragment", "offset")}
    own_of = dict(zip(("name_at", "name_bytes", "folder", "number"), kept, strict=True))
    return Files(
        names=listings.stream,
        folders=walk.folders,
        inodes=inodes.stream,
        fragments=fragments,
        block_bytes=superblock.block_bytes,
        left_out=dict(counts),
        **own_of,
        **each,
    )


class _Walk:
    """Reads the listings of all folders, level by level.

    Attributes:
        folders: see `Files`.
        found: of each level bounds of names, folder, type, inode number and place in the inode table of all entries.
    """

    def __init__(self, inodes: Table, listings: Table) -> None:
        self._inodes, self._listings = inodes, listings
        self._left_bytes = len(listings.stream)
        self._seen: set[int] = set()
        self.folders: list[tuple[int, int, int]] = []
        self.found: list[tuple[Numbers, ...]] = []

    def all_folders(self, root: int) -> None:
        """Reads the folders below the root, whose inode has this reference."""
        offsets = self._inodes.offsets(np.array([root >> 16]), np.array([root & 0xFFFF]))
        level, above, bounds, depths = offsets, np.zeros(1, np.int64), np.zeros((1, 2), np.int64), np.zeros(1, np.int64)
        while len(level):
            first = len(self.folders)
            rows = zip(above.tolist(), *bounds.T.tolist(), strict=True)
            self.folders += rows
            places = array("q")
            runs: list[tuple[int, int, int, int]] = []
            for number, at in enumerate(level.tolist(), first):
                self._read_folder(number, at, places, runs)
            entries = self._entries(places, runs)
            self.found.append(entries)
            name_at, name_bytes, folder, kinds, _, at = entries
            is_folder = kinds == FOLDER
            depths = depths[folder[is_folder] - first] + name_bytes[is_folder] + 1
            if depths.max(initial=0) > MAX_PATH_BYTES:
                raise ValueError(f"a folder's path has {depths.max()} bytes, more than {MAX_PATH_BYTES}")
            level, above = at[is_folder], folder[is_folder]
            bounds = np.stack([name_at[is_folder], (name_at + name_bytes)[is_folder]], axis=1)

    def _read_folder(self, folder: int, at: int, places: array[int], runs: list[tuple[int, int, int, int]]) -> None:
        """Adds the places of a folder's entries, and for each run the number of entries, folder, block and base."""
        stream, number = self._listings.stream, int.from_bytes(self._inodes.stream[at + 12 : at + 16], "little")
        if at in self._seen:
            raise ValueError(f"inode {number}: this folder has two places, expected one")
        self._seen.add(at)
        try:
            block, offset, size = _folder(self._inodes.stream, at)
            size -= 3
            if size <= 0:
                return
            (begin,) = self._listings.offsets(np.array([block]), np.array([offset])).tolist()
            end, begin_of_next = begin + size, begin
            self._left_bytes -= size
            if end > len(stream) or self._left_bytes < 0:
                raise ValueError("its listing extends beyond the directory table, or belongs to another folder, too")
            while begin_of_next < end:
                begin_of_next = _read_run(stream, begin_of_next, folder, places, runs)
            if begin_of_next != end:
                raise ValueError(f"its listing does not end after {size} bytes")
        except (ValueError, IndexError, struct.error) as error:
            raise ValueError(f"inode {number}, a folder: {error}") from None

    def _entries(self, places: array[int], runs: list[tuple[int, int, int, int]]) -> tuple[Numbers, ...]:
        at = np.frombuffer(places, np.int64) if places else np.zeros(0, np.int64)
        counts, folders, blocks, bases = np.array(runs, np.int64).reshape(-1, 4).T
        heads = self._listings.gather(at, _ENTRY)
        name_at, name_bytes = at + _ENTRY.itemsize, heads["length"].astype(np.int64) + 1
        _check_names(np.frombuffer(self._listings.stream, np.uint8), name_at, name_bytes)
        numbers = np.repeat(bases, counts) + heads["delta"]
        offsets = self._inodes.offsets(np.repeat(blocks, counts), heads["place"].astype(np.int64))
        return name_at, name_bytes, np.repeat(folders, counts), heads["type"], numbers, offsets


def _folder(inodes: bytes, at: int) -> tuple[int, int, int]:
    """Returns block and offset of a folder's listing, and its size + 3."""
    (kind,) = struct.unpack_from("<H", inodes, at)
    if kind == FOLDER:
        _, _, block, _, size, offset, _ = _FOLDER.unpack_from(inodes, at)
    elif kind == LONG_FOLDER:
        _, _, _, size, block, _, _, offset, _ = _LONG_FOLDER.unpack_from(inodes, at)
    else:
        raise ValueError(f"it is of type {kind}, expected a folder")
    return block, offset, size


def _read_run(stream: bytes, at: int, folder: int, places: array[int], runs: list[tuple[int, int, int, int]]) -> int:
    """Adds the entries of the run at `at`, and returns where the next one begins."""
    last, block, base = _RUN.unpack_from(stream, at)
    if last > 0xFF:
        raise ValueError(f"a run of {last + 1} entries: expected 256 at most")
    at += _RUN.size
    for _ in range(last + 1):
        places.append(at)
        at += 9 + stream[at + 6] + (stream[at + 7] << 8)
    runs.append((last + 1, folder, block, base))
    return at


def _check_names(stream: NDArray[np.uint8], at: Numbers, sizes: Numbers) -> None:
    """Checks that names have 1 to 256 bytes, no slash and no zero, and are not `.` or `..`; raises ValueError."""
    if not len(at):
        return
    ends = at + sizes
    if sizes.max() > 256 or ends.max() > len(stream):
        raise ValueError(f"a name of {sizes.max()} bytes")
    illegal = np.append((stream == 0) | (stream == ord("/")), False)
    is_illegal = np.logical_or.reduceat(illegal, np.stack([at, ends], axis=1).ravel())[::2]
    is_illegal |= (sizes <= 2) & (stream[at] == ord(".")) & (stream[ends - 1] == ord("."))
    if is_illegal.any():
        row = int(np.flatnonzero(is_illegal)[0])
        raise ValueError(f"the name {stream[at[row] : ends[row]].tobytes()!r}, which no file can have")
