"""HDF5 files with datasets of equal length at the root: arrays, or images as variable-length uint8, and labels.

The number of records is that of the images, else of the labels, else the most frequent number of rows. Labels of
another number are an error. Other datasets of another number, and groups, are left out with a log message. Links are
refused.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from dlio.dataset.schema import NUMBER_TYPES, Field, Sample, Schema
from dlio.errors import SchemaError
from dlio.formats.hdf5 import KEY
from dlio.formats.layouts.aliases import field_names
from dlio.formats.layouts.hdf5_rows import load_h5py, reading
from dlio.pack.index._infer import ADVICE, beginning, legal_schema, no_keys, own_keys

if TYPE_CHECKING:
    import h5py

log = logging.getLogger(__name__)
files = beginning(b"\x89HDF\r\n\x1a\n")


def infer(records: Path) -> Schema:
    """Returns the schema of the datasets at the root, or the schema that dlio stored in the file."""
    with reading(records), closing(load_h5py().File(records, "r")) as library:
        noted = library.attrs.get("dlio_schema")
        if noted is not None:
            return Schema.of(json.loads(noted))
        return legal_schema(records, _fields(records, library))


def _fields(path: Path, library: h5py.File) -> dict[str, Field]:
    datasets = _datasets(path, library)
    names = {name: held for name, held in field_names(list(datasets)).items() if name != KEY}
    anchor = next((name for field in ("image", "label") for name in names if names[name] == field), None)
    lengths = Counter(len(datasets[name]) for name in names)
    length = len(datasets[anchor]) if anchor else max(lengths, key=lengths.__getitem__, default=0)
    fields = {}
    for name, held in names.items():
        num_rows = len(datasets[name])
        if num_rows == length:
            fields[held] = _field(path, name, datasets[name], held)
        elif held == "label":
            raise SchemaError(f"{path}: {name!r} has {num_rows} rows, {anchor!r} has {length}: correct it, or {ADVICE}")
        else:
            log.warning("%s: %r is left out: it has %d rows, not %d", path, name, num_rows, length)
    return fields


def _datasets(path: Path, library: h5py.File) -> dict[str, h5py.Dataset]:
    """Returns the datasets of rows at the root; follows no link, and logs what is left out."""
    h5 = load_h5py()
    datasets = {}
    for name in library:
        if not isinstance(library.get(name, getlink=True), h5.HardLink):
            raise SchemaError(f"{path}: {name!r} is a link, its data are elsewhere: copy them here, or {ADVICE}")
        found = library[name]
        if isinstance(found, h5.Dataset) and found.shape:
            datasets[name] = found
        else:
            log.warning("%s: %r is left out: it is not a dataset of rows", path, name)
    if not datasets:
        raise SchemaError(f"{path} has no datasets at its root, only {sorted(library)}: move them there")
    return datasets


def _field(path: Path, name: str, dataset: h5py.Dataset, held: str) -> Field:
    library = load_h5py()
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
    """Returns a function to the key that dlio stored in the file; '' for a file of another tool."""
    with reading(records), closing(load_h5py().File(records, "r")) as library:
        return (own_keys if KEY in library else no_keys)(records)
