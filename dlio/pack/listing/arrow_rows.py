"""The rows of Arrow tables in one or more files, group by group: what Parquet and Arrow files have in common."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from dlio.dataset.schema import Fields, Sample, Schema
from dlio.errors import DataError, SchemaError, SourceError
from dlio.formats.payloads.arrow import ArrowColumn, convert, readable_columns, reading, schema_of
from dlio.pack import pace
from dlio.pack.listing.base import Listing, Numbers
from dlio.pack.listing.image_files import file_state
from dlio.pack.listing.keys import Keys, key_problem

if TYPE_CHECKING:
    import pyarrow

Columns = Mapping[str, ArrowColumn]


class Table(Protocol):
    """An open file of rows; used by one thread."""

    @property
    def schema(self) -> pyarrow.Schema:
        """Arrow's schema."""

    def groups(self) -> Iterable[tuple[int, int, int]]:
        """Yields the number or offset of each group of rows, the number of its rows, and the bytes of their values."""

    def names(self, image: ArrowColumn) -> Iterator[pyarrow.Array]:
        """Yields arrays of the paths of all rows' images, in order."""

    def batches(self, group: int, taken: Columns) -> Iterator[pyarrow.RecordBatch]:
        """Yields the record batches of a group, with these columns at least."""

    def close(self) -> None:
        """Closes the file."""


@dataclass(frozen=True, slots=True)
class ArrowFiles:
    """The rows of Arrow tables in files, as a source.

    Attributes:
        name, path: see `Source`.
        files: returns the files, all with the same columns; picklable.
        open_table: opens a file.
        columns: the fields to take; all if empty.
    """

    name: str
    path: Path
    files: Callable[[], Sequence[Path]]
    open_table: Callable[[Path], Table]
    columns: tuple[str, ...]

    def listing(self) -> Listing:
        """Returns all rows in order, without reading images; a key is its first image's path, or `FILE/000012`.

        Raises:
            SourceError: there are no rows, or the files have different columns.
            CorruptRecordError, SchemaError, StorageError: a file cannot be read.
        """
        files = self.files()
        schemas: list[Schema] = []
        keys: list[Keys] = []
        groups: list[Numbers] = []
        images: tuple[str, ...] = ()
        for number, file in enumerate(files):
            with closing(self.open_table(file)) as table:
                taken = _taken(file, table, self.columns)
                schemas.append(schema_of(table.schema, taken))
                if schemas[0].fields != schemas[-1].fields:
                    raise SourceError(f"{file} has ({schemas[-1]}), {files[0].name} has ({schemas[0]})")
                rows = np.array(list(table.groups()), "int64").reshape(-1, 3)
                groups.append(np.insert(rows, 0, number, axis=1))
                images = images or _image_fields(table.schema, taken)
                keys.append(_keys(file, table, taken, int(rows[:, 1].sum())))
        listed = _distinct(self.path, [file.name for file in files], keys)
        if not len(listed):
            raise SourceError(f"{self.path} has no rows: give a folder that has some")
        columns = _rows_of_groups(np.concatenate(groups))
        versions = np.array([file_state(str(file))[1] for file in files], "int64")[columns["file"]]
        sizes = columns.pop("bytes")
        return Listing(schemas[0], listed, sizes, columns, images, versions=versions, in_order=True)

    @contextmanager
    def reader(self, listing: Listing) -> Iterator[Callable[[int], Sample]]:
        """Gives a function that reads one row; rows in order are read fastest. Holds one batch at a time."""
        files, rows = self.files(), np.stack([listing.columns[name] for name in ("file", "group", "row")], axis=1)
        with closing(_Cursor(files, self.open_table, listing.schema)) as cursor:

            def read(index: int) -> Sample:
                number, group, row = rows[index].tolist()
                pace.spend(0, int(listing.num_bytes[index]))
                try:
                    return Sample(listing.keys[index], cursor.read(number, group, row))
                except (DataError, ValueError, IndexError) as error:
                    raise SourceError(f"{files[number]}: cannot read {listing.keys[index]!r}: {error}") from error

            yield read


def _taken(file: Path, table: Table, names: tuple[str, ...]) -> Columns:
    try:
        with reading(file):  # names may be any bytes
            return readable_columns(table.schema, names)
    except SchemaError as error:
        raise SchemaError(f"{file}: {error} (--option columns= selects some)") from None


