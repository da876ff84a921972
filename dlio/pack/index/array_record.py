"""ArrayRecord files of any name, with Examples; fields and class names as in TFRecord."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from dlio.dataset.schema import Schema
from dlio.formats.readonly.array_record import MAGIC, Records
from dlio.pack.index._infer import beginning, example_schema, first_records, own_keys

files = beginning(MAGIC)  # the signature of Riegeli's records
keys = own_keys  # an Example's `__key__`, or `image/filename`


def infer(records: Path) -> Schema:
    """Returns the schema of the first Examples."""
    with closing(Records(records)) as found:
        return example_schema(records, first_records(map(found, range(len(found)))))
