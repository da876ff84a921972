"""Parquet as Hugging Face's datasets 4.6 and later write it, read in place: images plain in the file, without a copy.

Encoded images are columns of bytes, uncompressed and plain, so that each is stored unchanged in the file. A line of the
index has offset and size of each image of a sample, in bytes. Other columns (`payloads.arrow` says which fields they
make) are read by pyarrow, whole, when the first sample asks for one: image and label load without it, since the table
of samples has the labels. The path of a sample's first image is its key.

Files of other kinds, compressed or with images in lists, are packed: `dlio pack --source parquet`.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dlio.dataset.schema import Fields, Sample, Schema
from dlio.errors import CorruptRecordError, SchemaError
from dlio.formats import Spans
from dlio.formats.layouts.parquet import ParquetFile, leaf, require_plain
from dlio.formats.layouts.parquet_pages import plain_extents
from dlio.formats.layouts.text_index import read_index
from dlio.formats.payloads.arrow import ArrowColumn, columns, convert
from dlio.formats.readonly import not_written
from dlio.io.files import closed_on_error
from dlio.io.random_access import Numbers, RandomAccessFile

if TYPE_CHECKING:
    import pyarrow

    Others = dict[str, pyarrow.Array]  # the columns of other fields by name, the images' paths, if any, by ""

SUFFIX = ".parquet"
refuses = not_written("Parquet")


class Reader:
    """Reads a file by record number."""

    def __init__(self, path: Path, schema: Schema) -> None:
        self._schema = schema
        self._file = RandomAccessFile(path)
        self._images = [name for name, kind in schema.fields if str(kind) == "bytes"]
        self._lock = threading.Lock()
        self._others: Others | None = None
        with closed_on_error(self._file):
            if not self._images:
                raise SchemaError(f"{path} is read in place for its images, but the schema has no field of bytes")
            found = read_index(path, 2 * len(self._images))
            extents = self._scan() if found is None else found[1]
            self._extents = extents.reshape(len(extents), -1, 2)
            self._check(path if found is None else found[0])

    def _scan(self) -> Numbers:
        """Returns offset and size of each image, int64 of shape (n, 2 * images), by the pages' headers."""
        parquet = ParquetFile(self._file)
        found = columns(parquet.schema)
        taken = []
        for name in self._images:
            column = _column(self._file.path, found, name)
            require_plain(parquet, name, column)
            chunks = parquet.chunks(leaf(column))
            extents = [plain_extents(self._file, chunk) for chunk in chunks]
            taken.append(np.concatenate([np.empty((0, 2), "int64"), *extents]))
        lengths = {len(each) for each in taken} | {parquet.num_rows}
        if len(lengths) > 1:
            raise CorruptRecordError(self._file.path, f"its columns have {sorted(lengths)} values: restore the file")
        return np.concatenate(taken, axis=1)

    def _check(self, path: Path) -> None:
        """Checks that images lie within the file, none within another."""
        flat = self._extents.reshape(-1, 2)
        order = flat[np.argsort(flat[:, 0], kind="stable")]
        stops = order[:, 0] + order[:, 1]
        if (order < 0).any() or (stops > self._file.num_bytes).any() or (order[1:, 0] < stops[:-1]).any():
            raise CorruptRecordError(path, "images lie beyond the file's end, or within each other: index it again")

    def __len__(self) -> int:
        return len(self._extents)

    def locate(self, index: int) -> tuple[Path, int | None]:
        """Returns the file and the offset of the record's first image in it, in bytes."""
        return self._file.path, int(self._extents[index, 0, 0])

    def index_text(self) -> bytes:
        lines = self._extents.reshape(len(self), -1).tolist()
        return b"".join(" ".join(map(str, line)).encode() + b"\n" for line in lines)

    def spans(self, name: str, sizes: Numbers) -> Spans | None:
        """Returns the offsets of the images of a field, None of another."""
        if name not in self._images:
            return None
        starts, num_bytes = self._extents[:, self._images.index(name)].T
        return Spans(self._file, starts, starts + num_bytes, sizes * 0)

    def read(self, index: int) -> Sample:
        """Returns record `index`; its key is the path of its first image, or ''."""
        others = self._load()
        fields: Fields = {}
        for number, name in enumerate(self._images):
            offset, num_bytes = self._extents[index, number].tolist()
            fields[name] = self._file.read(offset, num_bytes, index)
        try:
            for name, kind in self._schema.fields:
                if name not in fields:
                    fields[name] = convert(kind, others[name][index].as_py())
        except ValueError as error:
            advice = "pack it with --source parquet --on-error skip, which leaves such rows out"
            raise CorruptRecordError(self._file.path, f"field {name!r}: {error}: {advice}", record=index) from error
        return Sample(_key(others.get(""), index), {name: fields[name] for name in self._schema})

    def _load(self) -> Others:
        """Returns the other columns by field, and the images' paths, if any, by ''; reads them once."""
        with self._lock:
            if self._others is None:
                self._others = self._read_others()
            return self._others

    def _read_others(self) -> Others:
        parquet = ParquetFile(self._file)
        found = columns(parquet.schema)
        taken = {name: _column(self._file.path, found, name) for name in self._schema if name not in self._images}
        image = found[self._images[0]]
        names = [".".join((*image.path, "path"))] if image.is_media else []
        table = parquet.read_small([*names, *map(leaf, taken.values())])
        others = {name: column.values(table) for name, column in taken.items()}
        if names:
            others[""] = image.names(table)
        if any(len(column) != len(self) for column in others.values()):
            raise CorruptRecordError(self._file.path, "its columns have different lengths: restore the file")
        return others

    def close(self) -> None:
        self._file.close()


def _column(path: Path, found: dict[str, ArrowColumn], name: str) -> ArrowColumn:
    if name not in found or found[name].kind is None:
        raise CorruptRecordError(path, f"it has no column for the field {name!r}, only {', '.join(found)}")
    return found[name]


def _key(names: pyarrow.Array | None, index: int) -> str:
    with suppress(UnicodeDecodeError):
        return (names is not None and names[index].as_py()) or ""
    return ""
