"""HDF5: a dataset for each field, at the root of `NAME.h5`, with a row for each sample.

    numbers of one shape    NAME, (n, *shape), of the field's dtype
    bytes, str              NAME, all values one after the other as uint8; text is UTF-8
                            NAME_offsets, int64, (n + 1,): value i is NAME[offsets[i]:offsets[i + 1]]
    lists of these          NAME and NAME_offsets as above, of all items
                            NAME_lists, int64, (n + 1,): sample i has the items lists[i] up to lists[i + 1]
    the sample's key        as a field `__key__` of text

The attribute `dlio_schema` of the root is the schema's types as JSON, `dlio_version` is 1. Datasets are unfiltered
chunks of whole rows. Caffe's HDF5Data finds fields of numbers named `data` and `label` (caffe `hdf5_data_layer.cpp`).

Files by other tools are read too: numbers in any layout, and bytes or text kept as variable-length arrays of uint8
(`h5py.vlen_dtype`) or as strings; `image` also from datasets called images, img, data or x, `label` from labels, class,
target, targets or y. A file with parts in other files (links, external or virtual datasets) is refused.

HDF5 keeps checksums of its own structures, as written here, and none of the data. HDF5 is not safe against hostile
files; open only files of people you trust.
"""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from dlio.dataset.sample_group import SampleGroup
from dlio.dataset.schema import Field, Sample, Schema
from dlio.errors import CorruptRecordError, corrupt_errors
from dlio.formats import OpenFile, Spans, open_plain
from dlio.formats.layouts.aliases import stored_name
from dlio.formats.layouts.hdf5_columns import (
    CHUNK_BYTES,
    SMALL_CHUNK_BYTES,
    Blob,
    ColumnWriter,
    Numeric,
    dataset_names,
    open_column,
)
from dlio.formats.layouts.hdf5_rows import create, load_h5py, reading, writing
from dlio.io.file_object import FileObject
from dlio.io.files import closed_on_error
from dlio.io.random_access import Numbers, RandomAccessFile

SUFFIX = ".h5"
KEY = "__key__"
VERSION = 1
_TEXT = Field("str")
_MAX_ROW_BYTES = 2**32 - 1  # of HDF5's chunks


def refuses(schema: Schema) -> str | None:
    """Returns why HDF5 cannot hold this schema, naming the field, or None if it can."""
    taken = [name for field in [(KEY, _TEXT), *schema.fields] for name in dataset_names(*field)]
    for name, kind in schema.fields:
        if kind.is_number and not kind.is_fixed:
            return f"the field {name!r} is {kind}, but all rows of a dataset have the same shape"
        if kind.is_number and not 0 < _row_bytes(kind) <= _MAX_ROW_BYTES:
            return f"the field {name!r} is {kind}, {_row_bytes(kind)} bytes: expected 1 to {_MAX_ROW_BYTES}"
        if any(taken.count(dataset) > 1 for dataset in dataset_names(name, kind)):
            return f"the field {name!r} needs a dataset name that another field needs, too: rename it"
    return None


def _row_bytes(kind: Field) -> int:
    return np.dtype(kind.dtype).itemsize * prod(kind.fixed_shape)


def _is_small(kind: Field) -> bool:
    return kind.is_number and kind.is_scalar


class Writer:
    """Writes a shard, buffering less than a chunk of each dataset; HDF5 opens the file itself, not `open_file`."""

    def __init__(self, stem: Path, schema: Schema, open_file: OpenFile = open_plain) -> None:
        self._path = stem.with_name(stem.name + SUFFIX)
        load_h5py()
        open_plain(self._path).close()  # refuses a file that exists
        with writing(self._path):
            self._file = create(self._path)
            self._file.attrs["dlio_version"] = VERSION
            self._file.attrs["dlio_schema"] = np.bytes_(json.dumps(schema.types()))
            self._columns = {
                name: ColumnWriter(self._file, name, kind, SMALL_CHUNK_BYTES if _is_small(kind) else CHUNK_BYTES)
                for name, kind in schema.fields
            }
            self._keys = ColumnWriter(self._file, KEY, _TEXT, SMALL_CHUNK_BYTES)

    def write(self, sample: Sample) -> None:
        with writing(self._path):
            self._append(sample)

    def write_group(self, group: SampleGroup) -> bool:
        with writing(self._path):
            for sample in group:
                self._append(sample)
        return True

    def _append(self, sample: Sample) -> None:
        for name, column in self._columns.items():
            column.append(sample.fields[name])
        self._keys.append(sample.key)

    def close(self) -> None:
        if self._file is None:
            return
        file, self._file = self._file, None
        with writing(self._path):
            try:
                for column in [*self._columns.values(), self._keys]:
                    column.finish()
            finally:
                file.close()


class Reader:
    """Reads a shard by record number: uncompressed values with plain reads, others through h5py."""

    def __init__(self, path: Path, schema: Schema) -> None:
        self._file = RandomAccessFile(path)  # so that an unreadable file is not reported as damaged
        self._library: Any = None
        with closed_on_error(self), reading(path):
            self._library = load_h5py().File(FileObject(self._file) if self._file.is_arriving else path, "r")
            self._open(schema)

    def _open(self, schema: Schema) -> None:
        version = self._library.attrs.get("dlio_version", VERSION)
        if version != VERSION:
            problem = f"it has dlio's HDF5 version {version}, expected {VERSION}: read it with a newer dlio"
            raise CorruptRecordError(self._file.path, problem)
        self._columns = {
            name: open_column(self._library, self._file, stored_name(name, self._library), kind)
            for name, kind in schema.fields
        }
        self._keys = open_column(self._library, self._file, KEY, _TEXT) if KEY in self._library else None
        named = {**self._columns, KEY: self._keys} if self._keys else self._columns
        lengths = {name: column.num_values for name, column in named.items()}
        if len(set(lengths.values())) != 1:
            problem = f"its fields have different numbers of records, {lengths}: restore the file"
            raise CorruptRecordError(self._file.path, problem)
        self._num_records = next(iter(lengths.values()))

    def __len__(self) -> int:
        return self._num_records

    def locate(self, index: int) -> tuple[Path, int | None]:
        """Returns the file and the offset of the record's first field in it, None if only HDF5 knows it."""
        offsets = [column.locate(index) for column in self._columns.values()]
        return self._file.path, next((offset for offset in offsets if offset is not None), None)

    def spans(self, name: str, sizes: Numbers) -> Spans | None:
        """Returns the offsets of the values of a field of bytes, None if only HDF5 knows them."""
        column = self._columns[name]
        bounds = column.bounds() if isinstance(column, Blob | Numeric) else None
        return bounds and Spans(self._file, *bounds, sizes * 0)

    def read(self, index: int) -> Sample:
        """Returns record `index`; its key is the exact one, or the number in a file without keys."""
        path, offset = self.locate(index)
        with corrupt_errors(path, record=index, offset=offset):
            fields = {name: column.read(index) for name, column in self._columns.items()}
            return Sample(str(self._keys.read(index)) if self._keys else str(index), fields)

    def close(self) -> None:
        if self._library is not None:
            self._library.close()
        self._file.close()
