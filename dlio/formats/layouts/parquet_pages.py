"""The footer of a Parquet file, the pages of its column chunks, and where the values of a plain column lie in the file.

    file          1 version | 2 schema: elements | 3 rows | 4 row groups
    element       3 repetition: 0 required, 1 optional, 2 repeated | 4 name | 5 children; a tree, the root first
    row group     1 chunks | 2 bytes | 3 rows
    chunk         1 another file | 3: 1 type | 3 path | 4 codec | 5 values | 6, 7 bytes, uncompressed and as stored
                  | 9 first data page | 11 dictionary page
    page    header, a Thrift struct | content
    header  1 type: 0 data, 2 dictionary, 3 data v2 | 2, 3 size of the content, uncompressed and as stored
            5 data: 1 values, 2 encoding | 8 data v2: 1 values, 4 encoding, 5, 6 bytes of both levels
    data    u32 size of the repetition levels, levels | the same for the definition levels | values
    data v2 both levels | values
    value   of bytes, plain: u32 size | the bytes

The footer is a Thrift struct at the file's end, followed by its u32 size and `PAR1`; pyarrow crashes on some hostile
ones. A column without lists has no repetition levels; one that cannot be null has no definition levels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dlio.errors import MALFORMED, CorruptRecordError, corrupt_errors
from dlio.formats.layouts.thrift import CutOffError, Struct, read_struct
from dlio.io.random_access import Numbers, RandomAccessFile

MAGIC = b"PAR1"
_CODECS = ("UNCOMPRESSED", "SNAPPY", "GZIP", "LZO", "BROTLI", "LZ4", "ZSTD", "LZ4_RAW")
_BYTE_ARRAY = 6
DATA, DICTIONARY, DATA_V2 = 0, 2, 3
_PLAIN, _RLE = 0, 3
_USUAL_HEADER_BYTES, _MAX_HEADER_BYTES = 128, 1 << 20  # statistics may hold a whole value
_NEAR_BYTES, _WINDOW_BYTES = 8 << 10, 256 << 10  # sizes this close to each other are read together


@dataclass(frozen=True, slots=True)
class Chunk:
    """The part of a column in one row group, as the file's footer describes it.

    Attributes:
        column: the column's path, with dots.
        offset: where its first page begins, in bytes.
        num_bytes: the size of all its pages.
        num_values: the number of values, with those that are null.
        has_definitions: whether there are definition levels: a value may be null.
        codec: how its pages are compressed, `UNCOMPRESSED` if they are not.
        unpacked_bytes: the size of all its pages, uncompressed.
        has_dictionary: whether it begins with a dictionary.
        is_bytes: whether its values are bytes or text.
    """

    column: str
    offset: int
    num_bytes: int
    num_values: int
    has_definitions: bool
    codec: str
    unpacked_bytes: int
    has_dictionary: bool
    is_bytes: bool

    @property
    def end(self) -> int:
        """Where its last page ends."""
        return self.offset + self.num_bytes


@dataclass(frozen=True, slots=True)
class RowGroup:
    """A row group: the number of its rows, the bytes of their values, and a chunk for each leaf column."""

    num_rows: int
    num_bytes: int
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True, slots=True)
class Page:
    """A page: its type, the number of its values, its content's place and uncompressed size, and the header's rest."""

    kind: int
    num_values: int
    begin: int
    end: int
    unpacked_bytes: int
    head: Struct


def read_footer(file: RandomAccessFile) -> list[RowGroup]:
    """Returns the row groups of a file.

    Raises:
        CorruptRecordError: it is not a Parquet file, or its footer is damaged.
        StorageError: it cannot be read.
    """
    end = file.num_bytes - 8
    if end < 4 or file.read(end + 4, 4) != MAGIC:
        raise CorruptRecordError(file.path, "it does not end as a Parquet file: it is cut off or encrypted, restore it")
    num_bytes = int.from_bytes(file.read(end, 4), "little")
    begin = end - num_bytes
    with corrupt_errors(file.path, "its footer is damaged ({!r}): restore it", offset=begin, kinds=MALFORMED):
        fields, _ = read_struct(file.read(begin, num_bytes) if begin >= 4 else b"")
        definitions = _definitions(iter(fields[2]))
        groups = [_row_group(group, definitions) for group in fields.get(4, ())]
        if sum(chunk.num_bytes for group in groups for chunk in group.chunks) > file.num_bytes:
            raise ValueError("its columns overlap")  # a small file could claim any number of values
    return groups


def _definitions(elements: Iterator[Struct]) -> list[bool]:
    """Returns of each leaf whether its values have definition levels: it, or what it is in, may be missing."""
    found: list[bool] = []
    open_folders = [(next(elements)[5], False)]  # how many children are left, and whether they may be missing
    while open_folders:
        left, above = open_folders.pop()
        if left <= 0:
            continue
        open_folders.append((left - 1, above))
        element = next(elements)
        may_miss = above or element.get(3, 0) != 0
        if element.get(5, 0) > 0:
            open_folders.append((element[5], may_miss))
        else:
            found.append(may_miss)
    return found


def _row_group(fields: Struct, definitions: list[bool]) -> RowGroup:
    chunks = tuple(_chunk(chunk, may_miss) for chunk, may_miss in zip(fields[1], definitions, strict=True))
    num_bytes, num_rows = fields.get(2, 0), fields[3]
    if min(num_rows, num_bytes) < 0 or num_rows > max((chunk.num_values for chunk in chunks), default=0):
        raise ValueError(f"a group of {num_rows} rows and {num_bytes} bytes")
    return RowGroup(num_rows, num_bytes, chunks)


def _chunk(fields: Struct, has_definitions: bool) -> Chunk:
    if fields.get(1):
        raise ValueError(f"a column in another file, {fields[1]!r}")
    meta = fields[3]
    path = ".".join(name.decode() for name in meta[3])
    starts = [start for start in (meta.get(11), meta[9]) if start]  # some writers give 0 for no dictionary
    if not all(type(meta[number]) is int and meta[number] >= 0 for number in (5, 6, 7)):
        raise ValueError(f"the column {path!r} has {meta[5]} values in {meta[7]} bytes")
    codec = _CODECS[meta[4]] if 0 <= meta[4] < len(_CODECS) else str(meta[4])
    is_bytes = meta[1] == _BYTE_ARRAY
    return Chunk(path, min(starts), meta[7], meta[5], has_definitions, codec, meta[6], bool(meta.get(11)), is_bytes)


def pages(file: RandomAccessFile, chunk: Chunk) -> Iterator[Page]:
    """Yields the pages of a chunk, whose values are as many as the footer says.

    Raises:
        CorruptRecordError: a header is damaged, or the pages do not fill the chunk.
        StorageError: the file cannot be read.
    """
    at, num_values = chunk.offset, 0
    if not 0 <= at <= chunk.end <= file.num_bytes or chunk.num_bytes < 0:
        raise _damaged(file, chunk, at, f"the chunk ends at {chunk.end}, the file at {file.num_bytes}")
    while at < chunk.end:
        page = _page(file, chunk, at)
        yield page
        at, num_values = page.end, num_values + page.num_values
    if num_values != chunk.num_values:
        raise _damaged(file, chunk, at, f"its pages have {num_values} values, the footer says {chunk.num_values}")


def _page(file: RandomAccessFile, chunk: Chunk, at: int) -> Page:
    try:
        fields, begin = _header(file, at, chunk.end)
        kind, unpacked, stored = fields[1], int(fields[2]), int(fields[3])
        if kind not in (DATA, DICTIONARY, DATA_V2):
            raise ValueError(f"a page of type {kind}")
        head = fields[{DATA: 5, DICTIONARY: 7, DATA_V2: 8}[kind]]
        if not isinstance(head, dict) or type(head.get(1)) is not int:
            raise ValueError(f"a page of {head!r:.40}")
        num_values = 0 if kind == DICTIONARY else head[1]
        if min(unpacked, stored, num_values) < 0 or begin + stored > chunk.end:
            raise ValueError(f"a page of {stored} bytes and {num_values} values, the chunk ends at {chunk.end}")
        return Page(kind, num_values, begin, begin + stored, unpacked, head)
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(file, chunk, at, f"no header of a page ({error})") from None


def _header(file: RandomAccessFile, at: int, end: int) -> tuple[Struct, int]:
    """Returns the fields of the page header at an offset, and where the page's content begins."""
    size = _USUAL_HEADER_BYTES
    while True:
        try:
            fields, num_bytes = read_struct(file.read(at, min(size, end - at)))
        except CutOffError:
            if size >= min(_MAX_HEADER_BYTES, end - at):
                raise ValueError("it is cut off") from None
            size *= 16
        else:
            return fields, at + num_bytes