def _rows_of_groups(groups: Numbers) -> dict[str, Numbers]:
    """Returns for each row its file, its group, its number within the group, and its mean bytes."""
    number, group, counts, num_bytes = groups.T
    firsts = np.cumsum(counts) - counts
    rows = np.arange(counts.sum()) - np.repeat(firsts, counts)
    each = {"file": number, "group": group, "bytes": num_bytes // np.maximum(1, counts)}
    return {name: np.repeat(values, counts) for name, values in each.items()} | {"row": rows}


def _image_fields(schema: pyarrow.Schema, taken: Columns) -> tuple[str, ...]:
    """Returns the fields of images: those that Hugging Face's metadata calls so; else all with paths, and `image`."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
    except (ValueError, KeyError, TypeError, RecursionError):
        features = {}
    features = features if isinstance(features, dict) else {}
    of_bytes = [name for name, column in taken.items() if column.kind and column.kind.dtype == "bytes"]
    noted = [name for name in of_bytes if '"Image"' in json.dumps(features.get(taken[name].path[0], ""))]
    return tuple(noted) if features else tuple(name for name in of_bytes if taken[name].is_media or name == "image")


def _keys(file: Path, table: Table, taken: Columns, count: int) -> Keys:
    """Returns the paths of the first images; the number of the row for a row without one."""
    image = next((column for column in taken.values() if column.is_media), None)
    arrays = table.names(image) if image else iter(())
    names = (name for array in arrays for name in array.to_pylist()) if image else repeat(None, count)
    told = (name if name and key_problem(name) is None else _numbered(file.name, row) for row, name in enumerate(names))
    with reading(file):
        keys = Keys.of(told)
    if len(keys) != count:
        raise SourceError(f"{file}: {len(keys)} images for {count} rows: restore the file")
    return keys


def _numbered(file: str, row: int) -> str:
    return f"{file}/{row:06d}"


def _distinct(path: Path, files: list[str], keys: list[Keys]) -> Keys:
    """Returns all keys; one that repeats an earlier one becomes that of its row."""
    joined = Keys.of(key for some in keys for key in some)
    repeated = joined.repeated()
    if not repeated:
        return joined
    firsts = np.cumsum([0, *map(len, keys)])
    names = list(joined)
    for number in repeated:
        file = int(np.searchsorted(firsts, number, side="right")) - 1
        names[number] = _numbered(files[file], number - int(firsts[file]))
    renamed = Keys.of(names)
    renamed.check_distinct(path)
    return renamed


class _Cursor:
    """The last batch that was read, of the rows of several files."""

    def __init__(self, files: Sequence[Path], open_table: Callable[[Path], Table], schema: Schema) -> None:
        self._files = files
        self._open_table = open_table
        self._schema = schema
        self._table: Table | None = None
        self._number = -1
        self._drop()

    def _drop(self) -> None:
        self._group: int | None = None
        self._batches: Iterator[pyarrow.RecordBatch] = iter(())
        self._first = self._count = 0
        self._arrays: dict[str, pyarrow.Array] = {}

    def read(self, number: int, group: int, row: int) -> Fields:
        """Returns the fields of a row of `group` of file `number`."""
        if number != self._number:
            self.close()
            self._table = self._open_table(self._files[number])
            self._taken = readable_columns(self._table.schema, tuple(self._schema))
            self._number = number
        assert self._table is not None
        if group != self._group or row < self._first:
            self._drop()
            self._group, self._batches = group, self._table.batches(group, self._taken)
        try:
            while row >= self._first + self._count:
                self._next(row)
        except Exception:
            self._drop()  # the batches have ended, and the next row begins again
            raise
        fields = {}
        for name, kind in self._schema.fields:
            fields[name] = convert(kind, self._arrays[name][row - self._first].as_py())
        return fields

    def _next(self, row: int) -> None:
        self._arrays = {}  # frees the last batch before the next is read
        batch = next(self._batches, None)
        if batch is None:
            raise SourceError(f"expected row {row}, the group has {self._first + self._count}: restore the file")
        self._first += self._count
        self._count = batch.num_rows
        self._arrays = {name: self._taken[name].values(batch) for name in self._schema}

    def close(self) -> None:
        """Closes the file."""
        self._drop()
        self._number = -1
        if self._table is not None:
            self._table.close()
            self._table = None
