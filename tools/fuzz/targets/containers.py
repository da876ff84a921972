"""Shards of the six formats with their text indexes, as dlio writes and opens them."""

from __future__ import annotations

import io
import tempfile
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dlio import formats
from dlio.dataset.manifest import File, Manifest, Shard
from dlio.dataset.reader import ShardReader
from dlio.dataset.sample_table import SUFFIX, SampleTableBuilder
from dlio.dataset.schema import Sample, Schema
from dlio.errors import DlioError
from dlio.testing.container import write_all
from dlio.testing.samples import samples
from tests.helpers.images import image
from tools.fuzz.inputs import REPAIRED, Files, case_of, fixed, read_folder, with_case
from tools.fuzz.targets import Target, require
from tools.fuzz.targets.known import digest, digests

STEM = "shard-00000"
TABLE = STEM + SUFFIX
_CHECKED = "tfrecord"  # has its own checksums over all of its data
PHOTOS = Schema.of({"image": "bytes", "label": "int64"})
_OTHERS = [
    {"frames": "bytes[]", "name": "str", "box": "float32[4]"},
    {"image": "uint8[?,?,3]", "label": "float32[3]"},
    {"mask": "bytes", "image": "bytes", "a": "bool", "b": "uint16[2]", "c": "float64", "words": "str[]"},
]


def photos(count: int) -> list[Sample]:
    """Returns images of several kinds and sizes with labels."""
    kinds = ["JPEG", "PNG", "JPEG", "BMP"]
    made = [image(n, kinds[n % 4], width=6 + 9 * n, height=5 + n) for n in range(count)]
    return [Sample(f"cat {n % 2}/é{n}.jpg", {"image": data, "label": n % 3}) for n, data in enumerate(made)]


def shard_files(name: str, schema: Schema, records: list[Sample]) -> Files:
    """Returns a shard's files, what holds the records first, its table last, and what is known of them."""
    with tempfile.TemporaryDirectory() as folder:
        container, table = formats.load(name), SampleTableBuilder(schema)
        write_all(container.Writer(Path(folder) / STEM, schema), records)
        for sample in records:
            table.append(sample)
        files = read_folder(Path(folder))
    first = STEM + container.SUFFIX
    files = {path: files[path] for path in sorted(files, key=lambda path: not path.startswith(first))}
    files[TABLE] = table.to_bytes()
    known = [[sample.key, digests(sample, schema)] for sample in records]
    return with_case(fixed(files, TABLE), format=name, schema=schema.types(), samples=known, order=list(files))


def seeds(name: str, libver: str = "v110") -> list[Files]:
    """Returns shards of images, of other fields, of one sample, and such without an index."""
    schemas = [schema for schema in map(Schema.of, _OTHERS) if formats.load(name).refuses(schema) is None]
    made = [shard_files(name, PHOTOS, photos(5)), shard_files(name, PHOTOS, photos(1))]
    made += [shard_files(name, schema, samples(schema, 4, seed=5)) for schema in schemas]
    if name == "hdf5":
        return [_small(files, libver) for files in made]
    return made + [
        {path: data for path, data in files.items() if not path.endswith(".idx")}
        for files in made[::2]
        if any(path.endswith(".idx") for path in files)
    ]


def _small(files: Files, libver: str) -> Files:
    """Returns an HDF5 shard in small chunks, since dlio's have a mebibyte, in the form of a version of the library.

    In v110's, as dlio writes, all but the data has checksums, which end nearly every attempt; the earliest has none.
    """
    import h5py

    name = f"{STEM}.h5"
    with h5py.File(io.BytesIO(files[name])) as old, h5py.File(out := io.BytesIO(), "w", libver=libver) as new:
        for member, dataset in old.items():
            chunks = (min(512, len(dataset)) or 1, *dataset.shape[1:])
            new.create_dataset(member, data=dataset[:], chunks=chunks, maxshape=(None, *dataset.shape[1:]))
        new.attrs.update(old.attrs)
    return {**files, name: out.getvalue()}


def manifest_of(root: Path, files: Files) -> Manifest:
    """Returns a manifest that tells the true sizes of the files, which no digest guards then."""
    case = case_of(files)
    here = [path for path in case["order"] if (root / path).is_file()]
    entries = tuple(File(path, (root / path).stat().st_size, "xxh3-128:0") for path in here)
    shard = Shard(STEM, len(case["samples"]), entries)
    return Manifest(case["format"], Schema.of(case["schema"]), (shard,), root=root)


def check(root: Path, files: Files, *, with_table: bool = False) -> None:
    """Opens the shard and reads it in every way: unchanged samples, or an error.

    Args:
        root: where the files lie.
        files: the input; its table is whole, unless `with_table` says that it is what is tried.
        with_table: the table's own values are compared, too.
    """
    manifest = manifest_of(root, files)
    case, schema = case_of(files), manifest.schema
    if not with_table:
        _check_bare(root, files, schema)
    with closing(ShardReader(manifest, manifest.shards[0])) as reader:
        for index, (key, known) in enumerate(case["samples"]):
            try:
                found = reader.read(index)
            except DlioError:
                continue
            require(digests(found, schema) == known, f"a sample is the one that was packed (record {index})")
            require(found.key == key or with_table, f"a sample has its key (record {index})")
        _check_columns(reader, case["samples"], schema)


def _check_columns(reader: ShardReader, known: list[Any], schema: Schema) -> None:
    """Reads all records at once."""
    columns = reader.read_columns(np.arange(len(known)))
    for name, kind in schema.fields:
        for index, value in enumerate(columns[name]):
            require(digest(kind, value) == known[index][1][name], f"a column is what was packed ({name}, row {index})")


def _check_bare(root: Path, files: Files, schema: Schema) -> None:
    """Reads the container alone, as `dlio index` does: no more records than bytes, each whole or refused."""
    case = case_of(files)
    container = formats.load(case["format"])
    first = case["order"][0]
    stem = STEM + container.SUFFIX
    with closing(container.Reader(root / (stem if first.startswith(stem + "/") else first), schema)) as reader:
        require(len(reader) <= sum(map(len, files.values())), "there are no more records than bytes")
        for index in range(min(len(reader), 50)):
            reader.locate(index)
            try:
                found = digests(reader.read(index), schema)
            except DlioError:
                continue
            whole = case["format"] == _CHECKED and REPAIRED not in files
            require(not whole or found in [known for _, known in case["samples"]], "checked records are those packed")
        if isinstance(reader, formats.IndexedReader):
            reader.index_text()


TARGETS = [Target(name, partial(seeds, name), check) for name in formats.names()]
TARGETS.append(Target("hdf5-earliest", partial(seeds, "hdf5", "earliest"), check))
