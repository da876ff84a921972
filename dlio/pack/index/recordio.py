"""RecordIO shards as im2rec writes them: image records, whose keys are the paths in the `.lst` next to them."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import chain, pairwise
from pathlib import Path

from dlio.dataset.schema import Field, Sample, Schema
from dlio.errors import SchemaError, SourceError, corrupt_errors
from dlio.formats.payloads.irheader import HEADER
from dlio.formats.recordio import MAGIC, scan, unframe
from dlio.io.random_access import RandomAccessFile
from dlio.pack.index._infer import example_schema, first_records, is_example, no_keys, with_index
from dlio.pack.listing.file_sets import begins_with
from dlio.pack.listing.lists import read_lines

_is_id = re.compile(r"[0-9]{1,20}").fullmatch  # a record keeps 64 bits of it


def files(path: Path) -> tuple[Path, ...]:
    """Returns the shard at `path`, a file that begins with RecordIO's magic number, and its index."""
    return with_index(path) if begins_with(path, 4) == struct.pack("<I", MAGIC) else ()


def infer(records: Path) -> Schema:
    """Returns the schema of the first records: labels are int64 if all are whole, else float32."""
    with closing(RandomAccessFile(records)) as file:
        first = list(first_records(_records(file)))
    if first and is_example(first[0]):
        return example_schema(records, first)
    return _image_record_schema(records, first)


def _records(file: RandomAccessFile) -> Iterator[bytes]:
    for number, (start, end) in enumerate(pairwise(chain(scan(file), [file.num_bytes]))):
        with corrupt_errors(file.path, record=number, offset=start):
            data = bytes(unframe(file.read(start, end - start, number)))
        yield data


def _image_record_schema(path: Path, first: list[bytes]) -> Schema:
    if not all(len(data) >= HEADER.size for data in first):
        raise SchemaError(f"{path}: its records are neither image records nor Examples: MXNet's im2rec writes images")
    headers = [HEADER.unpack_from(data) for data in first]
    counts = {flag for flag, *_ in headers}
    if len(counts) > 1:
        raise SchemaError(f"{path}: its records have different numbers of labels, {sorted(counts)}")
    label = Field("float32", (counts.pop(),))
    if label.shape in ((0,), (1,)):
        whole = label.shape == (0,) and all(value.is_integer() for _, value, _, _ in headers)
        label = Field("int64" if whole else "float32", ())
    return Schema((("image", Field("bytes")), ("label", label)))


def keys(records: Path) -> Callable[[Sample], str]:
    """Returns a function to the path in the list for a record's id; '' without a list."""
    path = records.with_suffix(".lst")
    if not path.is_file():
        return no_keys(records)
    paths: dict[str, str] = {}
    for line, columns in enumerate((text.split("\t") for text in read_lines(path)), start=1):
        if len(columns) < 3 or not _is_id(columns[0].strip()):
            raise SourceError(f"{path}, line {line}: expected index, label and path with tabs between: edit the list")
        paths[str(int(columns[0]))] = columns[-1].strip()

    def key(sample: Sample) -> str:
        if sample.key not in paths:
            raise SourceError(f"{path} has no line for the record of id {sample.key}: edit the list, or move it away")
        return paths[sample.key]

    return key
