"""LMDB: a B+tree in one file, as Caffe keeps its data sets (caffe `tools/convert_imageset.cpp`, `util/db_lmdb.cpp`).

A shard is the folder `NAME.lmdb` with `data.mdb` in it; a single file `NAME.lmdb` (`subdir=False`) is read as well. The
unnamed database holds the records under `%08d_KEY`, record number and sample key, cut to LMDB's 511 bytes at the border
of a character; up to 10^8 records. An image with one label is a Caffe Datum, any other schema a `tf.train.Example`.

Neither writing nor reading uses the package `lmdb`; `layouts/lmdb_tree.py` and `layouts/lmdb.py` say why. Equal
samples give equal bytes, the file ends with its last page in use, and there is no lock file. Readers, threads and
processes share no environment, map or lock.
"""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path

from dlio.dataset.sample_group import SampleGroup
from dlio.dataset.schema import Sample, Schema
from dlio.errors import SchemaError, corrupt_errors
from dlio.formats import OpenFile, Spans, open_plain
from dlio.formats.layouts.lmdb import MAX_KEY_BYTES, read_entries
from dlio.formats.layouts.lmdb_tree import TreeWriter
from dlio.formats.payloads import datum, example
from dlio.io.files import closed_on_error, storage_errors
from dlio.io.random_access import Numbers, RandomAccessFile

SUFFIX = ".lmdb"
DATA_FILE = "data.mdb"
MAX_RECORD_BYTES = 2**31 - 1  # of a protobuf message; LMDB's own limit is twice that
_NUMBERED = re.compile(rb"[0-9]{8}_")
_NUMBER_BYTES = 9


def refuses(schema: Schema) -> str | None:
    """Returns why LMDB cannot hold this schema: never, since Example holds every field."""
    return None


def Writer(stem: Path, schema: Schema, open_file: OpenFile = open_plain) -> RecordWriter:  # noqa: N802
    """Starts the shard `STEM.lmdb/data.mdb`; its first pages are written last, so `open_file` is not called."""
    folder = stem.with_name(stem.name + SUFFIX)
    folder.mkdir()
    return RecordWriter(folder / DATA_FILE, schema)


class RecordWriter:
    """Writes the file `path`."""

    def __init__(self, path: Path, schema: Schema) -> None:
        self._path = path
        self._has_datums = datum.holds(schema)
        self._encode = (datum if self._has_datums else example).encoder(schema)
        self._num_records = 0
        self._tree: TreeWriter | None = TreeWriter(path)

    def write(self, sample: Sample) -> None:
        if self._tree is None:
            raise ValueError(f"{self._path} is closed")
        parts = self._encode(sample)
        num_bytes = sum(map(len, parts))
        if num_bytes > MAX_RECORD_BYTES:
            raise SchemaError(
                f"sample {sample.key!r}, fields {', '.join(sample.fields)}: {num_bytes} bytes are beyond the "
                f"{MAX_RECORD_BYTES} of a protobuf message; hdf5 can hold them"
            )
        with storage_errors("write", self._path):
            self._tree.put(record_key(self._num_records, sample.key), parts, num_bytes)
        self._num_records += 1

    def write_group(self, group: SampleGroup) -> bool:
        """Appends Datums of encoded images; False if there is another sample."""
        if self._tree is None or not self._has_datums or not datum.holds_group(group):
            return False
        if group.keys.sizes.max() > MAX_KEY_BYTES - _NUMBER_BYTES:
            return False
        with storage_errors("write", self._path):
            for key, parts in zip(group.keys, datum.encode_group(group), strict=True):
                self._tree.put(b"%08d_%b" % (self._num_records, key), parts, sum(map(len, parts)))
                self._num_records += 1
        return True

    def close(self) -> None:
        if self._tree is None:
            return
        tree, self._tree = self._tree, None
        with storage_errors("write", self._path), closing(tree):
            tree.finish()


def record_key(number: int, key: str) -> bytes:
    """Returns the record's key: `%08d_` and as many whole characters of `key` as fit 511 bytes."""
    whole = b"%08d_%b" % (number, key.encode())
    return whole if len(whole) <= MAX_KEY_BYTES else whole[:MAX_KEY_BYTES].decode(errors="ignore").encode()


class Reader:
    """Reads a shard by record number: a folder with `data.mdb`, or a single file; Caffe's as well as dlio's."""

    def __init__(self, path: Path, schema: Schema) -> None:
        self._schema = schema
        self._payload = datum if datum.holds(schema) else example
        self._file = RandomAccessFile(path / DATA_FILE if path.is_dir() else path)
        with closed_on_error(self._file):
            self._entries = read_entries(self._file)

    def __len__(self) -> int:
        return len(self._entries.keys)

    def locate(self, index: int) -> tuple[Path, int | None]:
        """Returns the file and the offset of the record's value in it, in bytes."""
        return self._file.path, int(self._entries.extents[index, 0])

    def read(self, index: int) -> Sample:
        """Returns record `index`; its key is the Example's, else that of the record without its number."""
        value, (path, offset) = self._entries.value(self._file, index), self.locate(index)
        with corrupt_errors(path, record=index, offset=offset):
            sample = self._payload.decode(value, self._schema)
        return Sample(sample.key or self._key(index), sample.fields)

    def spans(self, name: str, sizes: Numbers) -> Spans | None:
        """Returns the offsets of a field's values; overflow pages hold a value in one piece."""
        starts, num_bytes = self._entries.extents.T
        bounds = starts, starts + num_bytes
        if self._payload is not datum:
            return example.spans(self._file, bounds, name, sizes, self._schema)
        return datum.spans(self._file, bounds, sizes, self._schema[name])

    def close(self) -> None:
        self._file.close()

    def _key(self, index: int) -> str:
        key = self._entries.keys[index]
        return (key[_NUMBER_BYTES:] if _NUMBERED.match(key) else key).decode(errors="backslashreplace")
