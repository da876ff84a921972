"""Samples that end up in every place of an LMDB page, shards of them, and databases as Caffe's tool writes them."""

from __future__ import annotations

import random
from pathlib import Path

import lmdb

from dlio.dataset.schema import Sample, Schema
from dlio.formats import lmdb as container
from dlio.testing.container import read_all, write_all

BYTES = Schema.of({"image": "bytes", "label": "int64"})


def samples(count: int, largest: int = 9000) -> list[Sample]:
    generator = random.Random(count)
    sizes = [0, 1, 100, 2000, 2030, 2048, largest]  # within a leaf page, at the border, and on overflow pages
    return [
        Sample(f"cat/{i} é.jpg", {"image": generator.randbytes(generator.choice(sizes)), "label": i - 3})
        for i in range(count)
    ]


def write(stem: Path, records: list[Sample], writer=container.Writer, schema: Schema = BYTES) -> Path:
    write_all(writer(stem, schema), records)
    return stem.with_name(stem.name + container.SUFFIX)


def single_file(stem: Path, schema: Schema) -> container.RecordWriter:
    return container.RecordWriter(stem.with_name(stem.name + container.SUFFIX), schema)


def read(path: Path, schema: Schema = BYTES) -> list[Sample]:
    return read_all(container.Reader(path, schema))


def caffe_datum(image: bytes, label: int) -> bytes:
    return b"\x22" + varint(len(image)) + image + b"\x28" + varint(label) + b"\x38\x01"


def varint(number: int) -> bytes:
    return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + varint(number >> 7)


def foreign(path: Path, records: list[tuple[bytes, bytes]], **options) -> Path:
    """Writes a database as convert_imageset does: a map of 1 TiB, a commit each thousand records."""
    with lmdb.open(str(path), map_size=1 << 40, **options) as environment:
        for start in range(0, len(records), 1000):
            with environment.begin(write=True) as transaction:
                for key, value in records[start : start + 1000]:
                    transaction.put(key, value)
    return path
