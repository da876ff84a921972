"""Shards of other tools, of any format that `dlio index` knows: their samples are copied into shards of dlio.

    webdataset, tfrecord, recordio, hdf5, squashfs, mds, litdata, array_record      recognised, or named with --source
    lmdb, parquet                                                                   only with --option format=NAME

The listing reads every record once, as `dlio index` does, and gives the same keys, fields and class names. `dlio index`
adopts the same shards in place, without a copy.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import msgspec
import numpy as np

from dlio.dataset.manifest import NAME, Manifest, Shard
from dlio.dataset.pool import ShardPool
from dlio.dataset.schema import Fields, Sample, Schema
from dlio.errors import CorruptRecordError, DlioError, SourceError, UsageError
from dlio.formats.layouts.text_index import HIDDEN, index_paths
from dlio.io.files import storage_errors
from dlio.io.ground import temporary_base
from dlio.pack.inspect.tables import keys_of, tables
from dlio.pack.listing.base import Listing, read_ahead
from dlio.pack.listing.file_sets import begins_with
from dlio.pack.listing.image_files import file_state
from dlio.pack.listing.image_tree import EXTENSIONS
from dlio.pack.listing.keys import Keys
from dlio.pack.prefetch import Prefetcher

#: In the order in which they are recognised: the signatures of the first ones are the longest.
FORMATS = ("array_record", "hdf5", "squashfs", "recordio", "tfrecord", "webdataset", "mds")
_OF_INDEX = {b'"chunks"': "litdata", b'"shards"': "mds"}  # what an index.json begins with
_LOOKED_AT, _ENTRIES, _HEAD_BYTES = 4, 1000, 256
_SHARD = "shard"  # the column of a listing: each sample's shard, its line of a manifest


def shards(
    path: str | Path,
    format: str = "",  # noqa: A002  the field's word
    match: str = "",
    schema: str = "",
    label_offset: int | str = 0,
) -> Shards:
    """Returns the samples of the shards in a folder, or of one shard.

    Args:
        path: the folder, or the file.
        format: of the shards, as for `dlio index`; by default it is recognised.
        match: a pattern of the names to take, such as `train-*`; by default all, which must then be one set.
        schema: the fields of all records as JSON, such as `{"image": "bytes"}`; by default as the first records.
        label_offset: what was added to class indices when the shards were made (1 in TensorFlow's ImageNet files).

    Raises:
        UsageError: `path` holds no shards, or an option is wrong.
    """
    path = Path(path).absolute()
    if not (format := format or format_of(path)):  # noqa: A001
        raise UsageError(f"{path} holds no shards that dlio knows: give their format with --option format=")
    try:
        types = json.loads(schema or "{}")
        Schema.of(types)
        return Shards(path, format, match, schema, int(label_offset))
    except (ValueError, TypeError, AttributeError, DlioError) as error:
        raise UsageError(f"schema={schema} or label_offset={label_offset} is wrong: {error}") from error


open_source = shards


def recognises(path: Path) -> bool:
    """Returns whether `path` is a shard, or a folder that has some among its first entries."""
    return bool(format_of(path))


def format_of(path: Path) -> str:
    """Returns the format of the shard or the shards at `path`; '' if there are none."""
    from dlio.pack.index._layout import load

    with storage_errors("read", path):
        head = begins_with(path / "index.json", _HEAD_BYTES) if path.is_dir() else b""
        if found := next((name for mark, name in _OF_INDEX.items() if mark in head), ""):
            return found
        entries = islice(path.iterdir(), _ENTRIES) if path.is_dir() else [path]
        names = (each for each in entries if not each.name.lower().endswith(EXTENSIONS) and each.name[0] != ".")
        looked_at = sorted(islice((each for each in names if each.is_file()), _LOOKED_AT))
    return next((name for name in FORMATS for each in looked_at if load(name).files(each)), "")


@dataclass(frozen=True, slots=True)
class Shards:
    """See `shards`."""

    path: Path
    format: str
    match: str
    schema: str
    label_offset: int
    name: str = "shards"

    @property
    def _root(self) -> Path:
        return self.path if self.path.is_dir() else self.path.parent

    def _entries(self) -> Sequence[Path]:
        """Returns what a folder of links needs: all visible entries, or the one shard and its index."""
        with storage_errors("read", self.path):
            if not self.path.is_dir():
                self.path.stat()
                return [each for each in (self.path, index_paths(self.path)[0]) if each.exists()]
            return [each for each in self.path.iterdir() if not each.name.startswith((".", NAME))]

    def listing(self) -> Listing:
        """Returns all samples in the order of the shards' names, from tables as `dlio index` makes them."""
        from dlio.pack.index import index

        schema = Schema.of(json.loads(self.schema)) if self.schema else None
        options = {"match": self.match or None, "schema": schema, "label_offset": self.label_offset}
        entries = self._entries()
        with tempfile.TemporaryDirectory(prefix="dlio-shards-", dir=temporary_base()) as name:
            try:
                for entry in entries:
                    Path(name, entry.name).symlink_to(entry)
                return self._listing(index(name, format=self.format, **options))  # type: ignore[arg-type]
            except DlioError as error:
                raise _of_source(error, {name: str(self._root)}) from error

    def _listing(self, found: Manifest) -> Listing:
        keys = Keys.of(keys_of(found))
        if not len(keys):
            raise SourceError(f"{self.path} has no samples: give shards that have some")
        names = found.schema.small
        columns = {name: np.concatenate([table.field(name) for _, table in tables(found)]) for name in names}
        lines = np.empty(len(found.shards), dtype=object)
        lines[:] = [msgspec.json.encode(_without_index(shard)) for shard in found.shards]
        counts = [shard.num_samples for shard in found.shards]
        record = np.concatenate([np.arange(count) for count in counts])
        states = [file_state(str(self._root / shard.files[0].name))[1] for shard in found.shards]
        return Listing(
            found.schema,
            keys,
            np.concatenate([table.num_bytes for _, table in tables(found)]),
            columns | {_SHARD: np.repeat(lines, counts), "record": record},
            ("image",) if str(found.schema.get("image")) == "bytes" else (),
            versions=np.repeat(np.array(states, "int64"), counts),
        )

    def reader(self, listing: Listing) -> Prefetcher[Sample]:
        """Gives a function that reads one sample."""
        lines, records = listing.columns[_SHARD].tolist(), listing.columns["record"].tolist()
        held = {line: number for number, line in enumerate(dict.fromkeys(lines))}
        shards = tuple(msgspec.json.decode(line, type=Shard) for line in held)
        pool = ShardPool(Manifest(self.format, listing.schema, shards, root=self._root))

        def read(index: int) -> Fields:
            try:
                with pool.shard(held[lines[index]]) as shard:
                    return shard.read(records[index]).fields
            except CorruptRecordError as error:
                raise SourceError(f"{self.path}: cannot read {listing.keys[index]!r}: {error}") from error

        return read_ahead(listing, read, pool)


def _without_index(shard: Shard) -> Shard:
    """Returns a shard without the table and the index that dlio has made for it."""
    return shard.replace(files=tuple(file for file in shard.files if not file.name.startswith(f"{HIDDEN}/")))


def _of_source(error: DlioError, names: dict[str, str]) -> DlioError:
    """Returns the error with the paths and options that the user knows."""
    names = names | {"--match ": "--option match=", "--schema": "--option schema="}

    def told(text: object) -> object:
        for theirs, own in names.items() if isinstance(text, str) else ():
            text = str(text).replace(theirs, own)
        return text

    if isinstance(error, CorruptRecordError):
        where = {"record": error.record, "offset": error.offset}
        return CorruptRecordError(str(told(error.path)), str(told(error.problem)), **where)
    return type(error)(*map(told, error.args))
