"""The footer of a Parquet file, which says where each column's chunks are. pyarrow crashes on some hostile footers.

    file          1 version | 2 schema: elements | 3 rows | 4 row groups
    element       3 repetition: 0 required, 1 optional, 2 repeated | 4 name | 5 children; a tree, the root first
    row group     1 chunks | 2 bytes | 3 rows
    chunk         1 another file | 3: 1 type | 3 path | 4 codec | 5 values | 6, 7 bytes, uncompressed and as stored
                  | 9 first data page | 11 dictionary page

It is a Thrift struct at the file's end, followed by its u32 size and `PAR1`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dlio.errors import MALFORMED, CorruptRecordError, corrupt_errors
from dlio.formats.layouts.parquet_pages import Chunk
from dlio.formats.layouts.thrift import Struct, read_struct
from dlio.io.random_access import RandomAccessFile

MAGIC = b"PAR1"
_CODECS = ("UNCOMPRESSED", "SNAPPY", "GZIP", "LZO", "BROTLI", "LZ4", "ZSTD", "LZ4_RAW")
_BYTE_ARRAY = 6


@dataclass(frozen=True, slots=True)
class RowGroup:
    """A row group: the number of its rows, the bytes of their values, and a chunk for each leaf column."""

    num_rows: int
    num_bytes: int
    chunks: tuple[Chunk, ...]


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
        return [_row_group(group, definitions) for group in fields.get(4, ())]


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