def plain_extents(file: RandomAccessFile, chunk: Chunk) -> Numbers:
    """Returns offset and size of each value of an uncompressed, plain column of bytes, int64 of shape (n, 2).

    Reads the headers and the values' sizes only.

    Raises:
        CorruptRecordError: the chunk is damaged, of another encoding, or a value is null.
        StorageError: the file cannot be read.
    """
    found = [_page_extents(file, chunk, page) for page in pages(file, chunk)]
    return np.concatenate(found) if found else np.empty((0, 2), "int64")


def _page_extents(file: RandomAccessFile, chunk: Chunk, page: Page) -> Numbers:
    encoding = page.head.get(4 if page.kind == DATA_V2 else 2)
    if page.kind == DICTIONARY or encoding != _PLAIN:
        raise _damaged(file, chunk, page.begin, "its values are not PLAIN-encoded: pack it with --source parquet")
    at = _after_levels(file, chunk, page)
    count = page.num_values
    if 4 * count > page.end - at:
        raise _nulls(file, chunk, page)
    window = _WINDOW_BYTES if page.end - at < count * _NEAR_BYTES else 4
    extents = np.empty((count, 2), "int64")
    data, base = b"", at
    for number in range(count):
        if at + 4 > base + len(data):
            if at + 4 > page.end:
                raise _nulls(file, chunk, page)
            data, base = file.read(at, min(window, page.end - at)), at
        size = int.from_bytes(data[at - base : at - base + 4], "little")
        extents[number] = at + 4, size
        at += 4 + size
    if at != page.end:
        raise _nulls(file, chunk, page)
    return extents


