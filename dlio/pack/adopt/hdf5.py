"""HDF5 files with datasets of equal length at the root: arrays, or images as variable-length uint8, and labels.

Datasets of another length, and groups, are no fields; the longest common length is that of the images.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from dlio.errors import SchemaError
from dlio.formats.hdf5 import KEY
from dlio.formats.layouts.aliases import field_names
from dlio.formats.layouts.hdf5_rows import h5py, reading
from dlio.pack.adopt._infer import begins_with, legal_schema, no_key
from dlio.sample import NUMBER_TYPES, Field, Sample, Schema

_MAGIC = b"\x89HDF\r\n\x1a\n"


def files(path: Path) -> tuple[Path, ...]:
    """Returns the shard at `path`, a file that begins with HDF5's signature."""
    return (path,) if begins_with(path, len(_MAGIC)) == _MAGIC else ()


def infer(records: Path) -> Schema:
    """Returns the schema of the datasets at the root, or the one that dlio has noted in the file."""
    with reading(records), closing(h5py().File(records, "r")) as library:
        noted = library.attrs.get("dlio_schema")
        if noted is not None:
            return Schema.of(json.loads(noted))
        return legal_schema(records, _fields(records, library))


def _fields(path: Path, library: Any) -> dict[str, Field]:
    datasets = {name: value for name, value in library.items() if hasattr(value, "shape") and value.shape}
    if not datasets:
        raise SchemaError(f"{path} has no datasets at its root, only {sorted(library)}: move them there")
    names = {name: held for name, held in field_names(list(datasets)).items() if name != KEY}
    lengths = Counter(len(datasets[name]) for name in names)
    images = next((name for name, held in names.items() if held == "image"), None)
    length = len(datasets[images]) if images else lengths.most_common(1)[0][0]
    return {
        held: _field(path, name, datasets[name], held) for name, held in names.items() if len(datasets[name]) == length
    }


def _field(path: Path, name: str, dataset: Any, held: str) -> Field:
    library = h5py()
    element = library.check_vlen_dtype(dataset.dtype)
    if library.check_string_dtype(dataset.dtype) and dataset.ndim == 1:
        return Field("str")
    if element is not None and element == "uint8" and dataset.ndim == 1:
        return Field("bytes")
    dtype = dataset.dtype.name
    if element is not None or dtype not in NUMBER_TYPES:
        raise SchemaError(f"{path}: the dataset {name!r} holds {dataset.dtype}: dlio reads numbers, uint8 and strings")
    if held == "label" and dataset.ndim == 1 and dataset.dtype.kind in "iu" and dtype != "uint64":
        return Field("int64")
    return Field(dtype, dataset.shape[1:])


def keys(records: Path) -> Callable[[Sample], str]:
    """Returns what gives the key that dlio has noted in the file; '' in a file of another tool."""
    with reading(records), closing(h5py().File(records, "r")) as library:
        return (lambda sample: sample.key) if KEY in library else no_key
