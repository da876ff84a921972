"""A Parquet file as its footer tells: its columns' chunks, and bounded reads by pyarrow.

What pyarrow unpacks at a time is bounded by the file's size: a page may tell of no more than 16 times that, or 64 MiB.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from dlio.errors import CorruptRecordError, SchemaError
from dlio.formats.layouts.parquet_pages import DICTIONARY, Chunk, pages
from dlio.formats.payloads.arrow import ArrowColumn, pyarrow, reading
from dlio.io.file_object import FileObject
from dlio.io.random_access import RandomAccessFile

MAGIC = b"PAR1"
_LEAST_LIMIT, _MOST_GROWTH = 64 << 20, 16
_BATCH_BYTES = 16 << 20  # of values, unpacked at a time
_MAX_BATCH_ROWS = 1024
_BUFFER_BYTES = 1 << 20  # of each column, so that pyarrow does not hold a row group's whole column


def leaf(column: ArrowColumn) -> str:
    """Returns the path of the leaf column that holds a column's values, or of the folder of its leaves."""
    return ".".join((*column.path, "bytes") if column.is_media else column.path)


class ParquetFile:
    """An open file; used by one thread at a time.

    Raises:
        CorruptRecordError: it is no Parquet file, or is cut off.
        StorageError: it cannot be read.
        MissingPackageError: pyarrow is not installed.
    """

    def __init__(self, file: RandomAccessFile) -> None:
        self.file = file
        with reading(file.path):
            self._library = self._open([])
            self.metadata = self._library.metadata
            self.schema = self._library.schema_arrow

    def _open(self, read_dictionary: list[str]) -> Any:
        parquet = pyarrow().parquet
        path = FileObject(self.file) if self.file.is_arriving else self.file.path
        return parquet.ParquetFile(path, read_dictionary=read_dictionary, buffer_size=_BUFFER_BYTES)

    def chunks(self, path: str, group: int | None = None) -> Iterator[tuple[Any, Chunk]]:
        """Yields pyarrow's metadata of the chunks of a leaf column, or of all leaves below `path`, and the chunks."""
        schema, groups = self.metadata.schema, range(self.metadata.num_row_groups) if group is None else [group]
        leaves = [number for number in range(len(schema)) if f"{schema.column(number).path}.".startswith(f"{path}.")]
        for each in groups:
            row_group = self.metadata.row_group(each)
            for number in leaves:
                found, levels = row_group.column(number), schema.column(number).max_definition_level
                starts = [found.dictionary_page_offset, found.data_page_offset]
                offset = min(start for start in starts if start is not None)
                if found.file_path:
                    raise CorruptRecordError(self.file.path, f"its column {path!r} is in another file: pack it there")
                yield found, Chunk(path, offset, found.total_compressed_size, found.num_values, levels > 0)

    def not_plain(self, path: str) -> str | None:
        """Returns why the values of a leaf column do not lie in the file as they are; None if they do, by the footer.

        A column whose levels tell of lists is not plain.
        """
        for found, _ in self.chunks(path):
            if found.compression != "UNCOMPRESSED":
                return f"compressed ({found.compression})"
            if found.has_dictionary_page:
                return "a dictionary"
        return None

    def check_growth(self, path: str, group: int | None = None) -> int:
        """Checks the pages of the leaves at `path`; returns the most bytes that a dictionary of them unpacks to.

        Raises:
            CorruptRecordError: a page is damaged, or unpacks to far more than the file has.
        """
        limit = max(_LEAST_LIMIT, _MOST_GROWTH * self.file.num_bytes)
        largest = 0
        for _, chunk in self.chunks(path, group):
            for page in pages(self.file, chunk):
                if page.unpacked_bytes + 8 * page.num_values > limit:
                    problem = f"column {path!r}: a page unpacks to {page.unpacked_bytes} bytes: restore the file"
                    raise CorruptRecordError(self.file.path, problem, offset=page.begin)
                if page.kind == DICTIONARY:
                    largest = max(largest, page.unpacked_bytes)
        return largest

    def read_small(self, paths: Sequence[str]) -> Any:
        """Returns a table of the columns at `paths`, each value of a dictionary once; for all but large values."""
        taken = [path for path in paths if path]
        names = []
        for path in taken:
            self.check_growth(path)
            names += [found.path_in_schema for found, _ in self.chunks(path, 0) if found.physical_type == "BYTE_ARRAY"]
        with reading(self.file.path):
            library = self._open(names)
            groups = range(self.metadata.num_row_groups)  # pyarrow does not join lists of dictionaries of several
            tables = [library.read_row_group(group, taken, use_threads=False) for group in groups]
            return pyarrow().concat_tables(tables or [self.schema.empty_table().select([])])

    def batches(self, group: int, paths: Sequence[str]) -> Iterator[Any]:
        """Yields the record batches of a row group, with the columns at `paths`, about 16 MiB at a time."""
        largest = max((self.check_growth(path, group) for path in paths), default=0)
        row_group = self.metadata.row_group(group)
        chunks = [found for path in paths for found, _ in self.chunks(path, group)]
        mean = sum(found.total_uncompressed_size for found in chunks) // max(1, row_group.num_rows)
        num_rows = max(1, min(_MAX_BATCH_ROWS, _BATCH_BYTES // max(1, mean, largest)))
        with reading(self.file.path):
            yield from self._library.iter_batches(num_rows, [group], columns=list(paths), use_threads=False)

    def close(self) -> None:
        """Closes the file."""
        self._library.close()
        self.file.close()


def require_plain(file: ParquetFile, name: str, column: ArrowColumn) -> None:
    """Checks that the images of a column can be read in place.

    Raises:
        SchemaError: they are compressed, or in a dictionary.
    """
    problem = file.not_plain(leaf(column))
    if problem:
        advice = "pack it with --source parquet, or choose other columns by --schema"
        raise SchemaError(f"{file.file.path}: the column {name!r} is {problem}, and cannot be read in place: {advice}")
