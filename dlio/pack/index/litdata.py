"""LitData folders: the chunks in `index.json`, whose items are dictionaries, lists or single values."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np

from dlio.dataset.schema import Field, Sample, Schema
from dlio.errors import CorruptRecordError, SchemaError, SourceError
from dlio.formats.layouts.aliases import field_names
from dlio.formats.readonly.litdata import INDEX, Leaf, Reader, read_leaves
from dlio.io.files import storage_errors
from dlio.pack.index import mds
from dlio.pack.index._infer import ADVICE, legal_schema, no_key

files = mds.files  # a chunk begins as an MDS shard does


def listed(root: Path) -> list[str] | None:
    """Returns the chunks that `index.json` lists; None without an index.

    Raises:
        SourceError: a chunk is missing.
        CorruptRecordError: the index is damaged.
        StorageError: the index cannot be read.
    """
    path = root / INDEX
    if not path.is_file():
        raise SourceError(f"{root} holds no shards of litdata: give the folder that has their {INDEX}")
    with storage_errors("read", path):
        text = path.read_bytes()
    try:
        names = [str(chunk["filename"]) for chunk in json.loads(text)["chunks"]]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorruptRecordError(path, f"it is not an index of LitData ({error!r}): restore it") from error
    for name in names:
        if "/" in name or not os.path.isfile(root / name):  # noqa: PTH113  a Path's raises where a name is too long
            raise SourceError(
                f"{path} lists {name!r}, which does not exist: restore it, or write it without compression"
            )
    return names


def infer(records: Path) -> Schema:
    """Returns the schema of a chunk's leaves; arrays that contain their shape are those of the first item."""
    leaves = read_leaves(records)[1]
    held = field_names([leaf.name for leaf in leaves])
    fields = {held[leaf.name]: _field(records, leaf, held[leaf.name]) for leaf in leaves}
    return legal_schema(records, fields)


def _field(records: Path, leaf: Leaf, held: str) -> Field:
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


def keys(records: Path) -> Callable[[Sample], str]:
    """Returns a function to '', since LitData has no keys."""
    return no_key
