"""LitData folders: the chunks in `index.json`, whose items are dictionaries, lists or single values."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np

from dlio.dataset.schema import Field, Schema
from dlio.errors import SchemaError, SourceError
from dlio.formats.layouts.aliases import field_names
from dlio.formats.readonly.litdata import INDEX, Reader, read_leaves
from dlio.formats.readonly.mds import Column
from dlio.pack.index import mds
from dlio.pack.index._infer import ADVICE, legal_schema, no_keys

files = mds.files  # a chunk begins as an MDS shard does
keys = no_keys


def listed(root: Path) -> list[str]:
    """Returns the chunks that `index.json` lists; raises as `mds.names_in`, and SourceError without an index."""
    path = root / INDEX
    if not path.is_file():
        raise SourceError(f"{root} holds no shards of litdata: give the folder that has their {INDEX}")
    return mds.names_in(path, "LitData", lambda index: [chunk["filename"] for chunk in index["chunks"]])


def infer(records: Path) -> Schema:
    """Returns the schema of a chunk's leaves; arrays that contain their shape are those of the first item."""
    leaves = read_leaves(records)[1]
    held = field_names([leaf.name for leaf in leaves])
    fields = {held[leaf.name]: _field(records, leaf, held[leaf.name]) for leaf in leaves}
    return legal_schema(records, fields)


def _field(records: Path, leaf: Column, held: str) -> Field:
    if leaf.field is not None:
        return leaf.field
    if leaf.encoding not in ("numpy", "tensor"):
        problem = f"the leaf {leaf.name!r} is of the type {leaf.encoding!r}, which dlio does not read"
        raise SchemaError(f"{records}: {problem}: name the fields to use with --schema")
    with closing(Reader(records, Schema(()))) as reader:
        if not len(reader):
            raise SchemaError(f"{records}: it has no items: {ADVICE}")
        array = np.asarray(reader.values(0, {"": leaf.name})[""])
    return Field(array.dtype.name, (None,) * array.ndim)