def _after_levels(file: RandomAccessFile, chunk: Chunk, page: Page) -> int:
    """Returns where the values of a data page begin."""
    if page.kind == DATA_V2:
        sizes = [page.head.get(5), page.head.get(6)]
        if not all(type(size) is int and 0 <= size <= page.end - page.begin for size in sizes) or sizes[1]:
            raise _damaged(file, chunk, page.begin, f"levels of {sizes} bytes")
        return page.begin + int(sizes[0])  # type: ignore[arg-type]
    if not chunk.has_definitions:
        return page.begin
    if page.head.get(3) != _RLE:
        raise _damaged(file, chunk, page.begin, "its levels are not run-length encoded: pack it with --source parquet")
    if page.begin + 4 > page.end:
        raise _damaged(file, chunk, page.begin, "a page without levels")
    return page.begin + 4 + int.from_bytes(file.read(page.begin, 4), "little")


def _nulls(file: RandomAccessFile, chunk: Chunk, page: Page) -> CorruptRecordError:
    problem = f"{page.num_values} values do not fill their page: if some are null, pack it with --source parquet"
    return _damaged(file, chunk, page.begin, f"{problem} --on-error skip; else restore the file")


def _damaged(file: RandomAccessFile, chunk: Chunk, offset: int, problem: str) -> CorruptRecordError:
    return CorruptRecordError(file.path, f"column {chunk.column!r}: {problem}", offset=offset)
