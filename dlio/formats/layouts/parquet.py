"""A Parquet file as its footer describes it: its columns' chunks, and bounded reads by pyarrow.

What pyarrow unpacks at a time is bounded by the file's size: a page, and all that is held, may claim no more than 16
times that, or 64 MiB.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from dlio.errors import CorruptRecordError, SchemaError
from dlio.formats.layouts.parquet_pages import DICTIONARY, Chunk, pages, read_footer
from dlio.formats.payloads.arrow import ArrowColumn, load_pyarrow, reading
from dlio.io.file_object import FileObject
from dlio.io.files import closed_on_error
from dlio.io.random_access import RandomAccessFile

if TYPE_CHECKING:
    import pyarrow.parquet

_LEAST_LIMIT, _MOST_GROWTH = 64 << 20, 16
_BATCH_BYTES = 4 << 20  # of values, unpacked at a time: stays in a processor's cache
_MAX_BATCH_ROWS = 1024
_WHOLE_BYTES = 32 << 20  # a chunk of up to this size is read as a whole, which takes a tenth less time
_BUFFER_BYTES = 1 << 20  # of each column of a file with larger chunks


def leaf(column: ArrowColumn) -> str:
    """Returns the path of the leaf column that holds a column's values, or of the folder of its leaves."""
    return ".".join((*column.path, "bytes") if column.is_media else column.path)


class ParquetFile:
    """An open file; used by one thread at a time.

    Attributes:
        groups: its row groups.
        schema: Arrow's schema.

    Raises:
        CorruptRecordError: it is no Parquet file, or is cut off.
        StorageError: it cannot be read.
        MissingPackageError: pyarrow is not installed.
    """

    def __init__(self, file: RandomAccessFile) -> None:
        self.file = file
        with closed_on_error(file):
            self.groups = read_footer(file)
            with reading(file.path):
                self._library = self._open([])
                self.schema = self._library.schema_arrow

    def _open(self, read_dictionary: list[str]) -> pyarrow.parquet.ParquetFile:
        parquet = load_pyarrow().parquet
        path = FileObject(self.file) if self.file.is_arriving else self.file.path
        is_large = any(chunk.num_bytes > _WHOLE_BYTES for group in self.groups for chunk in group.chunks)
        buffer_size = _BUFFER_BYTES if is_large else 0
        # pre_buffer would hold all of a row group; so pyarrow holds a page of each column, stored and unpacked
        return parquet.ParquetFile(path, read_dictionary=read_dictionary, buffer_size=buffer_size, pre_buffer=False)

    @property
    def num_rows(self) -> int:
        """The number of all rows."""
        return sum(group.num_rows for group in self.groups)

    def chunks(self, path: str, group: int | None = None) -> Iterator[Chunk]:
        """Yields the chunks of the leaf column `path`, or of all leaves below it, of one row group or of all."""
        for each in self.groups if group is None else self.groups[group : group + 1]:
            yield from (chunk for chunk in each.chunks if f"{chunk.column}.".startswith(f"{path}."))

    def not_plain(self, path: str) -> str | None:
        """Returns why the values of a leaf column are not stored plain in the file; None if they are."""
        for chunk in self.chunks(path):
            if chunk.codec != "UNCOMPRESSED":
                return f"compressed ({chunk.codec})"
            if chunk.has_dictionary:
                return "a dictionary"
        return None

    @property
    def _limit(self) -> int:
        return max(_LEAST_LIMIT, _MOST_GROWTH * self.file.num_bytes)

    def check_growth(self, path: str, group: int | None = None) -> tuple[int, int]:
        """Checks the pages of the leaves at `path`; returns the bytes of the largest dictionary, and of all unpacked.

        Raises:
            CorruptRecordError: a page is damaged, or unpacks to far more than the file has.
        """
        largest = total = 0
        for chunk in self.chunks(path, group):
            for page in pages(self.file, chunk):
                num_bytes = page.unpacked_bytes + 8 * page.num_values
                if num_bytes > self._limit:
                    problem = f"column {path!r}: a page unpacks to {page.unpacked_bytes} bytes: restore the file"
                    raise CorruptRecordError(self.file.path, problem, offset=page.begin)
                largest = max(largest, page.unpacked_bytes if page.kind == DICTIONARY else 0)
                total += num_bytes
        return largest, total

    def read_small(self, paths: Sequence[str]) -> pyarrow.Table:
        """Returns a table of the columns at `paths`, each value of a dictionary once; for all but large values.

        Raises:
            CorruptRecordError: as `check_growth`, or all pages together unpack to far more than the file has.
        """
        taken = [path for path in paths if path]
        names, total = [], 0
        for path in taken:
            total += self.check_growth(path)[1]
            if total > self._limit:
                advice = "restore the file, choose other columns with --schema, or pack it with --source parquet"
                problem = f"column {path!r}: together with the columns before it, it unpacks to {total} bytes: {advice}"
                raise CorruptRecordError(self.file.path, problem)
            names += [chunk.column for chunk in self.chunks(path, 0) if chunk.is_bytes]
        with reading(self.file.path):
            library = self._open(names)
            groups = range(len(self.groups))  # pyarrow does not join lists of dictionaries of several
            tables = [library.read_row_group(group, taken, use_threads=False) for group in groups]
            found = load_pyarrow().concat_tables(tables or [self.schema.empty_table().select([])])
            found.validate(full=True)  # also that each value is one of its dictionary
            return found

    def batches(self, group: int, paths: Sequence[str]) -> Iterator[pyarrow.RecordBatch]:
        """Yields the record batches of a row group, with the columns at `paths`, about 4 MiB at a time."""
        largest = max((self.check_growth(path, group)[0] for path in paths), default=0)
        unpacked = sum(chunk.unpacked_bytes for path in paths for chunk in self.chunks(path, group))
        mean = unpacked // max(1, self.groups[group].num_rows)
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
        advice = "pack it with --source parquet, or choose other columns with --schema"
        raise SchemaError(f"{file.file.path}: the column {name!r} is {problem}, and cannot be read in place: {advice}")
