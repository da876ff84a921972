"""LMDB as Caffe's `convert_imageset` writes it: a folder with `data.mdb`, or a single file, of Datums."""

from __future__ import annotations

import struct
from contextlib import closing
from pathlib import Path
from typing import Any

from dlio.dataset.schema import IMAGE_CLASSIFICATION, Field, Schema
from dlio.errors import SchemaError
from dlio.formats.layouts.lmdb import MAGIC, PAGE, read_entries
from dlio.formats.lmdb import DATA_FILE
from dlio.formats.payloads.messages import parse
from dlio.io.random_access import RandomAccessFile
from dlio.pack.index._infer import common_field, example_schema, first_records, is_example, own_keys
from dlio.pack.listing.file_sets import begins_with

_MAGIC = struct.pack("<I", MAGIC)
keys = own_keys  # the record's key without its number


def files(path: Path) -> tuple[Path, ...]:
    """Returns the data file that `path` is, or that is in the folder `path`."""
    records = path / DATA_FILE if path.is_dir() else path
    return (records,) if begins_with(records, PAGE.size + len(_MAGIC))[PAGE.size :] == _MAGIC else ()


def infer(records: Path) -> Schema:
    """Returns the schema of the first Datums, or Examples."""
    with closing(RandomAccessFile(records)) as file:
        entries = read_entries(file)
        first = list(first_records(bytes(entries.value(file, number)) for number in range(len(entries.keys))))
    if first and is_example(first[0]):
        return example_schema(records, first)
    datums = [_datum(records, number, data) for number, data in enumerate(first)]
    if not datums:
        raise SchemaError(f"{records} has no records")
    if all(datum.encoded for datum in datums):
        return IMAGE_CLASSIFICATION
    shapes = [Field("uint8", (datum.height, datum.width, datum.channels)) for datum in datums]
    return Schema((("image", common_field("image", shapes)), ("label", Field("int64"))))


def _datum(path: Path, number: int, data: bytes) -> Any:
    try:
        datum = parse("Datum", data)
    except ValueError:
        datum = None
    if datum is None or not datum.HasField("data"):
        raise SchemaError(
            f"{path}, record {number} is neither a Datum with an image nor an Example: "
            f"if it is an encoded image, dlio pack {path} OUT"
        )
    return datum
