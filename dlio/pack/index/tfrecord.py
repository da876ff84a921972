"""TFRecord shards of any name, with Examples; those with ImageNet's feature names are image classification.

In other Examples every feature is a field. Class names are `image/class/synset`, else `image/class/text`.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from dlio.dataset.schema import Schema
from dlio.errors import CorruptRecordError
from dlio.formats.tfrecord import FRAME_BYTES, HEADER_BYTES, Reader, masked_crc, scan
from dlio.io.random_access import RandomAccessFile
from dlio.pack.index._infer import example_schema, first_records, own_keys, with_index
from dlio.pack.listing.file_sets import begins_with

_NAMES = ("image_class_synset", "image_class_text")
keys = own_keys  # an Example's `__key__`, or `image/filename`


def files(path: Path) -> tuple[Path, ...]:
    """Returns the shard at `path`, a file that begins with a record's length and its checksum, and its index."""
    head = begins_with(path, HEADER_BYTES)
    is_shard = len(head) == HEADER_BYTES and masked_crc(head[:8]) == int.from_bytes(head[8:], "little")
    return with_index(path) if is_shard else ()


def infer(records: Path) -> Schema:
    """Returns the schema of the first Examples."""
    with closing(RandomAccessFile(records)) as file:
        data = (
            file.read(offset + HEADER_BYTES, num_bytes - FRAME_BYTES, number)
            for number, (offset, num_bytes) in enumerate(scan(file))
        )
        return example_schema(records, first_records(data))


def class_names(records: Path, numbers: list[int]) -> list[str]:
    """Returns the synsets of these records, or their classes' text."""
    for name in _NAMES:
        with closing(Reader(records, Schema.of({name: "bytes"}))) as reader:
            try:
                return [reader.read(number).fields[name].decode(errors="replace") for number in numbers]
            except CorruptRecordError:
                continue  # no such feature: the records themselves have been read
    return [""] * len(numbers)
