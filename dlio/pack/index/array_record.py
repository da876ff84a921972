"""ArrayRecord files of any name, with Examples; fields and class names as in TFRecord."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from dlio.dataset.schema import Schema
from dlio.formats.readonly.array_record import MAGIC, Records
from dlio.pack.index._examples import example_schema
from dlio.pack.index._infer import first_records, own_keys
from dlio.pack.listing.file_sets import begins_with

keys = own_keys  # an Example's `__key__`, or `image/filename`


def files(path: Path) -> tuple[Path, ...]:
    """Returns the shard at `path`, a file that begins with the signature of Riegeli's records."""
    return (path,) if begins_with(path, len(MAGIC)) == MAGIC else ()


def infer(records: Path) -> Schema:
    """Returns the schema of the first Examples."""
    with closing(Records(records)) as found:
        return example_schema(records, first_records(len(found), found))
